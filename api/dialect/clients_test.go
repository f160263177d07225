package dialect

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// shape is the body of a request as a client sends it.
type shape struct {
	body string
	// ignored are the fields that the response header names.
	ignored string
	// refused is the parameter that the error names; empty for none.
	refused string
}

// codex returns a request of Codex with additional members.
func codex(extra string) string {
	return `{"model":"m","instructions":"x","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}],
		"tool_choice":"auto","parallel_tool_calls":true,"store":false,"stream":true` + extra + `}`
}

// claude returns a request of Claude Code with additional members.
func claude(extra string) string {
	return `{"model":"m","max_tokens":32000,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]` + extra + `}`
}

// openCode returns a request of OpenCode, or of another client of chat completions, with
// additional members.
func openCode(extra string) string {
	return `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true` + extra + `}`
}

const (
	shell  = `{"type":"function","name":"shell","description":"d","strict":false,"parameters":{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}}},"required":["command"],"additionalProperties":false}}`
	bash   = `"name":"Bash","description":"d","input_schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{},"additionalProperties":false}`
	called = `{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","name":"shell","arguments":"{}","call_id":"c1"}`
)

func TestRequestsOfCodex(t *testing.T) {
	wantShapes(t, PathResponses, map[string]shape{
		"first":                {body: codex("")},
		"encrypted reasoning":  {body: codex(`,"include":["reasoning.encrypted_content"]`), ignored: "include"},
		"cache key":            {body: codex(`,"prompt_cache_key":"abc"`)},
		"effort and summary":   {body: codex(`,"reasoning":{"effort":"medium","summary":"auto"}`), ignored: "reasoning.summary"},
		"verbosity":            {body: codex(`,"text":{"verbosity":"low"}`), ignored: "text.verbosity"},
		"client metadata":      {body: codex(`,"client_metadata":{"x":"y"}`), ignored: "client_metadata"},
		"a function":           {body: codex(`,"tools":[` + shell + `]`)},
		"web search":           {body: codex(`,"tools":[` + shell + `,{"type":"web_search","external_web_access":false}]`), ignored: "tools[web_search]"},
		"a local shell":        {body: codex(`,"tools":[{"type":"local_shell"}]`), ignored: "tools[local_shell]"},
		"an unknown tool":      {body: codex(`,"tools":[{"type":"teleport_20270101"}]`), ignored: "tools[teleport_20270101]"},
		"everything at once":   {body: codex(`,"tools":[` + shell + `,{"type":"web_search"}],"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{"thread_id":"t"}`), ignored: "tools[web_search], reasoning.summary, include, client_metadata"},
		"an encrypted thought": {body: `{"model":"m","input":[{"type":"reasoning","summary":[],"content":null,"encrypted_content":null},` + called + `,{"type":"function_call_output","call_id":"c1","output":"ok"}],"tools":[` + shell + `]}`},
		"a thought of OpenAI's": {body: `{"model":"m","input":[{"role":"user","content":"x"},{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"abc"},{"role":"assistant","content":"y"},{"role":"user","content":"z"}]}`,
			ignored: "input[].summary, input[].encrypted_content"},
		"the phase of an answer":   {body: `{"model":"m","input":[{"role":"user","content":"x"},{"type":"message","role":"assistant","phase":"final_answer","content":[{"type":"output_text","text":"y"}]},{"role":"user","content":"z"}]}`, ignored: "input[].phase"},
		"an output that is a list": {body: `{"model":"m","input":[` + called + `,{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"ok"}]}],"tools":[` + shell + `]}`},
		"hints":                    {body: `{"model":"m","input":"hi","truncation":"auto","max_tool_calls":5,"service_tier":"flex","safety_identifier":"u","prompt_cache_retention":"24h"}`, ignored: "max_tool_calls, service_tier, safety_identifier, prompt_cache_retention"},
		"an image":                 {body: `{"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}]}`},
	})
}

