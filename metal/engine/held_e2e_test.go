//go:build !race

package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
)

// Templates that write calls as those of their families do.
const (
	llama = `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>
{{ m.content }}{% for call in m.tool_calls or [] %}<|python_tag|>{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}
{% endfor %}<|start_header_id|>assistant<|end_header_id|>
`
	coder = `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for k, v in call.function.arguments | items %}<parameter={{ k }}>
{{ v }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
`
	harmony = `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>{{ call.function.arguments | tojson }}<|call|>{% endfor %}{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant`
	list = `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS] [{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}]{% endfor %}
{% endfor %}`
	mistral = `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}
{% endfor %}`
)

// brief leaves the schemas of tools out of prompts, for which a tiny context has no room.
func brief(template string) string {
	return strings.Replace(template, "tool | tojson", "tool.function.name ~ tool.function.description", 1)
}

// gemma4 and lfm are templates that write calls as those of Gemma 4 and LFM2 do, without the
// quotes of JSON.
const (
	gemma4 = `{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{{ '{' }}` +
		`{% for k, v in call.function.arguments.items() %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}{{ '}' }}<tool_call|>{% endfor %}{% endfor %}`
	lfm = `{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}<|tool_call_start|>[{{ call.function.name }}(` +
		`{% for k, v in call.function.arguments.items() %}{{ k }}='{{ v }}'{% endfor %})]<|tool_call_end|>{% endfor %}{% endfor %}`
)

// Two tools whose arguments are short: one with a schema, one without any.
const weatherAndNow = `[{"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":` +
	`{"city":{"type":"string","maxLength":6},"days":{"type":"integer","minimum":1,"maximum":9},"unit":{"enum":["c","f"]}},"required":["city","days","unit"],"additionalProperties":false}}},` +
	`{"type":"function","function":{"name":"now","description":"d"}}]`

// fits says whether arguments are what weatherAndNow declares.
func fits(name, arguments string) bool {
	var got map[string]any
	if json.Unmarshal([]byte(arguments), &got) != nil {
		return false
	}
	if name == "now" {
		return len(got) == 0
	}
	city, isText := got["city"].(string)
	days, isNumber := got["days"].(float64)
	return name == "weather" && len(got) == 3 && isText && len([]rune(city)) <= 6 && isNumber && days >= 1 && days <= 9 && days == float64(int(days)) && (got["unit"] == "c" || got["unit"] == "f")
}

// endOfTurn is the token that ends an answer.
const endOfTurn = 2

// tokenOf is the token of one letter: byte tokens follow three control tokens.
func tokenOf(letter byte) int32 { return 3 + int32(letter) }

// made are the calls of an answer that are whole, and whether all are.
func made(a answer) (calls [][2]string, whole bool) {
	whole = true
	for _, c := range a.calls {
		if c.Name != "" {
			calls = append(calls, [2]string{c.Name, ""})
		}
		calls[len(calls)-1][1] += c.Arguments
		whole = c.Ended && c.Written == ""
	}
	return calls, whole
}

// cut leaves out what the limit cut before a call had its name.
func cut(a answer) string {
	if a.finished.Reason == engine.Length {
		return ""
	}
	return a.text
}

func heldTo(change func(*engine.Calls), p *sample.Params) engine.Request {
	return asking(func(r *engine.Request) {
		r.Chat.Tools, r.Sampling, r.MaxTokens = []byte(weatherAndNow), p, 250
		change(r.Calls)
	})
}

// A random model would never write one by itself.
func TestRequiredCallNamesAToolAndFitsItsSchema(t *testing.T) {
	for family, template := range map[string]string{"hermes": hermes, "llama": llama, "coder": coder, "mistral": mistral, "list": list, "harmony": harmony, "gemma 4": gemma4, "lfm": lfm} {
		e := ready(t, engine.Options{ModelPath: templated(t, brief(template)), Sequences: 4}, ref.Options{})
		for name, c := range map[string]struct {
			change func(*engine.Calls)
			most   int
			only   string
		}{
			"required":           {change: func(c *engine.Calls) { c.Required = true }, most: 99},
			"required, strict":   {change: func(c *engine.Calls) { c.Required, c.Strict = true, true }, most: 99},
			"required, one":      {change: func(c *engine.Calls) { c.Required, c.Single = true, true }, most: 1},
			"a function by name": {change: func(c *engine.Calls) { c.Required, c.Name = true, "weather" }, most: 1, only: "weather"},
		} {
			t.Run(family+", "+name, func(t *testing.T) {
				ended, names := 0, map[string]bool{}
				for seed := range uint64(2) {
					p := draws(seed)
					p.Bias = map[int32]float32{endOfTurn: 6, tokenOf('<'): 4, tokenOf('/'): 4, tokenOf("nw"[seed]): 20}
					a := ask(t, e, heldTo(c.change, p))
					calls, whole := made(a)
					if a.finished.Reason == engine.Stop {
						ended++
					} else if len(calls) > 0 && !whole {
						calls = calls[:len(calls)-1] // the limit cut it
					}
					if strings.TrimSpace(cut(a)) != "" || a.finished.Reason == engine.Stop && (!whole || len(calls) == 0) || len(calls) > c.most {
						t.Errorf("seed %d: %q and %q, %+v", seed, a.text, calls, a.finished)
					}
					for _, call := range calls {
						names[call[0]] = true
						if !fits(call[0], call[1]) || c.only != "" && call[0] != c.only {
							t.Errorf("seed %d: %q", seed, call)
						}
					}
				}
				if ended == 0 || c.only == "" && len(names) != 2 {
					t.Errorf("%d answers ended, %v was called", ended, names)
				}
			})
		}
	}
}

