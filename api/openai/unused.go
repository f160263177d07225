package openai

import "encoding/json"

// Reasons why a field cannot change an answer.
const (
	WhyCache   = "prompts are always cached while there is memory"
	WhyLabel   = "a label for the sender's own use"
	WhyService = "concerns only the vendor's service"
	WhyBudget  = "the model decides how long it thinks"
	WhyDetail  = "the model's own processor chooses the resolution"
	whyLoading = "memory and context length are set in the ModelDeployment"
	whyBackend = "there is one implementation"
	whyExtra   = "adds nothing to the text of an answer"
	whyEcho    = "clients send it back from an earlier answer"
)

// Reasons why a field is refused.
const (
	whySampler = "this way of sampling is not supported"
	whyTokens  = "the text of an answer has no special tokens"
	whyPrompt  = "the model's own chat template and tokenizer make the prompt"
	whyMedia   = "answers are text"
)

// UnusedOfChats, UnusedOfCompletions and UnusedOfEmbeddings list the fields
// without effect of each route.
func UnusedOfChats() []Place {
	return []Place{
		{Unused: chatUnused}, {Unused: textUnused}, {Path: "stream_options", Unused: streamUnused}, {Path: "structured_outputs", Unused: structuredUnused},
		{Path: "thinking", Unused: thinkingUnused}, {Path: "reasoning", Unused: reasoningUnused},
		{Path: "messages[]", Unused: messageUnused}, {Path: "messages[].content[]", Unused: partUnused}, {Path: "messages[].content[].image_url", Unused: imageUnused},
		{Path: "tools[]", Unused: toolUnused}, {Path: "tools[].function", Unused: functionUnused},
	}
}

// UnusedOfCompletions is described with UnusedOfChats.
func UnusedOfCompletions() []Place {
	return []Place{{Unused: completionUnused}, {Unused: textUnused}, {Path: "stream_options", Unused: streamUnused}, {Path: "structured_outputs", Unused: structuredUnused}}
}

// UnusedOfEmbeddings is described with UnusedOfChats.
func UnusedOfEmbeddings() []Place { return []Place{{Unused: embeddingUnused}} }

// chatUnused are the fields of POST /v1/chat/completions without effect.
var chatUnused = []Unused{
	{Name: "metadata", Why: WhyLabel, Neutral: []string{"{}"}},
	{Name: "store", Why: "chat completions are not stored", Neutral: []string{"false"}},
	{Name: "service_tier", Why: WhyService, Neutral: []string{`"auto"`, `"default"`}},
	{Name: "safety_identifier", Why: WhyService},
	{Name: "prompt_cache_options", Why: WhyCache},
	{Name: "prompt_cache_retention", Why: WhyCache},
	{Name: "verbosity", Why: "a hint that no chat template reads", Neutral: []string{`"medium"`}},
	{Name: "prediction", Why: "makes an answer faster, not different"},

	{Name: "functions", Why: "superseded by tools", Neutral: []string{"[]"}, Refused: true},
	{Name: "function_call", Why: "superseded by tool_choice", Neutral: []string{`"none"`, `"auto"`}, Refused: true},
	{Name: "modalities", Why: whyMedia, Neutral: []string{`["text"]`}, Refused: true},
	{Name: "audio", Why: whyMedia, Refused: true},
	{Name: "web_search_options", Why: "there is no web search", Refused: true},
	{Name: "moderation", Why: "there is no moderation", Refused: true},

	{Name: "echo", Why: "only completions return their prompt", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "best_of", Why: whySampler, Neutral: []string{"1"}, Refused: true, Foreign: true},
	{Name: "separate_reasoning", Why: "reasoning is always separate from the content", Neutral: []string{"true"}, Refused: true, Foreign: true},
	{Name: "add_generation_prompt", Why: whyPrompt, Neutral: []string{"true"}, Refused: true, Foreign: true},
	{Name: "thinking_budget", Why: WhyBudget, Foreign: true},
	{Name: "reasoning_budget", Why: WhyBudget, Neutral: []string{"-1"}, Foreign: true},
	{Name: "reasoning_format", Why: "reasoning is always separate from the content", Neutral: []string{`"auto"`, `"deepseek"`}, Refused: true, Foreign: true},
	{Name: "continue_final_message", Why: whyPrompt, Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "chat_template", Why: whyPrompt, Refused: true, Foreign: true},
	{Name: "documents", Why: whyPrompt, Neutral: []string{"[]"}, Refused: true, Foreign: true},
	{Name: "add_special_tokens", Why: whyPrompt, Neutral: []string{"false"}, Refused: true, Foreign: true},
}

