//go:build !race

package toolcall

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const declared = `[
 {"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":{
   "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},"more":{"type":"object"},"list":{"type":"array"},"any":{},
   "share":{"type":"number"},"either":{"type":["string","null"]},"of":{"anyOf":[{"type":"integer"},{"type":"null"}]},"true":true,
   "rows":{"type":"array","items":{"$ref":"#/$defs/row"}}},"$defs":{"row":{"type":"object","properties":{"n":{"type":"integer"},"x":{"type":"number"}}}}}}},
 {"type":"function","function":{"name":"now"}},
 {"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}},"required":["path","content"]}}},
 {"type":"function","function":{"name":"python","parameters":{"type":"object","properties":{"code":{"type":"string"}},"required":["code"]}}}]`

var readTools = sync.OnceValues(func() (Tools, error) { return ReadTools([]byte(declared)) })

func tools(t testing.TB) Tools {
	t.Helper()
	all, err := readTools()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parser(t testing.TB, f Format, o Options) *Parser {
	t.Helper()
	p, err := New(f, tools(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// read are the events of an answer that comes in these pieces, joined as a client joins
// them: T is text, R thoughts, C a call, B one that is incomplete, with the arguments that
// were reported and all that was written.
func read(p *Parser, cut bool, pieces ...string) []string {
	var events []Event
	for _, piece := range pieces {
		events = append(events, p.Push(piece)...)
	}
	return joined(append(events, p.Flush(cut)...))
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

// transcript is an answer of a model in its own format.
type transcript struct {
	written string
	// want are its events; held are those where calls are held, if they differ, and cut
	// those where a limit ended the answer.
	want, held, cut []string
	// broken is how many calls were returned as text.
	broken int
}

const (
	hermesWeather = `<tool_call>{"name": "weather", "arguments": `
	xmlWeather    = "<tool_call><function=weather><parameter=city>"
	xmlWrite      = "<tool_call>\n<function=write>\n<parameter=path>\nREADME.md"
	xmlClose      = "\n</parameter>\n</function>\n</tool_call>"
	wrote         = `C write {"path": "README.md", "content": "hello"}`
)

// transcripts by format.
var transcripts = map[Format]map[string]transcript{
	Hermes: {
		"a call":                {written: "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>", want: []string{`C weather {"city": "Paris", "days": 3}`}},
		"text, then two calls":  {written: "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", want: []string{"T Let me see.", `C weather {"city": "Zürich"}`, `C now {}`}},
		"no arguments":          {written: `<tool_call>{"name": "now"}</tool_call>`, want: []string{"C now {}"}},
		"null for arguments":    {written: `<tool_call>{"name": "now", "arguments": null}</tool_call>`, want: []string{"C now {}"}},
		"None for arguments":    {written: `<tool_call>{"name": "now", "arguments": None}</tool_call>`, want: []string{"C now {}"}},
		"an empty string":       {written: `<tool_call>{"name": "now", "arguments": ""}</tool_call>`, want: []string{"C now {}"}},
		"null before the name":  {written: `<tool_call>{"arguments": null, "name": "now"}</tool_call>`, want: []string{"C now {}"}},
		"arguments first":       {written: `<tool_call>{"arguments": {"city": "a", "days": 5.0}, "name": "weather"}</tool_call>`, want: []string{`C weather {"city": "a", "days": 5}`}},
		"arguments as a string": {written: `<tool_call>{"name": "weather", "arguments": "{\"city\": \"a\", \"days\": 2.0}"}</tool_call>`, want: []string{`C weather {"city": "a", "days": 2}`}},
		"another key":           {written: `<tool_call>{"name": "weather", "parameters": {"city": "a"}}</tool_call>`, want: []string{`C weather {"city": "a"}`}},
		"an id as well":         {written: `<tool_call>{"id": 7, "name": "weather", "arguments": {}, "type": "function"}</tool_call>`, want: []string{`C weather {}`}},
		"a namespace":           {written: `<tool_call>{"name": "functions.now", "arguments": {}}</tool_call>`, want: []string{"C now {}"}},
		"text after it":         {written: "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n\nDone. ", want: []string{"C now {}", "T Done. "}},
		"a bracket is missing":  {written: "<tool_call>\n{\"name\": \"now\", \"arguments\": {}\n</tool_call>", want: []string{"C now {}"}},
		"a bracket too many":    {written: "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}}\n</tool_call>", want: []string{"C now {}"}},
		"the end is missing":    {written: `<tool_call>{"name": "now", "arguments": {}}`, want: []string{"C now {}"}},
		"two ends":              {written: "<tool_call>{\"name\": \"now\"}</tool_call></tool_call>\nok", want: []string{"C now {}", "T ok"}},
		"no end, then another":  {written: "<tool_call>{\"name\": \"now\"}\n<tool_call>{\"name\": \"now\"}</tool_call>", want: []string{"C now {}", "C now {}"}},
		"two in one tag":        {written: "<tool_call>\n{\"name\": \"now\"}\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>", want: []string{"C now {}", `C weather {"city": "a"}`}},
		"a list in one tag":     {written: "<tool_call>\n[{\"name\": \"now\"}, {\"name\": \"now\", \"arguments\": {}}]\n</tool_call> ok", want: []string{"C now {}", "C now {}", "T ok"}},
		"a tag in a string":     {written: `<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>\u00e9\""}}</tool_call>`, want: []string{`C weather {"city": "</tool_call>\u00e9\""}`}},
		"line ends in a string": {written: hermesWeather + "{\"city\": \"a\n\tb\x01\"}}</tool_call>", want: []string{`C weather {"city": "a\n\tb\u0001"}`}},
		"an escaped quote":      {written: hermesWeather + `{"city": "it\'s"}}</tool_call>`, want: []string{`C weather {"city": "it's"}`}},
		"commas too many": {written: hermesWeather + `{"list": [1, 2, ], "city": "a",
}, }</tool_call>`, want: []string{`C weather {"list": [1, 2 ], "city": "a"` + "\n}"}},
		"integers with a point":      {written: hermesWeather + `{"days": 5.0, "share": 5.0, "of": -2.00, "any": 1.0, "rows": [{"n": 3.0, "x": 4.0}], "new": 1.0}}</tool_call>`, want: []string{`C weather {"days": 5, "share": 5.0, "of": -2, "any": 1.0, "rows": [{"n": 3, "x": 4.0}], "new": 1.0}`}},
		"constants of Python":        {written: hermesWeather + `{"exact": True, "of": None, "list": [False]}}</tool_call>`, want: []string{`C weather {"exact": true, "of": null, "list": [false]}`}},
		"tags instead of JSON":       {written: "<tool_call>\n<function=write>\n<parameter=path>\nREADME.md\n</parameter>\n<parameter=content>\nhello" + xmlClose, want: []string{wrote}},
		"no call":                    {written: "a <b> < c <tool> <function=now> \n", want: []string{"T a <b> < c <tool> <function=now> \n"}},
		"an end without a beginning": {written: "a </tool_call>b", want: []string{"T a b"}},
		"not declared":               {written: "x <tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", want: []string{`T x {"name": "rm", "arguments": {}}`}, broken: 1},
		"no JSON":                    {written: "<tool_call>weather(Paris)</tool_call>", want: []string{"T weather(Paris)"}, broken: 1},
		"one after one that is none": {written: "<tool_call>oh <tool_call>{\"name\": \"now\"}</tool_call>", want: []string{"T oh", "C now {}"}, broken: 1},
		"one in one that is none":    {written: `<tool_call>{"name": "<tool_call>{"name": "now"}</tool_call>`, want: []string{`T {"name": "`, "C now {}"}, broken: 1},
		"a tag made of two":          {written: `<tool_<tool_call>call>now`, want: []string{`T <tool_callnow`}, broken: 1},
		"arguments that are none":    {written: `<tool_call>{"name": "now", "arguments": [1]}</tool_call>`, want: []string{`T {"name": "now", "arguments": [1]}`}, broken: 1},
		"a member of no call":        {written: `<tool_call>{"name": "now", "why": 1}</tool_call>`, want: []string{`T {"name": "now", "why": 1}`}, broken: 1},
		"a comma after the name":     {written: `<tool_call>{"name": "now",}</tool_call>`, want: []string{"C now {}"}},
		"a name twice":               {written: `<tool_call>{"name": "now", "name": "weather"}</tool_call>`, want: []string{`T {"name": "now", "name": "weather"}`}, broken: 1},
		"broken in its arguments": {written: hermesWeather + `{"city": Paris}}</tool_call>`, want: []string{`T {"name": "weather", "arguments": {"city": Paris}}`}, broken: 1,
			held: []string{`B weather {"city":  | {"name": "weather", "arguments": {"city": `, "T Paris}}"}},
		"cut in its arguments": {written: hermesWeather + `{"city": "Par`, want: []string{`T {"name": "weather", "arguments": {"city": "Par`}, broken: 1,
			held: []string{`B weather {"city": "Par | {"name": "weather", "arguments": {"city": "Par`}, cut: []string{`B weather {"city": "Par | {"name": "weather", "arguments": {"city": "Par`}},
		"cut before them": {written: `<tool_call>{"name": "wea`, want: []string{`T {"name": "wea`}, broken: 1, cut: []string{`T {"name": "wea`}},
		"cut in a tag":    {written: "a\n<tool_c", want: []string{"T a\n<tool_c"}, cut: []string{"T a\n<tool_c"}},
	},
	QwenXML: {
		"a call":               {written: "I see.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", want: []string{"T I see.", `C weather {"city": "Paris", "days": 3}`}},
		"no parameters":        {written: "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call><function=now></function></tool_call>", want: []string{"C now {}", "C now {}"}},
		"no outer tag":         {written: "<function=now>\n</function>\n</tool_call>", want: []string{"C now {}"}},
		"two in one tag":       {written: "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>", want: []string{"C now {}", "C now {}"}},
		"a namespace":          {written: "<tool_call><function=functions.now></function></tool_call>", want: []string{"C now {}"}},
		"JSON instead of tags": {written: `<tool_call>{"name": "weather", "arguments": {"city": "a", "days": 2.0,}}</tool_call>`, want: []string{`C weather {"city": "a", "days": 2}`}},
		"text of many lines":   {written: xmlWeather + "\na \"b\"\n\n\t</p>\\\n" + xmlClose, want: []string{`C weather {"city": "a \"b\"\n\n\t</p>\\\n"}`}},
		"values of all types":  {written: "<tool_call><function=weather><parameter=exact>True</parameter><parameter=more>{\"a\": [1,]}</parameter><parameter=list>[1, 2]</parameter><parameter=share>2</parameter><parameter=either>null</parameter><parameter=of>4.0</parameter><parameter=true>x</parameter><parameter=rows>[{\"n\": 1.0}]</parameter></function></tool_call>", want: []string{`C weather {"exact": true, "more": {"a": [1]}, "list": [1, 2], "share": 2, "either": null, "of": 4, "true": "x", "rows": [{"n": 1}]}`}},
		"no value of its type": {written: "<tool_call><function=weather><parameter=days>three</parameter><parameter=any>5</parameter><parameter=new>[1]</parameter><parameter=either>None</parameter></function></tool_call>", want: []string{`C weather {"days": "three", "any": "5", "new": [1], "either": "None"}`}},
		"a value like a tag":   {written: xmlWeather + "</param></parameter></function></tool_call>", want: []string{`C weather {"city": "</param>"}`}},

		"a closing tag is missing":              {written: xmlWrite + "\n<parameter=content>\nhello" + xmlClose, want: []string{wrote}},
		"a closing tag is misspelt":             {written: xmlWrite + "\n</param>\n<parameter=content>\nhello" + xmlClose, want: []string{wrote}},
		"a closing tag without its end":         {written: xmlWrite + "\n</parameter\n<parameter=content>\nhello" + xmlClose, want: []string{wrote}},
		"a closing tag with the name":           {written: xmlWrite + "</path>\n<parameter=content>hello</content>\n</function>\n</tool_call>", want: []string{wrote}},
		"another tag before a parameter":        {written: xmlWrite + "</b>\n<parameter=content>\nhello" + xmlClose, want: []string{`C write {"path": "README.md</b>", "content": "hello"}`}},
		"a tag of that name in the value":       {written: xmlWrite + "<path>a</path>\n<parameter=content>\nhello" + xmlClose, want: []string{`C write {"path": "README.md<path>a</path>", "content": "hello"}`}},
		"the last closing tag is missing":       {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</function>\n</tool_call>", want: []string{wrote}},
		"the last two tags are missing":         {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</tool_call>", want: []string{wrote}},
		"that, then text":                       {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</tool_call>\nok", want: []string{wrote, "T ok"}},
		"that, then another call":               {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", want: []string{wrote, "C now {}"}},
		"that, then another in the same tag":    {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</function>\n<function=now>\n</function>\n</tool_call>", want: []string{wrote, "C now {}"}},
		"the function's end is missing":         {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</parameter>\n</tool_call>", want: []string{wrote}},
		"all ends are missing":                  {written: xmlWrite + "\n</parameter>\n<parameter=content>\nhello\n</parameter>\n", want: []string{wrote}, cut: []string{`B write {"path": "README.md", "content": "hello" | ` + "\n<function=write>\n<parameter=path>\nREADME.md\n</parameter>\n<parameter=content>\nhello\n</parameter>\n"}},
		"ends that are text":                    {written: xmlWrite + "\n</parameter>\n<parameter=content>\n</function>\n</tool_call>\nx" + xmlClose, want: []string{`C write {"path": "README.md", "content": "</function>\n</tool_call>\nx"}`}},
		"a parameter that is not declared":      {written: xmlWrite + "\n<parameter=x>\n" + xmlClose, want: []string{`C write {"path": "README.md\n<parameter=x>\n"}`}},
		"a parameter that was given":            {written: xmlWrite + "\n</parameter>\n<parameter=content>\n<parameter=path>\n" + xmlClose, want: []string{`C write {"path": "README.md", "content": "<parameter=path>\n"}`}},
		"a parameter in the middle of a line":   {written: xmlWrite + " <parameter=content>" + xmlClose, want: []string{`C write {"path": "README.md <parameter=content>"}`}},
		"a closing tag twice":                   {written: xmlWrite + "\n</parameter>\n</parameter>\n<parameter=content>\nhello" + xmlClose, want: []string{wrote}},
		"an empty value without a closing tag":  {written: "<tool_call>\n<function=write>\n<parameter=path>\n<parameter=content>\nhello" + xmlClose, want: []string{`C write {"path": "", "content": "hello"}`}},
		"a tag that is none, then a closed end": {written: xmlWrite + "\n</parameter>\n<parameter=content>\n<parameter=path" + xmlClose, want: []string{`C write {"path": "README.md", "content": "<parameter=path"}`}},

		"not declared":      {written: "<tool_call>\n<function=rm>\n</function></tool_call>", want: []string{"T \n<function=rm>\n</function>"}, broken: 1},
		"no call":           {written: "</parameter> <b></function>", want: []string{"T </parameter> <b></function>"}},
		"broken between":    {written: xmlWeather + "a</parameter><para><b>", want: []string{`T <function=weather><parameter=city>a</parameter><para><b>`}, broken: 1, held: []string{`B weather {"city": "a" | <function=weather><parameter=city>a</parameter>`, "T <para><b>"}},
		"a parameter twice": {written: xmlWeather + "a</parameter><parameter=city>", want: []string{`T <function=weather><parameter=city>a</parameter><parameter=city>`}, broken: 1, held: []string{`B weather {"city": "a" | <function=weather><parameter=city>a</parameter><parameter=city`, "T >"}},
		"cut in a value":    {written: xmlWeather + "Par", want: []string{`T <function=weather><parameter=city>Par`}, broken: 1, held: []string{`B weather {"city": "Par | <function=weather><parameter=city>Par`}, cut: []string{`B weather {"city": "Par | <function=weather><parameter=city>Par`}},
		"cut in an end":     {written: xmlWeather + "Par</function>", want: []string{`C weather {"city": "Par"}`}, cut: []string{`B weather {"city": "Par | <function=weather><parameter=city>Par</function>`}},
		"cut after an end":  {written: xmlWeather + "Par</function></tool_call>", want: []string{`C weather {"city": "Par"}`}, cut: []string{`C weather {"city": "Par"}`}},
	},
	Llama: {
		"a call":               {written: `{"name": "weather", "parameters": {"city": "Paris"}}`, want: []string{`C weather {"city": "Paris"}`}},
		"with its tag":         {written: `<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 1.0}}`, want: []string{`C weather {"city": "Paris", "days": 1}`}},
		"a type first":         {written: `{"type": "function", "name": "now", "parameters": {}}`, want: []string{"C now {}"}},
		"null for arguments":   {written: `{"name": "now", "parameters": null}`, want: []string{"C now {}"}},
		"two":                  {written: `{"name": "now", "parameters": {}}; {"name": "now", "arguments": {}}`, want: []string{"C now {}", "C now {}"}},
		"two on two lines":     {written: "{\"name\": \"now\", \"parameters\": {}}\n{\"name\": \"functions.now\"}", want: []string{"C now {}", "C now {}"}},
		"a bracket is missing": {written: `{"name": "now", "parameters": {}`, want: []string{"C now {}"}},
		"text":                 {written: "Hello {\"name\": \"now\"}", want: []string{"T Hello {\"name\": \"now\"}"}},
		"text, then a tag":     {written: "Hi\n<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", want: []string{"T Hi", "C now {}"}},
		"JSON as an answer":    {written: `{"answer": 1, "name": "now"}`, want: []string{`T {"answer": 1, "name": "now"}`}},
		"code after the tag":   {written: `<|python_tag|>print(1)`, want: []string{`T print(1)`}, broken: 1},
		"text after it":        {written: "{\"name\": \"now\", \"parameters\": {}}; or", want: []string{"C now {}", "T ; or"}},
		"a member of no call":  {written: `{"name": "now", "why": 1}`, want: []string{`T {"name": "now", "why": 1}`}, broken: 1},
		"not declared":         {written: `{"name": "rm", "parameters": {}}`, want: []string{`T {"name": "rm", "parameters": {}}`}},
	},
	Mistral: {
		"a list":                  {written: `[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}, "id": "abcdefghi"}]`, want: []string{`C weather {"city": "Paris"}`, "C now {}"}},
		"names":                   {written: `Sure.[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}`, want: []string{"T Sure.", `C weather {"city": "Paris"}`, "C now {}"}},
		"names with ids":          {written: `[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"days": 2.0}`, want: []string{`C weather {"days": 2}`}},
		"a name alone":            {written: `[TOOL_CALLS] now {}`, want: []string{"C now {}"}},
		"no arguments":            {written: `[TOOL_CALLS]now[TOOL_CALLS]now[ARGS][TOOL_CALLS]now[ARGS]null[TOOL_CALLS]functions.now[ARGS]""`, want: []string{"C now {}", "C now {}", "C now {}", "C now {}"}},
		"no list":                 {written: `[TOOL_CALLS]{"name": "now", "arguments": {}}`, want: []string{"C now {}"}},
		"no end of the list":      {written: `[TOOL_CALLS][{"name": "now", "arguments": {}},`, want: []string{"C now {}"}},
		"a comma too many":        {written: `[TOOL_CALLS][{"name": "now", "arguments": {},},]ok`, want: []string{"C now {}", "T ok"}},
		"not declared":            {written: `[TOOL_CALLS]rm[ARGS]{}`, want: []string{`T rm{}`}, broken: 1},
		"broken in a list":        {written: `[TOOL_CALLS][{"name": "now", "arguments": {}}, oh]`, want: []string{"C now {}", "T , oh]"}},
		"broken in its arguments": {written: `[TOOL_CALLS]weather[ARGS]{"city": x}`, want: []string{`T weather{"city": x}`}, broken: 1, held: []string{`B weather {"city":  | weather{"city": `, "T x}"}},
		"an empty list":           {written: `[TOOL_CALLS][]`, want: []string{`T []`}, broken: 1},
		"markers alone":           {written: `a [ARGS]b[CALL_ID]`, want: []string{`T a b`}},
	},
	Harmony: {
		"thoughts and an answer": {written: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.<|return|>", want: []string{"R Hm.", "T Yes < no."}},
		"a call":                 {written: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"Paris\",\"days\":2.0}<|call|>", want: []string{"R Hm.", `C weather {"city":"Paris","days":2}`}},
		"to= comes first":        {written: " to=functions.now<|channel|>commentary json<|message|>{} <|call|>", want: []string{"C now {}"}},
		"a preamble":             {written: "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|><|call|>", want: []string{"R I look.", "C now {}"}},
		"null":                   {written: "<|channel|>commentary to=functions.now<|message|>null<|call|>", want: []string{"C now {}"}},
		"code":                   {written: "<|channel|>commentary to=functions.python <|constrain|>code<|message|>print(\"x\")\n<|call|>", want: []string{`C python {"code": "print(\"x\")\n"}`}},
		"code without a word":    {written: "<|channel|>commentary to=functions.python<|message|>print(\"x\")<|call|>", want: []string{`C python {"code": "print(\"x\")"}`}},
		"JSON called code":       {written: "<|channel|>commentary to=functions.python <|constrain|>code<|message|>{\"code\": \"1\"}<|call|>", want: []string{`C python {"code": "1"}`}},
		"a bracket too many":     {written: "<|channel|>commentary to=functions.now<|message|>{}}<|call|>", want: []string{"C now {}"}},
		"not declared":           {written: "<|channel|>commentary to=functions.rm<|message|>{}<|call|>", want: []string{"T {}"}, broken: 1},
		"another recipient":      {written: "<|channel|>commentary to=browser.search <|constrain|>json<|message|>{\"q\": 1}<|call|>", want: []string{`T {"q": 1}`}, broken: 1},
		"no JSON":                {written: "<|channel|>commentary to=functions.now<|message|>now()<|call|>", want: []string{"T now()"}, broken: 1},
		"broken":                 {written: "<|channel|>commentary to=functions.now<|message|>{x}<|call|>", want: []string{"T {x}"}, broken: 1, held: []string{`B now { | {`, "T x}"}},
		"more after it":          {written: "<|channel|>commentary to=functions.now<|message|>{} x<|call|>", want: []string{"C now {}", "T x"}},
		"cut":                    {written: "<|channel|>commentary to=functions.now<|message|>{\"a\"", want: []string{`T {"a"`}, broken: 1, held: []string{`B now {"a" | {"a"`}, cut: []string{`B now {"a" | now{"a"`}},
		"no header":              {written: "<|message|>Yes<|en", want: []string{"T Yes<|en"}},
		"no message":             {written: "Yes.", want: []string{"T Yes."}},
		"a tag in a string":      {written: "<|channel|>commentary to=functions.weather<|message|>{\"city\": \"<|end|>\"}<|call|>", want: []string{`C weather {"city": "<|end|>"}`}},
		"tags in a message":      {written: "<|channel|>final<|message|>a<|constrain|>b<|message|>c", want: []string{"T abc"}},
	},
}

// transcriptsOf a format; MistralNamed has those of Mistral.
func transcriptsOf(f Format) map[string]transcript {
	switch f {
	case MistralNamed:
		f = Mistral
	case GLM:
		return glmTranscripts()
	case MiniMax:
		return attributeTranscripts(func(text string) string { return text })
	case DeepSeekV32:
		return attributeTranscripts(inDSML)
	case Kimi:
		return kimiTranscripts()
	case DeepSeekV3, DeepSeekV31:
		return deepTranscripts()
	case Gemma:
		return gemmaTranscripts()
	case LFM:
		return lfmTranscripts()
	}
	return transcripts[f]
}

func TestCallsOfEachFamilyAreParsed(t *testing.T) {
	for _, f := range Formats() {
		if len(transcriptsOf(f)) == 0 {
			t.Errorf("%s has no transcripts", f)
		}
		for name, c := range transcriptsOf(f) {
			p := parser(t, f, Options{})
			if d := cmp.Diff(c.want, read(p, false, c.written)); d != "" || p.Broken() != c.broken {
				t.Errorf("%s, %s: %d broken, %s", f, name, p.Broken(), d)
			}
			if c.held == nil {
				c.held = c.want
			}
			if d := cmp.Diff(c.held, read(parser(t, f, Options{Held: true}), false, c.written)); d != "" {
				t.Errorf("%s, %s, held: %s", f, name, d)
			}
			if c.cut != nil {
				if d := cmp.Diff(c.cut, read(parser(t, f, Options{}), true, c.written)); d != "" {
					t.Errorf("%s, %s, cut: %s", f, name, d)
				}
			}
		}
	}
}

func TestCallsDoNotDependOnHowTheAnswerIsSplit(t *testing.T) {
	for _, f := range Formats() {
		for name, c := range transcriptsOf(f) {
			for _, o := range []Options{{}, {Held: true}} {
				whole := read(parser(t, f, o), false, c.written)
				if d := cmp.Diff(whole, read(parser(t, f, o), false, strings.Split(c.written, "")...)); d != "" {
					t.Errorf("%s, %s, in characters: %s", f, name, d)
				}
				for i := range len(c.written) {
					if got := read(parser(t, f, o), false, c.written[:i], c.written[i:]); cmp.Diff(whole, got) != "" {
						t.Errorf("%s, %s, cut at %d: %q", f, name, i, got)
					}
				}
			}
		}
	}
}

func TestHeldCallsAreStreamed(t *testing.T) {
	for f, begun := range map[Format]string{
		Hermes:  `<tool_call>{"name": "weather", "arguments": {"city": "Par`,
		QwenXML: "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
		Llama:   `{"name": "weather", "parameters": {"city": "Par`,
		Mistral: `[TOOL_CALLS]weather[ARGS]{"city": "Par`,
		Harmony: `<|channel|>commentary to=functions.weather<|message|>{"city": "Par`,

		GLM:         "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par",
		MiniMax:     "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Par",
		DeepSeekV32: "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Par",
		Kimi:        kimiWeather + `{"city": "Par`,
		Gemma:       `<|tool_call>call:weather{city: <|"|>Par`,
		LFM:         "<|tool_call_start|>[weather(city= 'Par",
		DeepSeekV3:  oldWeather + `{"city": "Par`,
		DeepSeekV31: deepWeather + `{"city": "Par`,
	} {
		p := parser(t, f, Options{Held: true})
		want := []Event{{Kind: Begin, Text: "weather"}, {Kind: Arguments, Text: `{"city": "Par`}}
		if d := cmp.Diff(want, p.Push(begun)); d != "" || !p.Inside() {
			t.Errorf("%s: %s", f, d)
		}
	}
}

// A vocabulary with control tokens has two spellings of a marker, and only one is a marker.
func TestMarkersOfTheVocabularyAreNotTheirLetters(t *testing.T) {
	tokens := Options{Tokens: []string{mistralCalls, mistralArgs}}
	for name, c := range map[string]struct {
		written string
		want    []string
	}{
		"tokens":                 {written: Mistral.Mark(mistralCalls) + "now" + Mistral.Mark(mistralArgs) + "{}", want: []string{"C now {}"}},
		"letters":                {written: "usage: now [ARGS] or [TOOL_CALLS]now[ARGS]{}", want: []string{"T usage: now [ARGS] or [TOOL_CALLS]now[ARGS]{}"}},
		"a token in a string":    {written: Mistral.Mark(mistralCalls) + "weather" + Mistral.Mark(mistralArgs) + `{"city": "` + Mistral.Mark(mistralArgs) + `"}`, want: []string{`C weather {"city": "[ARGS]"}`}},
		"a token in an argument": {written: Mistral.Mark(mistralCalls) + "weather" + Mistral.Mark(mistralArgs) + `{"city": "` + Mistral.Mark(mistralCalls), want: []string{`T weather{"city": "`}},
	} {
		if d := cmp.Diff(c.want, read(parser(t, Mistral, tokens), false, c.written)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if Mistral.Mark("<tool_call>") != "" {
		t.Error("a text that is no marker has a mark")
	}
}

func TestToolsThatCannotBeReadAreRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"no list":      `{}`,
		"no name":      `[{"type":"function","function":{}}]`,
		"a name twice": `[{"function":{"name":"a"}},{"function":{"name":"a"}}]`,
		"odd names":    `[{"function":{"name":5}}]`,
	} {
		_, err := ReadTools([]byte(raw))
		if err == nil || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(None, nil, Options{}); err == nil {
		t.Error("a format that is none has a parser")
	}
}

// Any schema is read, and helps as far as it can be read.
func TestAnySchemaOfAToolIsRead(t *testing.T) {
	for name, schema := range map[string]string{
		"a boolean property": `{"type":"object","properties":{"a":true,"n":{"type":"integer"}}}`,
		"odd types":          `{"properties":{"a":{"type":5},"n":{"type":["integer",null,7]}}}`,
		"a list of items":    `{"properties":{"a":{"items":[true,{"type":"x"}]},"n":{"enum":[1,2]}}}`,
		"a reference":        `{"$defs":{"n":{"$ref":"#/$defs/m"},"m":{"const":3}},"properties":{"n":{"$ref":"#/$defs/n"},"a":{"$ref":"#/$defs/none/1"}}}`,
		"a cycle":            `{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}},"properties":{"a":{"$ref":"#/$defs/a"},"n":{"allOf":[{},{"type":"integer"}]}}}`,
		"nullable":           `{"properties":{"n":{"type":"integer","nullable":true},"a":{"nullable":1}}}`,
		"alternatives":       `{"anyOf":[{"properties":{"n":{"oneOf":[{"type":"integer"},{"type":"null"}]}}},false,null,5]}`,
	} {
		all, err := ReadTools([]byte(`[{"function":{"name":"f","parameters":` + schema + `}}]`))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := New(Hermes, all, Options{})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`C f {"a": [1.0, {"b": 2.0}], "n": 3}`}
		if d := cmp.Diff(want, read(p, false, `<tool_call>{"name": "f", "arguments": {"a": [1.0, {"b": 2.0}], "n": 3.0}}</tool_call>`)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestTheFormatIsReadInWhatATemplateWrites(t *testing.T) {
	const definition = "A tool that is looked for.\n"
	for name, c := range map[string]struct {
		written string
		want    Format
	}{
		"Qwen":                     {written: definition + "<tool_call>\n{\"name\": \"probe_function\", \"arguments\": {\"probe_argument\": \"probe value\"}}\n</tool_call>", want: Hermes},
		"Hermes 2":                 {written: definition + "<tool_call>\n{\"arguments\": {\"probe_argument\": \"probe value\"}, \"name\": \"probe_function\"}\n</tool_call>", want: Hermes},
		"Qwen3-Coder":              {written: definition + "<tool_call>\n<function=probe_function>\n<parameter=probe_argument>\nprobe value\n</parameter>\n</function>\n</tool_call>", want: QwenXML},
		"Llama":                    {written: definition + `<|start_header_id|>assistant<|end_header_id|>` + "\n\n" + `{"name": "probe_function", "parameters": {"probe_argument": "probe value"}}<|eot_id|>`, want: Llama},
		"Mistral":                  {written: definition + `[TOOL_CALLS] [{"name": "probe_function", "arguments": {"probe_argument": "probe value"}, "id": "call00001"}]`, want: Mistral},
		"Mistral, newer":           {written: definition + `[TOOL_CALLS]probe_function[CALL_ID]call00001[ARGS]{"probe_argument": "probe value"}`, want: MistralNamed},
		"GPT-OSS":                  {written: definition + `<|start|>assistant to=functions.probe_function<|channel|>commentary json<|message|>{"probe_argument": "probe value"}<|call|>`, want: Harmony},
		"GLM-4.6":                  {written: definition + "<tool_call>probe_function\n<arg_key>probe_argument</arg_key>\n<arg_value>probe value</arg_value>\n</tool_call>", want: GLM},
		"GLM-4.7":                  {written: definition + "<tool_call>probe_function<arg_key>probe_argument</arg_key><arg_value>probe value</arg_value></tool_call>", want: GLM},
		"MiniMax M2":               {written: definition + "<minimax:tool_call>\n<invoke name=\"probe_function\">\n<parameter name=\"probe_argument\">probe value</parameter>\n</invoke>\n</minimax:tool_call>", want: MiniMax},
		"DeepSeek V3.2":            {written: definition + "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"probe_function\">\n<｜DSML｜parameter name=\"probe_argument\" string=\"true\">probe value</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", want: DeepSeekV32},
		"Kimi K2":                  {written: definition + "<|tool_calls_section_begin|><|tool_call_begin|>functions.probe_function:0<|tool_call_argument_begin|>{\"probe_argument\": \"probe value\"}<|tool_call_end|><|tool_calls_section_end|>", want: Kimi},
		"DeepSeek V3":              {written: definition + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>probe_function\n```json\n{\"probe_argument\": \"probe value\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", want: DeepSeekV3},
		"DeepSeek V3.1":            {written: definition + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>probe_function<｜tool▁sep｜>{\"probe_argument\": \"probe value\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", want: DeepSeekV31},
		"Gemma 4":                  {written: definition + "<|tool_call>call:probe_function{probe_argument:<|\"|>probe value<|\"|>}<tool_call|>", want: Gemma},
		"LFM2":                     {written: definition + "<|tool_call_start|>[probe_function(probe_argument=\"probe value\")]<|tool_call_end|>", want: LFM},
		"another way":              {written: definition + "<call>probe_function(probe_argument=\"probe value\")</call>", want: None},
		"no definition":            {written: "<tool_call>\n{\"name\": \"probe_function\", \"arguments\": {\"probe_argument\": \"probe value\"}}\n</tool_call>", want: None},
		"a definition and no call": {written: definition + "<tool_call>{\"name\": <function-name>, \"arguments\": <args>}</tool_call>", want: None},
	} {
		if got := Detect(t.Context(), c.written); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	messages, definitions := Probe()
	if !json.Valid(messages) || !json.Valid(definitions) || !strings.Contains(string(definitions), probeDescription) {
		t.Errorf("the probe is no JSON: %s %s", messages, definitions)
	}
}