func TestRequestsOfClaudeCode(t *testing.T) {
	wantShapes(t, PathMessages, map[string]shape{
		"first":                     {body: claude(`,"metadata":{"user_id":"u"}`), ignored: "metadata"},
		"an attribution block":      {body: claude(`,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.120.cf9; cc_entrypoint=cli; cch=543cf;"},{"type":"text","text":"You are","cache_control":{"type":"ephemeral","ttl":"1h"}}]`), ignored: "system[].cache_control"},
		"the scope of a cache mark": {body: claude(`,"system":[{"type":"text","text":"You are","cache_control":{"type":"ephemeral","scope":"global"}}]`), ignored: "system[].cache_control"},
		"edits of the context":      {body: claude(`,"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}`), ignored: "context_management"},
		"an effort":                 {body: claude(`,"output_config":{"effort":"medium"}`)},
		"a format":                  {body: claude(`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}}}`)},
		"adaptive thinking":         {body: claude(`,"thinking":{"type":"adaptive"}`)},
		"a display of thinking":     {body: claude(`,"thinking":{"type":"adaptive","display":"summarized"}`), ignored: "thinking.display"},
		"a budget for thinking":     {body: claude(`,"thinking":{"type":"enabled","budget_tokens":31999}`), ignored: "thinking.budget_tokens"},
		"eager input":               {body: claude(`,"tools":[{` + bash + `,"eager_input_streaming":true}]`), ignored: "tools[].eager_input_streaming"},
		"deferred tools":            {body: claude(`,"tools":[{` + bash + `,"defer_loading":true}]`), ignored: "tools[].defer_loading"},
		"web search":                {body: claude(`,"tools":[{` + bash + `},{"type":"web_search_20250305","name":"web_search","max_uses":8}]`), ignored: "tools[web_search_20250305]"},
		"speed":                     {body: claude(`,"speed":"fast"`), ignored: "speed"},
		"diagnostics":               {body: claude(`,"diagnostics":{"previous_message_id":null}`), ignored: "diagnostics"},
		"instructions in between":   {body: `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}]}`},
		"thinking with a signature": {body: `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"t1","name":"Bash","input":{},"caller":{"type":"direct"}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x","is_error":false}]}],"tools":[{` + bash + `}]}`},
		"an image":             {body: `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}`},
		"servers of MCP":       {body: claude(`,"mcp_servers":[{"type":"url","name":"n","url":"u"}]`), refused: "mcp_servers"},
		"a container":          {body: claude(`,"container":{"id":"c"}`), refused: "container"},
		"other models":         {body: claude(`,"fallbacks":["other"]`), refused: "fallbacks"},
		"a stored thread":      {body: claude(`,"thread":{"type":"create"}`), refused: "thread"},
		"nothing of all these": {body: claude(`,"mcp_servers":[],"container":null,"fallbacks":[],"thread":null`)},
	})
}

