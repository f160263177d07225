package toolcall

import (
	"bytes"
	"context"
	"regexp"
	"strings"

	"metalfleet.dev/metalfleet/metal/chat"
)

// Names that are looked for in what a template writes.
const (
	probeFunction    = "probe_function"
	probeDescription = "A tool that is looked for."
)

// Probe is a conversation with a tool call, and the definition of that tool,
// both as JSON. A template's rendering of it shows the format of calls.
func Probe() (messages, tools []byte) {
	return []byte(`[{"role":"user","content":"first"},` +
			`{"role":"assistant","content":"","tool_calls":[{"id":"call00001","type":"function","function":{"name":"` + probeFunction + `","arguments":{"probe_argument":"probe value"}}}]},` +
			`{"role":"tool","tool_call_id":"call00001","name":"` + probeFunction + `","content":"done"}]`),
		[]byte(`[{"type":"function","function":{"name":"` + probeFunction + `","description":"` + probeDescription + `",` +
			`"parameters":{"type":"object","properties":{"probe_argument":{"type":"string","description":"A value."}},"required":["probe_argument"]}}}]`)
}

// ProbeText is the conversation of Probe for templates that take the arguments of calls as
// JSON text.
func ProbeText() (messages []byte) {
	messages, _ = Probe()
	return bytes.Replace(messages, []byte(`{"probe_argument":"probe value"}`), []byte(`"{\"probe_argument\": \"probe value\"}"`), 1)
}

// FormatOf renders the probe with the templates of a model and returns the format of tool
// calls in it; None if the templates cannot render a conversation with calls. asText is set
// if they take the arguments of calls as JSON text, not as objects. The error is that of
// ctx.
func FormatOf(ctx context.Context, t *chat.Templates, o chat.Options) (f Format, asText bool, err error) {
	messages, tools := Probe()
	o.Tools = tools
	for i, probe := range [][]byte{messages, ProbeText()} {
		turns, err := chat.ParseMessages(probe)
		if err != nil {
			return None, false, err
		}
		if written, err := t.Render(ctx, turns, o); err == nil {
			return Detect(ctx, written), i == 1, ctx.Err()
		}
	}
	return None, false, ctx.Err()
}

// shapes of a call in what a template wrote.
var shapes = []struct {
	format Format
	shape  *regexp.Regexp
}{
	{QwenXML, regexp.MustCompile(`<tool_call>\s*<function=probe_function>\s*<parameter=probe_argument>\s*probe value\s*</parameter>\s*</function>\s*</tool_call>`)},
	{Hermes, regexp.MustCompile(`<tool_call>\s*\{\s*"name":\s*"probe_function",\s*"arguments":\s*\{"probe_argument":\s*"probe value"\}\s*\}\s*</tool_call>`)},
	{Hermes, regexp.MustCompile(`<tool_call>\s*\{\s*"arguments":\s*\{"probe_argument":\s*"probe value"\},\s*"name":\s*"probe_function"\s*\}\s*</tool_call>`)},
	{GLM, regexp.MustCompile(`<tool_call>\s*probe_function\s*<arg_key>\s*probe_argument\s*</arg_key>\s*<arg_value>\s*probe value\s*</arg_value>\s*</tool_call>`)},
	{MiniMax, regexp.MustCompile(`<minimax:tool_call>\s*<invoke name="probe_function">\s*<parameter name="probe_argument">\s*probe value\s*</parameter>\s*</invoke>\s*</minimax:tool_call>`)},
	{DeepSeekV32, regexp.MustCompile(`<｜DSML｜function_calls>\s*<｜DSML｜invoke name="probe_function">\s*<｜DSML｜parameter name="probe_argument" string="true">probe value</｜DSML｜parameter>\s*</｜DSML｜invoke>\s*</｜DSML｜function_calls>`)},
	{Kimi, regexp.MustCompile(`<\|tool_call_begin\|>\s*[^<]*<\|tool_call_argument_begin\|>\s*\{"probe_argument":\s*"probe value"\}\s*<\|tool_call_end\|>`)},
	{DeepSeekV3, regexp.MustCompile("<｜tool▁call▁begin｜>function<｜tool▁sep｜>probe_function\\s*```json\\s*\\{\"probe_argument\":\\s*\"probe value\"\\}\\s*```\\s*<｜tool▁call▁end｜>")},
	{DeepSeekV31, regexp.MustCompile(`<｜tool▁call▁begin｜>probe_function<｜tool▁sep｜>\s*\{"probe_argument":\s*"probe value"\}\s*<｜tool▁call▁end｜>`)},
	{Gemma, regexp.MustCompile(`<\|tool_call>call:probe_function\{probe_argument:<\|"\|>probe value<\|"\|>\}<tool_call\|>`)},
	{LFM, regexp.MustCompile(`<\|tool_call_start\|>\[probe_function\(probe_argument=['"]probe value['"]\)\]<\|tool_call_end\|>`)},
	{Mistral, regexp.MustCompile(`\[TOOL_CALLS\]\s*\[\s*\{[^{}]*"probe_function"[^{}]*"arguments":\s*\{"probe_argument":\s*"probe value"\}`)},
	{MistralNamed, regexp.MustCompile(`\[TOOL_CALLS\]\s*probe_function(\[CALL_ID\]\w+)?(\[ARGS\])?\s*\{"probe_argument":\s*"probe value"\}`)},
	{Harmony, regexp.MustCompile(`to=functions\.probe_function[^{}]*<\|message\|>\s*\{"probe_argument":\s*"probe value"\}`)},
	{Llama, regexp.MustCompile(`(<\|end_header_id\|>|<\|python_tag\|>)\s*\{"name":\s*"probe_function",\s*"parameters":\s*\{"probe_argument":\s*"probe value"\}\}`)},
}

// maxSearched is how much of a rendered probe is searched; real ones have a few KiB.
const maxSearched = 1 << 20

// Detect returns the format of tool calls of the template that rendered the
// probe as written; None if the format is unknown, the template left out the
// definition of the tool, or ctx ended.
func Detect(ctx context.Context, written string) Format {
	written = written[:min(len(written), maxSearched)]
	// Templates format definitions differently, but all include the tool's
	// description.
	if !strings.Contains(written, probeDescription) {
		return None
	}
	for _, s := range shapes {
		if ctx.Err() != nil {
			return None
		}
		if s.shape.MatchString(written) {
			return s.format
		}
	}
	return None
}
