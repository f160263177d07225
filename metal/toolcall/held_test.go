//go:build !race

package toolcall

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/test/seed"
)

// vocabulary has all bytes, the marks and some longer tokens.
func vocabulary() (*grammar.Vocabulary, [][]byte) {
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for i := range 8 {
		tokens = append(tokens, []byte(grammar.Mark(i)))
	}
	for _, word := range []string{"<tool_call>", "</tool_call>", "{\"name\": \"", "\", \"arguments\": {", "<function=", "</function>", "<parameter=", "</parameter>", "\n", "\"}", "}}", "[TOOL_CALLS]", "[ARGS]",
		"<|channel|>", "commentary to=functions.", "<|message|>", "<|call|>", "<|constrain|>", "now", "weather", "write", "python", "functions.", "city", "\": ", ", \"", "parameters", "json", "code",
		openKey, closeKey, openValue, closeValue, miniCall, miniCallEnd, miniFunction, miniFunctionEnd, miniParameter, dsmlCall, dsmlCallEnd, dsmlFunction, dsmlFunctionEnd, dsmlParameter, dsmlParameterEnd,
		kimiCalls, kimiCallsEnd, kimiCall, kimiSep, kimiCallEnd, deepCalls, deepCallsEnd, deepCall, deepSep, deepCallEnd, "｜", "▁", "｜DSML｜", "path", "content", gemmaCall, gemmaCallEnd, gemmaQuote, lfmCalls, lfmCallsEnd, "call:", "='", "', ", "=\"", ")]", "True", "None"} {
		tokens = append(tokens, []byte(word))
	}
	return grammar.NewVocabulary(len(tokens), func(id int32) []byte { return tokens[id] }), tokens
}

func tableOf(t testing.TB, c *grammar.Calls) *grammar.Table {
	t.Helper()
	g, err := grammar.Compile(t.Context(), grammar.Spec{Kind: grammar.Functions, Calls: c})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := vocabulary()
	return grammar.NewTable(g, v)
}

// refused are transcripts that the parser takes and that the model may not write: they lack
// what a schema requires, or name a function and nothing else.
var refused = map[Format][]string{
	Hermes:       {"null before the name", "arguments as a string"},
	QwenXML:      {"no value of its type", "a parameter that is not declared", "a parameter in the middle of a line"},
	Mistral:      {"no arguments"},
	MistralNamed: {"no arguments"},
	Harmony:      {"more after it"},
	Gemma:        {"the end is missing"},
	LFM:          {"the ends are missing"},
}

// An answer that the parser takes is one that the model may write.
func TestGrammarTakesWhatTheParserReads(t *testing.T) {
	for _, f := range Formats() {
		m := tableOf(t, f.Grammar(tools(t), Hold{}))
		for name, c := range transcriptsOf(f) {
			if c.broken > 0 || c.held != nil || c.cut != nil {
				continue
			}
			at, i := m.Match(false), 0
			for i < len(c.written) && at.Advance([]byte{c.written[i]}) {
				i++
			}
			if taken := i == len(c.written) && at.Accepting(); taken == slices.Contains(refused[f], name) {
				t.Errorf("%s, %s: taken %v, up to %q", f, name, taken, c.written[:i])
			}
		}
	}
}