func TestRequestsOfChatClients(t *testing.T) {
	const tool = `{"type":"function","function":{"name":"b","parameters":{"type":"object"}}}`
	shapes := map[string]shape{
		"OpenCode": {body: openCode(`,"max_tokens":32000,"stream_options":{"include_usage":true},"tool_choice":"auto","tools":[{"type":"function","function":{"name":"bash","description":"d",
			"parameters":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{},"additionalProperties":false}}}]`)},
		"parallel calls":            {body: openCode(`,"parallel_tool_calls":true,"tools":[` + tool + `]`)},
		"a tool that is not strict": {body: openCode(`,"tools":[{"type":"function","function":{"name":"b","strict":null,"parameters":{"type":"object"}}}]`)},
		"continuous usage":          {body: openCode(`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)},
		"reasoning of a turn": {body: `{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"","reasoning_content":"t","tool_calls":[{"id":"c","type":"function","index":0,"function":{"name":"b","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c","content":"x","name":"b"}],"tools":[` + tool + `]}`},
		"a cache mark, and late instructions": {body: `{"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]},{"role":"system","content":"late"}]}`,
			ignored: "messages[].content[].cache_control"},
		"cache marks of LiteLLM": {body: `{"model":"m","messages":[{"role":"user","content":"hi","cache_control":{"type":"ephemeral"}}],"tools":[{"type":"function","cache_control":{},"function":{"name":"b","cache_control":{}}}]}`,
			ignored: "messages[].cache_control, tools[].cache_control, tools[].function.cache_control"},
		"messages of a chat UI": {body: `{"model":"m","messages":[{"id":"1","timestamp":5,"role":"user","content":"hi"},{"role":"assistant","content":"a","reasoning":"r","reasoning_details":[{}],"thinking_blocks":[{}]},{"role":"user","content":"b"}]}`,
			ignored: "messages[].id, messages[].timestamp, messages[].reasoning_details, messages[].thinking_blocks"},
		"options of a stream without one": {body: `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"stream_options":{"include_usage":true}}`, refused: "stream_options"},
	}
	for field, value := range map[string]string{ // honoured, or without effect
		"chat_template_kwargs": `{"enable_thinking":false}`, "enable_thinking": `false`, "thinking": `{"type":"enabled"}`, "reasoning": `{"effort":"high"}`,
		"reasoning_effort": `"medium"`, "prompt_cache_key": `"ses_1"`, "cache_prompt": `true`, "store": `false`, "top_k": `40`, "min_p": `0.05`,
		"repetition_penalty": `1.0`, "min_tokens": `0`, "ignore_eos": `false`, "stop_token_ids": `[]`, "skip_special_tokens": `true`, "include_reasoning": `true`,
		"separate_reasoning": `true`, "add_generation_prompt": `true`, "echo": `false`, "best_of": `1`, "timings_per_token": `false`, "metadata": `{}`,
	} {
		shapes[field+" "+value] = shape{body: openCode(`,"` + field + `":` + value)}
	}
	for field, value := range map[string]string{
		"verbosity": `"low"`, "store": `true`, "metadata": `{"a":"b"}`, "safety_identifier": `"u"`, "service_tier": `"flex"`, "prompt_cache_retention": `"24h"`,
		"options": `{"num_ctx":8192}`, "num_ctx": `8192`, "keep_alive": `"5m"`, "ttl": `300`, "session_id": `"x"`, "user": `"u"`, "no_such_field": `[{}]`,
	} {
		shapes[field+" "+value] = shape{body: openCode(`,"` + field + `":` + value), ignored: field}
	}
	for field, value := range map[string]string{ // would change the response
		"mirostat": `2`, "skip_special_tokens": `false`, "add_generation_prompt": `false`, "modalities": `["text","audio"]`, "web_search_options": `{}`,
	} {
		shapes[field+" "+value] = shape{body: openCode(`,"` + field + `":` + value), refused: field}
	}
	wantShapes(t, PathChat, shapes)
}

func TestRequestsOfClientsThatEmbedAndRerank(t *testing.T) {
	wantShapes(t, PathEmbeddings, map[string]shape{
		"Cohere":           {body: `{"model":"m","input":["a"],"input_type":"search_query","truncate":"END"}`},
		"vLLM":             {body: `{"model":"m","input":"a","truncate_prompt_tokens":-1,"user":"u"}`, ignored: "user"},
		"cut at the start": {body: `{"model":"m","input":"a","truncate":"START"}`, refused: "truncate"},
		"cut to nothing":   {body: `{"model":"m","input":"a","truncate_prompt_tokens":0}`, refused: "truncate_prompt_tokens"},
		"another length":   {body: `{"model":"m","input":"a","normalize":false}`, refused: "normalize"},
	})
	wantShapes(t, PathRerankV2, map[string]shape{
		"Cohere": {body: `{"model":"m","query":"q","documents":["a"],"max_tokens_per_doc":4096,"priority":3}`, ignored: "max_tokens_per_doc, priority"},
		"Jina":   {body: `{"model":"m","query":"q","documents":[{"text":"a","title":"t"}],"user":"u"}`, ignored: "documents[].title, user"},
		"fields": {body: `{"model":"m","query":"q","documents":["a"],"rank_fields":["title"]}`, refused: "rank_fields"},
	})
}

func wantShapes(t *testing.T, path string, shapes map[string]shape) {
	t.Helper()
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			var d openai.Decoder
			err := decodeBody(&d, path, []byte(s.body))
			var e *openai.Error
			switch {
			case s.refused != "":
				if !errors.As(err, &e) || e.Status != 400 || e.Param != s.refused || !strings.HasSuffix(e.Message, ".") {
					t.Errorf("%v, want a refusal of %s", err, s.refused)
				}
			case err != nil:
				t.Errorf("refused: %v", err)
			case strings.Join(d.Ignored(), ", ") != s.ignored:
				t.Errorf("ignored are %q, want %q", d.Ignored(), s.ignored)
			}
		})
	}
}