// completionUnused are the fields of POST /v1/completions without effect.
var completionUnused = []Unused{
	{Name: "suffix", Why: "models do not fill in the middle of a text", Neutral: []string{`""`}, Refused: true},
	{Name: "best_of", Why: whySampler, Neutral: []string{"1"}, Refused: true},

	{Name: "metadata", Why: WhyLabel, Neutral: []string{"{}"}, Foreign: true},
	{Name: "store", Why: "completions are not stored", Neutral: []string{"false"}, Foreign: true},
	{Name: "service_tier", Why: WhyService, Neutral: []string{`"auto"`, `"default"`}, Foreign: true},
	{Name: "safety_identifier", Why: WhyService, Foreign: true},
	{Name: "add_special_tokens", Why: whyPrompt, Neutral: []string{"true"}, Refused: true, Foreign: true},
}

// textUnused are the fields of both text routes without effect: those of other
// servers, but for the first one.
var textUnused = []Unused{
	{Name: "user", Why: WhyLabel, Strict: anyString},

	{Name: "cache_prompt", Why: WhyCache, Neutral: []string{"true"}, Foreign: true},
	{Name: "session_id", Why: WhyLabel, Foreign: true},
	{Name: "request_id", Why: WhyLabel, Foreign: true},
	{Name: "timings_per_token", Why: whyExtra, Neutral: []string{"false"}, Foreign: true},
	{Name: "num_ctx", Why: whyLoading, Foreign: true},
	{Name: "keep_alive", Why: whyLoading, Foreign: true},
	{Name: "ttl", Why: whyLoading, Foreign: true},
	{Name: "options", Why: "options of Ollama's own API; the names of this API apply", Neutral: []string{"{}"}, Foreign: true},
	{Name: "id_slot", Why: whyBackend, Neutral: []string{"-1"}, Foreign: true},
	{Name: "guided_decoding_backend", Why: whyBackend, Foreign: true},
	{Name: "vllm_xargs", Why: whyBackend, Neutral: []string{"{}"}, Foreign: true},
	{Name: "kv_transfer_params", Why: whyBackend, Foreign: true},

	{Name: "skip_special_tokens", Why: whyTokens, Neutral: []string{"true"}, Refused: true, Foreign: true},
	{Name: "spaces_between_special_tokens", Why: whyTokens, Neutral: []string{"true"}, Refused: true, Foreign: true},
	{Name: "include_stop_str_in_output", Why: "a stop string is not part of an answer", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "return_token_ids", Why: "answers are text", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "return_tokens_as_token_ids", Why: "answers are text", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "prompt_logprobs", Why: "not supported", Refused: true, Foreign: true},
	{Name: "truncate_prompt_tokens", Why: "a prompt is answered as a whole", Refused: true, Foreign: true},
	{Name: "allowed_token_ids", Why: whySampler, Refused: true, Foreign: true},
	{Name: "bad_words", Why: whySampler, Neutral: []string{"[]"}, Refused: true, Foreign: true},
	{Name: "logits_processors", Why: whySampler, Neutral: []string{"[]"}, Refused: true, Foreign: true},
	{Name: "use_beam_search", Why: whySampler, Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "length_penalty", Why: whySampler, Neutral: []string{"1"}, Refused: true, Foreign: true},
	{Name: "typical_p", Why: whySampler, Neutral: []string{"1"}, Refused: true, Foreign: true},
	{Name: "mirostat", Why: whySampler, Neutral: []string{"0"}, Refused: true, Foreign: true},
	{Name: "dynatemp_range", Why: whySampler, Neutral: []string{"0"}, Refused: true, Foreign: true},
	{Name: "dry_multiplier", Why: whySampler, Neutral: []string{"0"}, Refused: true, Foreign: true},
	{Name: "xtc_probability", Why: whySampler, Neutral: []string{"0"}, Refused: true, Foreign: true},
	{Name: "guided_whitespace_pattern", Why: "white space of structured output is fixed", Refused: true, Foreign: true},
	{Name: "regex", Why: "use structured_outputs", Refused: true, Foreign: true},
	{Name: "ebnf", Why: "use structured_outputs", Refused: true, Foreign: true},
}