// An answer of GPT-OSS that has another form than calls is a message in the channel final.
func TestTheOtherFormOfHarmonyIsTheFinalMessage(t *testing.T) {
	tokens := Harmony.Markers()
	g, err := grammar.Compile(t.Context(), grammar.Spec{Kind: grammar.Functions, Calls: Harmony.Grammar(tools(t), Hold{Required: true, Tokens: tokens}), Else: &grammar.Spec{Kind: grammar.JSONObject}})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := vocabulary()
	for written, want := range map[string][]string{
		"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}": {"R Hm.", `T {"a": 1}`},
		"<|channel|>commentary to=functions.now json<|message|>{}<|call|>":                                {"C now {}"},
	} {
		for _, m := range tokens {
			written = strings.ReplaceAll(written, m, Harmony.Mark(m))
		}
		if at := grammar.NewTable(g, v).Match(false); !at.Advance([]byte(written)) || !at.Accepting() {
			t.Errorf("%q is refused", written)
		}
		if got := read(parser(t, Harmony, Options{Tokens: tokens}), false, written); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What is no call and cannot be repaired is refused within the call.
func TestGrammarRefusesWhatIsNoCall(t *testing.T) {
	for f, all := range map[Format][]string{
		Hermes:       {`<tool_call>{"name": "rm`, `a<tool_call>oh`, hermesWeather + `{"city": Par`, hermesWeather + `[`, `<tool_call>{"name": "write", "arguments": {"path": "a"}`, `<tool_call>{"name": "write"}`},
		QwenXML:      {"<tool_call><function=rm", xmlWeather + "a</parameter>x", xmlWrite + "</function>\n</tool_call><tool_call>", "<function=now>x"},
		Llama:        {`{"name": "weather", "parameters": {"city": P`, `<|python_tag|>print`},
		Mistral:      {"[TOOL_CALLS]rm", `[TOOL_CALLS]weather[ARGS]{"city": x`, `[TOOL_CALLS][{"name": "x`},
		MistralNamed: {`[TOOL_CALLS]weather[ARGS]1`},
		GLM:          {"<tool_call>rm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>x"},
		MiniMax:      {"<minimax:tool_call>\n<invoke name=\"rm"},
		DeepSeekV32:  {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"rm", "<｜DSML｜function_calls><｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"days\" string=\"true"},
		Kimi:         {"<|tool_call_begin|>functions.rm", kimiWeather + `{"city": x`},
		DeepSeekV3:   {oldWeather + `{"city": x`},
		DeepSeekV31:  {deepWeather + "1"},
		Gemma:        {"<|tool_call>call:rm", "<|tool_call>call:weather{city:P", "<|tool_call>call:weather{days:1.5", "<|tool_call>call:weather{exact:<", "<|tool_call>call:write{path:<|\"|>a<|\"|>}", "<|tool_call>call:now{}\nThe"},
		LFM:          {"<|tool_call_start|>[rm", "<|tool_call_start|>[weather('", "<|tool_call_start|>[weather(city=P", "<|tool_call_start|>[weather(days='", "<|tool_call_start|>[weather(city:", "<|tool_call_start|>[write(path='a')", "<|tool_call_start|>[now()]\nThe"},
		Harmony:      {"<|channel|>commentary to=functions.rm", "<|channel|>commentary to=functions.weather<|message|>x", " to=functions.weather <|constrain|>json<|message|>{\"days\":1.5"},
	} {
		m := tableOf(t, f.Grammar(tools(t), Hold{}))
		for _, written := range all {
			if at := m.Match(false); at.Advance([]byte(written)) {
				t.Errorf("%s: %q is taken", f, written)
			}
		}
	}
}

// Random answers that a grammar allows are calls to the parser, streamed and complete, with
// arguments that are what the schemas require.
func TestHeldAnswersAreCalls(t *testing.T) {
	_, tokens := vocabulary()
	rng := rand.New(rand.NewPCG(seed.Of(t), 1))
	for _, f := range Formats() {
		for _, c := range []struct {
			name string
			Hold
		}{
			{name: "free", Hold: Hold{}}, {name: "strict", Hold: Hold{Strict: true}}, {name: "required", Hold: Hold{Required: true}}, {name: "one", Hold: Hold{Required: true, Name: "write", Single: true}},
			{name: "free, tokens", Hold: Hold{Tokens: f.Markers()}}, {name: "required, strict, tokens", Hold: Hold{Required: true, Strict: true, Tokens: f.Markers()}},
		} {
			name, h := c.name, c.Hold
			m := tableOf(t, f.Grammar(tools(t), h))
			calls := 0
			for range 40 {
				written, whole := wander(t, rng, m, tokens, opening(f, h), headless(f, h))
				p := parser(t, f, Options{Held: true, Tokens: h.Tokens})
				events := append(p.Push(written), p.Flush(!whole)...)
				calls += p.Calls()
				if problem := flaw(events, p, f, h, whole); problem != "" {
					t.Fatalf("%s, %s: %s in %q: %q", f, name, problem, written[max(0, len(written)-900):], joined(events))
				}
			}
			if calls < 10 {
				t.Errorf("%s, %s: %d calls in 40 answers", f, name, calls)
			}
		}
	}
}

// opening has a free answer begin a call.
func opening(f Format, h Hold) string {
	w := writing{format: f, tokens: h.Tokens}
	switch {
	case h.Required:
		return ""
	case f == Llama:
		return `{"name": "now", "parameters": `
	case f == Harmony:
		return w.mark(harmonyChannel) + "commentary to=functions."
	}
	return "Hi " + w.mark(f.Markers()[0])
}

// headless are tokens that do not come by chance: headers of GPT-OSS that the parser reads and
// that no model writes are not held.
func headless(f Format, h Hold) []string {
	if f != Harmony || h.Required {
		return nil
	}
	return []string{harmonyChannel, f.Mark(harmonyChannel), harmonyStart, f.Mark(harmonyStart), "commentary to=functions."}
}

// wander writes an answer of random tokens that may come next, but for some; whole is set where it ended.
func wander(t *testing.T, rng *rand.Rand, table *grammar.Table, tokens [][]byte, opening string, never []string) (written string, whole bool) {
	t.Helper()
	m := table.Match(false)
	if !m.Advance([]byte(opening)) {
		t.Fatalf("%q must not begin an answer", opening)
	}
	written = opening
	for range 400 {
		if m.Accepting() && (m.Ended() || rng.IntN(6) == 0) {
			return written, true
		}
		mask, err := m.Mask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var may []int32
		for id := range int32(len(tokens)) {
			if grammar.Allows(mask, id) && (id >= 256 || id >= 0x20 && id < 0x7f || id == '\n') && !slices.Contains(never, string(tokens[id])) {
				may = append(may, id)
			}
		}
		// Closing tokens come more often than by chance, so that answers end.
		var closing []int32
		for _, id := range may {
			if strings.ContainsAny(string(tokens[id]), "\"}>]") || id >= 256 {
				closing = append(closing, id)
			}
		}
		if len(closing) > 0 && rng.IntN(2) == 0 {
			may = closing
		}
		if len(may) == 0 {
			t.Fatalf("nothing may follow %q", written)
		}
		id := may[rng.IntN(len(may))]
		if !m.Advance(tokens[id]) {
			t.Fatalf("%q must not follow %q", tokens[id], written)
		}
		written += string(tokens[id])
	}
	return written, false
}

// reopened matches a value that seemed to end with its call and that a tag closes later: no
// grammar of finite states knows which of the two it is.
var reopened = regexp.MustCompile(`(?s)</(function|tool_call|invoke|minimax:tool_call|｜DSML｜(invoke|function_calls))>.*</(parameter|｜DSML｜parameter|arg_value)>`)

// flaw is what is wrong with what a parser reported of a held answer.
func flaw(events []Event, p *Parser, f Format, h Hold, whole bool) string {
	name, args := "", ""
	for i, e := range events {
		switch e.Kind {
		case Begin:
			name, args = e.Text, ""
		case Arguments:
			args += e.Text
		case Text:
			if h.Required && whole && strings.TrimSpace(e.Text) != "" {
				return fmt.Sprintf("text %q", e.Text)
			}
		case End:
			if e.Text != "" {
				if (whole || i != len(events)-1) && !reopened.MatchString(e.Text) {
					return "a call that is not complete"
				}
				continue
			}
			if problem := unfit(name, args); problem != "" {
				return problem
			}
		}
	}
	if p.Broken() > 0 && (whole || h.Required) && !reopened.MatchString(fmt.Sprint(events)) {
		return "a call that is text"
	}
	return ""
}

// unfit is what is wrong with the arguments of a call.
func unfit(name, args string) string {
	var got map[string]any
	if json.Unmarshal([]byte(args), &got) != nil {
		return fmt.Sprintf("arguments %s", args)
	}
	for _, required := range map[string][]string{"write": {"path", "content"}, "python": {"code"}}[name] {
		if _, text := got[required].(string); !text {
			return fmt.Sprintf("%s without %s", name, required)
		}
	}
	if days, ok := got["days"]; ok && name == "weather" {
		if n, number := days.(float64); !number || n != float64(int64(n)) {
			return fmt.Sprintf("%v days", days)
		}
	}
	return ""
}