func formed(r engine.Request, schema string) engine.Request {
	r.Constraint = form(grammar.JSONSchema, schema)
	return r
}

// With tools and a form of the answer, an answer is calls and nothing else, or has the
// form. A bias has a random model begin with either.
func TestAnswerIsCallsOrHasTheForm(t *testing.T) {
	const schema = `{"type":"object","properties":{"mood":{"enum":["good","bad"]}},"required":["mood"],"additionalProperties":false}`
	wanted := regexp.MustCompile(`^\s*\{\s*"mood"\s*:\s*"(good|bad)"\s*\}\s*$`)
	opening := map[string]byte{"hermes": '<', "coder": '<', "llama": 'n', "list": '['} // what a call has there that the form has not
	for family, template := range map[string]string{"hermes": hermes, "coder": coder, "llama": llama, "list": list} {
		e := ready(t, engine.Options{ModelPath: templated(t, brief(template)), Sequences: 4}, ref.Options{})
		called, fitting := 0, 0
		for seed := range uint64(6) {
			p := draws(seed)
			p.Bias = map[int32]float32{tokenOf(opening[family]): 100}
			if seed%2 == 1 {
				p.Bias[tokenOf(opening[family])] = -100
			}
			for _, c := range []*engine.Calls{{}, {Strict: true}, {Required: true}} {
				if c.Required && seed%2 == 1 {
					continue // what the bias forbids
				}
				a := ask(t, e, formed(heldTo(func(r *engine.Calls) { *r = *c }, p), schema))
				calls, whole := made(a)
				switch {
				case a.finished.Reason != engine.Stop: // the limit cut it
				case len(calls) > 0:
					called++
					if !whole || strings.TrimSpace(a.text) != "" || c.Strict && !fits(calls[0][0], calls[0][1]) {
						t.Errorf("%s, seed %d: %q and %q", family, seed, a.text, calls)
					}
				default:
					fitting++
					if c.Required || !wanted.MatchString(a.text) {
						t.Errorf("%s, seed %d: %q", family, seed, a.text)
					}
				}
			}
		}
		if called == 0 || fitting == 0 {
			t.Errorf("%s: %d answers were calls, %d had the form: the test wants both", family, called, fitting)
		}
	}
}

// marked is a folder whose vocabulary has a token for <tool_call>, a control token
// maybe, and that token.
func marked(t *testing.T, dir string, control bool) int32 {
	t.Helper()
	path := filepath.Join(dir, "tokenizer.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	vocab := config["model"].(map[string]any)["vocab"].(map[string]any)
	last := ""
	for token, id := range vocab {
		if last == "" || id.(float64) > vocab[last].(float64) {
			last = token
		}
	}
	id := vocab[last]
	delete(vocab, last)
	vocab["<tool_call>"] = id
	config["added_tokens"] = append(config["added_tokens"].([]any), map[string]any{"id": id, "content": "<tool_call>", "special": control, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return int32(id.(float64))
}

func TestStrictCallFitsItsSchemaAfterText(t *testing.T) {
	for name, control := range map[string]bool{"a mark that is shown": false, "a mark that is a control token": true} {
		t.Run(name, func(t *testing.T) { strictlyCalled(t, control) })
	}
}

func strictlyCalled(t *testing.T, control bool) {
	t.Helper()
	dir := templated(t, brief(hermes))
	opens := marked(t, dir, control)
	e := ready(t, engine.Options{ModelPath: dir}, ref.Options{})
	texts, ended := 0, 0
	for seed := range uint64(4) {
		p := draws(seed)
		p.Bias = map[int32]float32{opens: 4} // it calls often
		a := ask(t, e, heldTo(func(c *engine.Calls) { c.Strict = true }, p))
		calls, whole := made(a)
		if a.finished.Reason != engine.Stop && len(calls) > 0 && !whole {
			calls = calls[:len(calls)-1]
		}
		if strings.Contains(a.text, "tool_call>") || a.finished.TextCalls > 0 && a.finished.Reason == engine.Stop {
			t.Errorf("seed %d: a call that is none in %q", seed, a.text)
		}
		if strings.TrimSpace(a.text) != "" {
			texts++
		}
		ended += len(calls)
		for _, call := range calls {
			if !fits(call[0], call[1]) {
				t.Errorf("seed %d: %q", seed, call)
			}
		}
	}
	if texts == 0 || ended == 0 {
		t.Errorf("%d answers have text, %d calls are whole: the test wants both", texts, ended)
	}
}

// The rest of a schema that cannot be enforced whole is enforced.
func TestUnenforceableToolSchema(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: templated(t, hermes)}, ref.Options{})
	for _, c := range []engine.Calls{{Strict: true, Required: true}, {Required: true}} {
		a := ask(t, e, asking(func(r *engine.Request) {
			r.Calls, r.Sampling, r.MaxTokens = &c, draws(3), 120
			r.Chat.Tools = []byte(`[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"const":"b"}},"required":["a"],"not":{"required":["c"]}}}}]`)
		}))
		calls, whole := made(a)
		var got map[string]any
		if a.finished.Err != nil || len(calls) == 0 || whole && (json.Unmarshal([]byte(calls[0][1]), &got) != nil || got["a"] != "b") {
			t.Errorf("%+v: %q and %q, %+v", c, a.text, calls, a.finished)
		}
	}
}