// streamUnused are members of stream_options.
var streamUnused = []Unused{
	{Name: "include_obfuscation", Why: whyExtra, Neutral: []string{"false"}},
}

// thinkingUnused are members of thinking, reasoningUnused of reasoning.
var (
	thinkingUnused = []Unused{
		{Name: "budget_tokens", Why: WhyBudget, Foreign: true},
		{Name: "clear_thinking", Why: "the chat template decides which reasoning of earlier turns it shows", Foreign: true},
	}
	reasoningUnused = []Unused{
		{Name: "max_tokens", Why: WhyBudget, Foreign: true},
		{Name: "summary", Why: "reasoning is returned in full", Foreign: true},
	}
)

// messageUnused are members of a message.
var messageUnused = []Unused{
	{Name: "annotations", Why: whyEcho, Neutral: []string{"[]"}},
	// LiteLLM's clients send back members of a response that have no field of
	// their own.
	{Name: "provider_specific_fields", Why: whyEcho, Neutral: []string{"{}", `{"refusal":null}`}},
	{Name: "id", Why: whyEcho, Foreign: true},
	{Name: "timestamp", Why: WhyLabel, Foreign: true},
	{Name: "reasoning_details", Why: whyEcho, Neutral: []string{"[]"}, Foreign: true},
	{Name: "thinking_blocks", Why: whyEcho, Neutral: []string{"[]"}, Foreign: true},
	{Name: "cache_control", Why: WhyCache, Foreign: true},

	{Name: "refusal", Why: "no chat template has a place for it", Refused: true},
	{Name: "audio", Why: whyMedia, Refused: true},
	{Name: "function_call", Why: "superseded by tool_calls", Refused: true},
}

// partUnused are members of a content part.
var partUnused = []Unused{
	{Name: "cache_control", Why: WhyCache, Foreign: true},
}

// toolUnused are members of a tool, functionUnused those of its function.
var (
	toolUnused     = []Unused{{Name: "cache_control", Why: WhyCache, Foreign: true}}
	functionUnused = []Unused{{Name: "cache_control", Why: WhyCache, Foreign: true}}
)

// structuredUnused are members of structured_outputs.
var structuredUnused = []Unused{
	{Name: "disable_fallback", Why: whyBackend, Foreign: true},
	{Name: "disable_any_whitespace", Why: "white space of structured output is fixed", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "disable_additional_properties", Why: "the schema decides", Neutral: []string{"false"}, Refused: true, Foreign: true},
	{Name: "whitespace_pattern", Why: "white space of structured output is fixed", Refused: true, Foreign: true},
	{Name: "structural_tag", Why: "not supported", Refused: true, Foreign: true},
}

// embeddingUnused are the fields of POST /v1/embeddings without effect.
var embeddingUnused = []Unused{
	{Name: "user", Why: WhyLabel, Strict: anyString},
	{Name: "metadata", Why: WhyLabel, Foreign: true},
	{Name: "priority", Why: "embeddings are computed in their order of arrival", Neutral: []string{"0"}, Foreign: true},

	{Name: "normalize", Why: "the model decides whether vectors are normalized", Neutral: []string{"true"}, Refused: true, Foreign: true},
	{Name: "embedding_types", Why: "use encoding_format", Neutral: []string{`["float"]`}, Refused: true, Foreign: true},
	{Name: "embedding_type", Why: "use encoding_format", Neutral: []string{`"float"`}, Refused: true, Foreign: true},
	{Name: "task", Why: "use input_type, prompt_name or instruction", Refused: true, Foreign: true},
	{Name: "late_chunking", Why: "not supported", Neutral: []string{"false"}, Refused: true, Foreign: true},
}

func anyString(param string, raw json.RawMessage) error {
	return stringInto(new(string))(param, raw)
}
