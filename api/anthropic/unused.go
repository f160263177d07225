package anthropic

import (
	"encoding/json"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	whyAsked    = "does not change the number of prompt tokens"
	whyLoaded   = "a tool is shown to the model as it is declared"
	whyDisplay  = "thinking is returned as the model writes it"
	whyEdits    = "a prompt is answered as a whole"
	whyEcho     = "clients send it back from an earlier answer"
	whyNoServer = "nothing is run on the server"
)

// UnusedOfMessages and UnusedOfCounts list the fields of each route without
// effect.
func UnusedOfMessages() []openai.Place {
	return append([]openai.Place{{Unused: messageUnused}}, promptPlaces()...)
}

// UnusedOfCounts is described with UnusedOfMessages.
func UnusedOfCounts() []openai.Place {
	return append([]openai.Place{{Unused: countUnused}}, promptPlaces()...)
}

func promptPlaces() []openai.Place {
	return []openai.Place{
		{Unused: promptUnused}, {Path: "thinking", Unused: thinkingUnused}, {Path: "output_config", Unused: outputUnused}, {Path: "messages[]", Unused: turnUnused},
		{Path: "system[]", Unused: blockCache}, {Path: "messages[].content[]", Unused: blockCache},
		{Path: "messages[].content[]", Type: BlockText, Unused: blockUnused[BlockText]},
		{Path: "messages[].content[]", Type: BlockToolUse, Unused: blockUnused[BlockToolUse]},
		{Path: "messages[].content[].content[]", Unused: blockCache}, {Path: "tools[]", Unused: toolUnused}, {Path: "tools[]", Unused: blockCache},
	}
}

// promptUnused are the fields of both routes without effect.
var promptUnused = []openai.Unused{
	{Name: "cache_control", Why: openai.WhyCache, Strict: cacheControl},
	{Name: "speed", Why: openai.WhyService, Neutral: []string{`"standard"`}, Foreign: true},
	{Name: "diagnostics", Why: openai.WhyService, Foreign: true},
	{Name: "betas", Why: openai.WhyService, Neutral: []string{"[]"}, Foreign: true},
	{Name: "anthropic_version", Why: openai.WhyService, Foreign: true},
	{Name: "anthropic_beta", Why: openai.WhyService, Neutral: []string{"[]"}, Foreign: true},
	{Name: "user_profile_id", Why: openai.WhyLabel, Foreign: true},

	{Name: "thread", Why: "send the whole conversation", Refused: true},
	{Name: "mcp_servers", Why: whyNoServer, Neutral: []string{"[]"}, Refused: true},
}

// messageUnused are the fields of POST /v1/messages without effect.
var messageUnused = []openai.Unused{
	{Name: "metadata", Why: openai.WhyLabel, Neutral: []string{"{}"}, Strict: metadata},
	{Name: "service_tier", Why: openai.WhyService, Neutral: []string{`"auto"`, `"standard_only"`}},
	{Name: "inference_geo", Why: openai.WhyService},
	{Name: "context_management", Why: whyEdits},

	{Name: "container", Why: whyNoServer, Neutral: []string{"{}", `""`}, Refused: true},
	{Name: "fallbacks", Why: "routes of a ModelDeployment choose other models", Neutral: []string{"[]"}, Refused: true, Foreign: true},
}

// countUnused are the fields of POST /v1/messages that counting leaves out.
var countUnused = []openai.Unused{
	{Name: "max_tokens", Why: whyAsked, Foreign: true},
	{Name: "stop_sequences", Why: whyAsked, Foreign: true},
	{Name: "stream", Why: whyAsked, Foreign: true},
	{Name: "temperature", Why: whyAsked, Foreign: true},
	{Name: "top_p", Why: whyAsked, Foreign: true},
	{Name: "top_k", Why: whyAsked, Foreign: true},
	{Name: "metadata", Why: whyAsked, Foreign: true},
	{Name: "service_tier", Why: whyAsked, Foreign: true},
	{Name: "inference_geo", Why: whyAsked, Foreign: true},
	{Name: "context_management", Why: whyEdits, Foreign: true},
	{Name: "container", Why: whyAsked, Neutral: []string{"{}", `""`}, Foreign: true},
	{Name: "fallbacks", Why: whyAsked, Neutral: []string{"[]"}, Foreign: true},
}

// outputUnused are members of output_config.
var outputUnused = []openai.Unused{
	{Name: "task_budget", Why: openai.WhyBudget, Foreign: true},
}

// turnUnused are members of a message.
var turnUnused = []openai.Unused{
	{Name: "id", Why: whyEcho, Foreign: true},
	{Name: "cache_control", Why: openai.WhyCache, Foreign: true},
}

// blockUnused are members of content blocks, by the type of the block;
// blockCache those of all blocks and tools.
var (
	blockUnused = map[string][]openai.Unused{
		BlockText:    {{Name: "citations", Why: whyEcho, Neutral: []string{"[]"}}},
		BlockToolUse: {{Name: "caller", Why: whyEcho, Neutral: []string{`{"type":"direct"}`}}},
	}
	blockCache = []openai.Unused{{Name: "cache_control", Why: openai.WhyCache, Strict: cacheControl}}
)

// thinkingUnused are members of thinking.
var thinkingUnused = []openai.Unused{
	{Name: "budget_tokens", Why: openai.WhyBudget},
	{Name: "display", Why: whyDisplay, Foreign: true},
}

// toolUnused are members of a tool.
var toolUnused = []openai.Unused{
	{Name: "eager_input_streaming", Why: "arguments are always streamed as they are written", Foreign: true},
	{Name: "defer_loading", Why: whyLoaded, Neutral: []string{"false"}, Foreign: true},
	{Name: "input_examples", Why: "no chat template shows examples", Neutral: []string{"[]"}, Foreign: true},
	{Name: "allowed_callers", Why: "only the model calls tools", Neutral: []string{`["direct"]`}, Foreign: true},
}

// cacheControl is what strict decoding accepts as a cache breakpoint.
func cacheControl(param string, raw json.RawMessage) error {
	kind, ttl := "", "5m"
	strict := openai.Decoder{Strict: true}
	err := strict.Object(raw, param, map[string]openai.Field{"type": openai.String(&kind), "ttl": openai.Optional(openai.String(&ttl))})
	switch {
	case err != nil:
		return err
	case kind != "ephemeral":
		return openai.Invalid(param+".type", "'%s.type' must be ephemeral, not '%s'.", param, openai.Shorten(kind))
	case ttl != "5m" && ttl != "1h":
		return openai.Invalid(param+".ttl", "'%s.ttl' must be 5m or 1h, not '%s'.", param, openai.Shorten(ttl))
	}
	return nil
}

// metadata is what strict decoding accepts as metadata.
func metadata(param string, raw json.RawMessage) error {
	strict := openai.Decoder{Strict: true}
	return strict.Object(raw, param, map[string]openai.Field{"user_id": openai.Optional(openai.String(new(string)))})
}
