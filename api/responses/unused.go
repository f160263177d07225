package responses

import "metalfleet.dev/metalfleet/api/openai"

const (
	whyEcho   = "clients send it back from an earlier response"
	whyPrompt = "a prompt is answered as a whole"
)

// Unused lists the fields without effect.
func Unused() []openai.Place {
	return []openai.Place{
		{Unused: requestUnused}, {Path: "stream_options", Unused: streamUnused}, {Path: "text", Unused: textUnused}, {Path: "reasoning", Unused: reasoningUnused},
		{Path: "input[]", Type: ItemMessage, Unused: messageUnused}, {Path: "input[]", Type: ItemReasoning, Unused: thoughtUnused},
		{Path: "input[]", Type: ItemCall, Unused: callUnused}, {Path: "input[]", Type: ItemCustomCall, Unused: callUnused},
		{Path: "input[]", Type: ItemOutput, Unused: outputUnused}, {Path: "input[]", Type: ItemCustomOutput, Unused: outputUnused},
		{Path: "input[].content[]", Unused: partUnused},
		{Path: "tools[]", Type: toolFunction, Unused: toolUnused}, {Path: "tools[]", Type: toolCustom, Unused: toolUnused},
	}
}

// requestUnused are the fields of POST /v1/responses without effect.
var requestUnused = []openai.Unused{
	{Name: "client_metadata", Why: openai.WhyLabel, Foreign: true},
	{Name: "context_management", Why: whyPrompt, Neutral: []string{"[]"}},
	{Name: "max_tool_calls", Why: "limits tools of OpenAI's servers, which are left out"},
	{Name: "prompt_cache_options", Why: openai.WhyCache},
	{Name: "prompt_cache_retention", Why: openai.WhyCache},
	{Name: "safety_identifier", Why: openai.WhyService},
	{Name: "service_tier", Why: openai.WhyService, Neutral: []string{`"auto"`, `"default"`}},

	{Name: "conversation", Why: "there are no stored conversations; continue a response with previous_response_id", Refused: true},
	{Name: "moderation", Why: "there is no moderation", Refused: true},
	{Name: "prompt", Why: "there are no stored prompts", Refused: true},
}

// streamUnused are members of stream_options, textUnused of text.
var (
	streamUnused = []openai.Unused{{Name: "include_obfuscation", Why: "adds nothing to the text of an answer", Neutral: []string{"false"}}}
	textUnused   = []openai.Unused{
		{Name: "verbosity", Why: "a hint that no chat template reads", Neutral: []string{`"medium"`}},
	}
)

// reasoningUnused are members of reasoning.
var reasoningUnused = []openai.Unused{
	{Name: "summary", Why: "reasoning is returned in full"},
	{Name: "generate_summary", Why: "reasoning is returned in full"},
	{Name: "context", Why: "not supported", Neutral: []string{`"auto"`}, Refused: true},
	{Name: "mode", Why: "not supported", Neutral: []string{`"standard"`}, Refused: true},
}

// messageUnused, callUnused, outputUnused and thoughtUnused are members of
// items, by their type.
var (
	messageUnused = []openai.Unused{{Name: "phase", Why: whyEcho}}
	callUnused    = []openai.Unused{
		{Name: "caller", Why: whyEcho},
		{Name: "async", Why: "not supported", Neutral: []string{"false"}, Refused: true},
	}
	outputUnused = []openai.Unused{
		{Name: "caller", Why: whyEcho},
		{Name: "namespace", Why: whyEcho},
		{Name: "name", Why: whyEcho},
	}
	// Encrypted reasoning of other servers cannot be read, and a summary does not
	// replace the reasoning.
	thoughtUnused = []openai.Unused{
		{Name: "summary", Why: whyEcho, Neutral: []string{"[]"}},
		{Name: "encrypted_content", Why: "only the server that wrote it can read it"},
	}
)

// partUnused are members of a content part.
var partUnused = []openai.Unused{
	{Name: "annotations", Why: whyEcho, Neutral: []string{"[]"}},
	{Name: "logprobs", Why: whyEcho, Neutral: []string{"[]"}},
}

// toolUnused are members of a function or a custom tool.
var toolUnused = []openai.Unused{
	{Name: "defer_loading", Why: "a tool is shown to the model as it is declared", Neutral: []string{"false"}},
	{Name: "allowed_callers", Why: "only the model calls tools", Neutral: []string{`["direct"]`}},
	{Name: "output_schema", Why: "no chat template shows it"},
	{Name: "async", Why: "not supported", Neutral: []string{"false"}, Refused: true},
}
