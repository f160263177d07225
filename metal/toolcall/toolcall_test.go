//go:build !race

package toolcall

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const declared = `[
 {"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":{
   "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},"more":{"type":"object"},"list":{"type":"array"},"any":{},
   "share":{"type":"number"},"either":{"type":["string","null"]},"of":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}}},
 {"type":"function","function":{"name":"now"}}]`

func tools(t testing.TB) Tools {
	t.Helper()
	all, err := ReadTools([]byte(declared))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// told are the events of an answer that comes in these pieces, joined as a
// client joins them: T is text, R thoughts, C a call, B one that is broken, with
// the arguments that were told and all that was written.
func told(t testing.TB, f Format, pieces ...string) []string {
	t.Helper()
	p, err := New(f, tools(t))
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for _, piece := range pieces {
		events = append(events, p.Push(piece)...)
	}
	return joined(append(events, p.Flush()...))
}

func joined(events []Event) (out []string) {
	var kind Kind = -1
	name, args := "", ""
	for _, e := range events {
		switch e.Kind {
		case Text, Thought:
			if kind == e.Kind {
				out[len(out)-1] += e.Text
			} else {
				out = append(out, map[Kind]string{Text: "T ", Thought: "R "}[e.Kind]+e.Text)
			}
		case Begin:
			name, args = e.Text, ""
		case Arguments:
			args += e.Text
		case End:
			if e.Text == "" {
				out = append(out, fmt.Sprintf("C %s %s", name, args))
			} else {
				out = append(out, fmt.Sprintf("B %s %s | %s", name, args, e.Text))
			}
		}
		kind = e.Kind
	}
	return out
}

// transcripts are answers of models in their own way of writing.
var transcripts = map[Format]map[string]struct {
	written string
	want    []string
}{
	Hermes: {
		"a call":                      {"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>", []string{`C weather {"city": "Paris", "days": 3}`}},
		"text, then two calls":        {"Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", []string{"T Let me see.", `C weather {"city": "Zürich"}`, `C now {}`}},
		"no arguments":                {`<tool_call>{"name": "now"}</tool_call>`, []string{"C now {}"}},
		"arguments first":             {`<tool_call>{"arguments": {"city": "a"}, "name": "weather"}</tool_call>`, []string{`C weather {"city": "a"}`}},
		"arguments as a string":       {`<tool_call>{"name": "weather", "arguments": "{\"city\": \"a\"}"}</tool_call>`, []string{`C weather {"city": "a"}`}},
		"an id beside":                {`<tool_call>{"id": 7, "name": "weather", "arguments": {}, "type": "function"}</tool_call>`, []string{`C weather {}`}},
		"text behind":                 {"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n\nDone. ", []string{"C now {}", "T Done. "}},
		"a brace is missing":          {"<tool_call>\n{\"name\": \"now\", \"arguments\": {}\n</tool_call>", []string{"C now {}"}},
		"the end is missing":          {`<tool_call>{"name": "now", "arguments": {}}`, []string{"C now {}"}},
		"a tag in a string":           {`<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>\u00e9\""}}</tool_call>`, []string{`C weather {"city": "</tool_call>\u00e9\""}`}},
		"no call":                     {"a <b> < c <tool> \n", []string{"T a <b> < c <tool> \n"}},
		"not declared":                {"x <tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", []string{`T x <tool_call>{"name": "rm", "arguments": {}}</tool_call>`}},
		"no JSON":                     {"<tool_call>weather(Paris)</tool_call>", []string{"T <tool_call>weather(Paris)</tool_call>"}},
		"one behind one that is none": {"<tool_call>oh <tool_call>{\"name\": \"now\"}</tool_call>", []string{"T <tool_call>oh", "C now {}"}},
		"arguments that are none":     {`<tool_call>{"name": "now", "arguments": [1]}</tool_call>`, []string{`T <tool_call>{"name": "now", "arguments": [1]}</tool_call>`}},
		"a member of no call":         {`<tool_call>{"name": "now", "why": 1}</tool_call>`, []string{`T <tool_call>{"name": "now", "why": 1}</tool_call>`}},
		"a comma too many":            {`<tool_call>{"name": "now",}</tool_call>`, []string{`T <tool_call>{"name": "now",}</tool_call>`}},
		"a name twice":                {`<tool_call>{"name": "now", "name": "weather"}</tool_call>`, []string{`T <tool_call>{"name": "now", "name": "weather"}</tool_call>`}},
		"broken in its arguments":     {`<tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>`, []string{`B weather {"city":  | <tool_call>{"name": "weather", "arguments": {"city": `, "T Paris}}</tool_call>"}},
		"cut in its arguments":        {`<tool_call>{"name": "weather", "arguments": {"city": "Par`, []string{`B weather {"city": "Par | <tool_call>{"name": "weather", "arguments": {"city": "Par`}},
		"cut before them":             {`<tool_call>{"name": "wea`, []string{`T <tool_call>{"name": "wea`}},
		"cut in a tag":                {"a\n<tool_c", []string{"T a\n<tool_c"}},
	},
	QwenXML: {
		"a call":               {"I see.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", []string{"T I see.", `C weather {"city": "Paris", "days": 3}`}},
		"no parameters":        {"<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call><function=now></function></tool_call>", []string{"C now {}", "C now {}"}},
		"no outer tag":         {"<function=now>\n</function>\n</tool_call>", []string{"C now {}"}},
		"text of many lines":   {"<tool_call>\n<function=weather>\n<parameter=city>\na \"b\"\n\n\t</p>\\\n\n</parameter>\n</function>\n</tool_call>", []string{`C weather {"city": "a \"b\"\n\n\u0009</p>\\\n"}`}},
		"values of all types":  {"<tool_call><function=weather><parameter=exact>True</parameter><parameter=more>{\"a\": [1]}</parameter><parameter=list>[1, 2]</parameter><parameter=share>2</parameter><parameter=either>null</parameter><parameter=of>4</parameter></function></tool_call>", []string{`C weather {"exact": true, "more": {"a": [1]}, "list": [1, 2], "share": 2, "either": null, "of": 4}`}},
		"no value of its type": {"<tool_call><function=weather><parameter=days>three</parameter><parameter=any>5</parameter><parameter=new>[1]</parameter></function></tool_call>", []string{`C weather {"days": "three", "any": "5", "new": [1]}`}},
		"a value like a tag":   {"<tool_call><function=weather><parameter=city></param></parameter></function></tool_call>", []string{`C weather {"city": "</param>"}`}},
		"not declared":         {"<tool_call>\n<function=rm>\n</function></tool_call>", []string{"T <tool_call>\n<function=rm>\n</function></tool_call>"}},
		"JSON in the tag":      {"<tool_call>{\"name\": \"now\"}</tool_call>", []string{`T <tool_call>{"name": "now"}</tool_call>`}},
		"broken between":       {"<tool_call><function=weather><parameter=city>a</parameter><para><b>", []string{`B weather {"city": "a" | <tool_call><function=weather><parameter=city>a</parameter>`, "T <para><b>"}},
		"a parameter twice":    {"<tool_call><function=weather><parameter=city>a</parameter><parameter=city>", []string{`B weather {"city": "a" | <tool_call><function=weather><parameter=city>a</parameter>`, "T <parameter=city>"}},
		"cut in a value":       {"<tool_call><function=weather><parameter=city>Par", []string{`B weather {"city": "Par | <tool_call><function=weather><parameter=city>Par`}},
	},
	Llama: {
		"a call":            {`{"name": "weather", "parameters": {"city": "Paris"}}`, []string{`C weather {"city": "Paris"}`}},
		"with its tag":      {`<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}`, []string{`C weather {"city": "Paris"}`}},
		"a type first":      {`{"type": "function", "name": "now", "parameters": {}}`, []string{"C now {}"}},
		"two":               {`{"name": "now", "parameters": {}}; {"name": "now", "arguments": {}}`, []string{"C now {}", "C now {}"}},
		"text":              {"Hello {\"name\": \"now\"}", []string{"T Hello {\"name\": \"now\"}"}},
		"text, then a tag":  {"Hi\n<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", []string{"T Hi", "C now {}"}},
		"JSON as an answer": {`{"answer": 1, "name": "now"}`, []string{`T {"answer": 1, "name": "now"}`}},
		"code of the tag":   {`<|python_tag|>print(1)`, []string{`T <|python_tag|>print(1)`}},
		"text behind":       {"{\"name\": \"now\", \"parameters\": {}}; or", []string{"C now {}", "T ; or"}},
		"not declared":      {`{"name": "rm", "parameters": {}}`, []string{`T {"name": "rm", "parameters": {}}`}},
	},
	Mistral: {
		"a list":                  {`[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}, "id": "abcdefghi"}]`, []string{`C weather {"city": "Paris"}`, "C now {}"}},
		"names":                   {`Sure.[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}`, []string{"T Sure.", `C weather {"city": "Paris"}`, "C now {}"}},
		"names with ids":          {`[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"days": 2}`, []string{`C weather {"days": 2}`}},
		"a name alone":            {`[TOOL_CALLS] now {}`, []string{"C now {}"}},
		"not declared":            {`[TOOL_CALLS]rm[ARGS]{}`, []string{`T [TOOL_CALLS]rm[ARGS]{}`}},
		"broken in a list":        {`[TOOL_CALLS][{"name": "now", "arguments": {}}, oh]`, []string{"C now {}", "T , oh]"}},
		"broken in its arguments": {`[TOOL_CALLS]weather[ARGS]{"city": x}`, []string{`B weather {"city":  | [TOOL_CALLS]weather[ARGS]{"city": `, "T x}"}},
		"an empty list":           {`[TOOL_CALLS][]`, []string{`T [TOOL_CALLS][]`}},
	},
	Harmony: {
		"thoughts and an answer": {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.<|return|>", []string{"R Hm.", "T Yes < no."}},
		"a call":                 {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"Paris\"}<|call|>", []string{"R Hm.", `C weather {"city":"Paris"}`}},
		"for whom comes first":   {" to=functions.now<|channel|>commentary json<|message|>{} <|call|>", []string{"C now {}"}},
		"a preamble":             {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|><|call|>", []string{"R I look.", "C now {}"}},
		"for nobody known":       {"<|channel|>commentary to=functions.rm<|message|>{}<|call|>", []string{"R {}"}},
		"no JSON":                {"<|channel|>commentary to=functions.now<|message|>now()<|call|>", []string{"T <|channel|>commentary to=functions.now<|message|>now()"}},
		"broken":                 {"<|channel|>commentary to=functions.now<|message|>{x}<|call|>", []string{`B now { | <|channel|>commentary to=functions.now<|message|>{`, "T x}"}},
		"more behind":            {"<|channel|>commentary to=functions.now<|message|>{} x<|call|>", []string{"C now {}", "T x"}},
		"cut":                    {"<|channel|>commentary to=functions.now<|message|>{\"a\"", []string{`B now {"a" | <|channel|>commentary to=functions.now<|message|>{"a"`}},
		"no header":              {"<|message|>Yes<|en", []string{"T Yes<|en"}},
	},
}

func TestCallsOfEachFamilyAreParsed(t *testing.T) {
	for _, f := range Formats() {
		if len(transcripts[f]) == 0 {
			t.Errorf("%s has no transcripts", f)
		}
		for name, c := range transcripts[f] {
			if d := cmp.Diff(c.want, told(t, f, c.written)); d != "" {
				t.Errorf("%s, %s: %s", f, name, d)
			}
		}
	}
}

func TestCallsDoNotDependOnHowTheAnswerIsSplit(t *testing.T) {
	for _, f := range Formats() {
		for name, c := range transcripts[f] {
			if d := cmp.Diff(c.want, told(t, f, strings.Split(c.written, "")...)); d != "" {
				t.Errorf("%s, %s, in characters: %s", f, name, d)
			}
			for i := range len(c.written) {
				if got := told(t, f, c.written[:i], c.written[i:]); cmp.Diff(c.want, got) != "" {
					t.Errorf("%s, %s, cut at %d: %q", f, name, i, got)
				}
			}
		}
	}
}

func TestArgumentsAreStreamed(t *testing.T) {
	for f, begun := range map[Format]string{
		Hermes:  `<tool_call>{"name": "weather", "arguments": {"city": "Par`,
		QwenXML: "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
		Llama:   `{"name": "weather", "parameters": {"city": "Par`,
		Mistral: `[TOOL_CALLS]weather[ARGS]{"city": "Par`,
		Harmony: `<|channel|>commentary to=functions.weather<|message|>{"city": "Par`,
	} {
		p, err := New(f, tools(t))
		if err != nil {
			t.Fatal(err)
		}
		want := []Event{{Begin, "weather"}, {Arguments, `{"city": "Par`}}
		if d := cmp.Diff(want, p.Push(begun)); d != "" || !p.Inside() {
			t.Errorf("%s: %s", f, d)
		}
	}
}

func TestToolsThatCannotBeReadAreRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"no list":         `{}`,
		"no name":         `[{"type":"function","function":{}}]`,
		"a name twice":    `[{"function":{"name":"a"}},{"function":{"name":"a"}}]`,
		"types of a kind": `[{"function":{"name":"a","parameters":{"properties":{"b":{"type":5}}}}}]`,
	} {
		if _, err := ReadTools([]byte(raw)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := New(None, nil); err == nil {
		t.Error("a format that is none has a parser")
	}
}

func TestTheFormatIsReadInWhatATemplateWrites(t *testing.T) {
	const definition = "A tool that is looked for.\n"
	for name, c := range map[string]struct {
		written string
		want    Format
	}{
		"Qwen":                     {definition + "<tool_call>\n{\"name\": \"probe_function\", \"arguments\": {\"probe_argument\": \"probe value\"}}\n</tool_call>", Hermes},
		"Hermes 2":                 {definition + "<tool_call>\n{\"arguments\": {\"probe_argument\": \"probe value\"}, \"name\": \"probe_function\"}\n</tool_call>", Hermes},
		"Qwen3-Coder":              {definition + "<tool_call>\n<function=probe_function>\n<parameter=probe_argument>\nprobe value\n</parameter>\n</function>\n</tool_call>", QwenXML},
		"Llama":                    {definition + `<|start_header_id|>assistant<|end_header_id|>` + "\n\n" + `{"name": "probe_function", "parameters": {"probe_argument": "probe value"}}<|eot_id|>`, Llama},
		"Mistral":                  {definition + `[TOOL_CALLS] [{"name": "probe_function", "arguments": {"probe_argument": "probe value"}, "id": "call00001"}]`, Mistral},
		"Mistral, newer":           {definition + `[TOOL_CALLS]probe_function[CALL_ID]call00001[ARGS]{"probe_argument": "probe value"}`, Mistral},
		"GPT-OSS":                  {definition + `<|start|>assistant to=functions.probe_function<|channel|>commentary json<|message|>{"probe_argument": "probe value"}<|call|>`, Harmony},
		"another way":              {definition + "<tool_call>probe_function\n<arg_key>probe_argument</arg_key>\n<arg_value>probe value</arg_value>\n</tool_call>", None},
		"no definition":            {"<tool_call>\n{\"name\": \"probe_function\", \"arguments\": {\"probe_argument\": \"probe value\"}}\n</tool_call>", None},
		"a definition and no call": {definition + "<tool_call>{\"name\": <function-name>, \"arguments\": <args>}</tool_call>", None},
	} {
		if got := Detect(c.written); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	messages, definitions := Probe()
	if !json.Valid(messages) || !json.Valid(definitions) || !strings.Contains(string(definitions), probeDescription) {
		t.Errorf("the probe is no JSON: %s %s", messages, definitions)
	}
}

// FuzzCalls: any answer tells the same however it is cut, a whole call has an
// object for its arguments, and what is not said to be a call was not lost.
func FuzzCalls(f *testing.F) {
	for i, format := range Formats() {
		for _, c := range transcripts[format] {
			f.Add(uint8(i), c.written, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, written string, every uint8) {
		format := Formats()[int(which)%len(Formats())]
		var pieces []string
		for n, rest := int(every)+1, written; rest != ""; {
			k := min(n, len(rest))
			pieces, rest = append(pieces, rest[:k]), rest[k:]
		}
		whole := told(t, format, written)
		if d := cmp.Diff(whole, told(t, format, pieces...)); d != "" {
			t.Errorf("in pieces of %d: %s", every+1, d)
		}
		for _, e := range whole {
			if call, ok := strings.CutPrefix(e, "C "); ok {
				_, args, _ := strings.Cut(call, " ")
				if !isObject(args) {
					t.Errorf("a whole call with the arguments %q", args)
				}
			}
		}
	})
}
