package main

import (
	"maps"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

const say = `[{"role":"user","content":"hi"}]`

// textFields are the fields of both of OpenAI's text routes.
var textFields = map[string]string{
	"model": `"other"`, "frequency_penalty": `0.5`, "logit_bias": `{"5":-1.5}`, "max_tokens": `5`, "n": `2`, "presence_penalty": `0.5`, "seed": `5`,
	"stop": `["x"]`, "stream": `true`, "stream_options": `{"include_usage":true},"stream":true`, "temperature": `0.5`, "top_p": `0.5`, "user": `"u"`,
	"top_k": `5`, "min_p": `0.5`, "priority": `1`, "structured_outputs": `{"regex":"a"}`, "guided_json": `{"type":"object"}`, "guided_regex": `"a"`,
	"guided_choice": `["a","b"]`, "guided_grammar": `"root ::= \"a\""`, "repetition_penalty": `1.1`, "repeat_penalty": `1.1`, "min_tokens": `2`,
	"ignore_eos": `true`, "stop_token_ids": `[5]`, "prompt_cache_key": `"k"`, "cache_salt": `"s"`, "json_schema": `{"type":"object"}`,
	"grammar": `"root ::= \"a\""`,
}

// more is a with the fields of b.
func more(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// routes with the fields that openai-python 3.54.0, anthropic-sdk-python and the
// references of Cohere and Jina document, and those of our own.
func routes() []route {
	return []route{
		{name: "POST " + dialect.PathChat, base: map[string]string{"model": `"m"`, "messages": say}, fields: more(textFields, chat), schemas: chatSchemas,
			decode: func(d *openai.Decoder, b []byte) (any, error) { return d.Chat(b) }, unused: openai.UnusedOfChats()},
		{name: "POST " + dialect.PathCompletions, base: map[string]string{"model": `"m"`, "prompt": `"hi"`},
			fields:  more(textFields, map[string]string{"prompt": `"other"`, "best_of": `2`, "echo": `true`, "logprobs": `0`, "suffix": `"x"`}),
			schemas: completionSchemas, decode: func(d *openai.Decoder, b []byte) (any, error) { return d.Completion(b) }, unused: openai.UnusedOfCompletions()},
		{name: "POST " + dialect.PathEmbeddings, base: map[string]string{"model": `"m"`, "input": `"hi"`},
			fields: map[string]string{"input": `[[1,2]]`, "model": `"other"`, "dimensions": `2`, "encoding_format": `"base64"`, "user": `"u"`,
				"truncate": `true`, "truncate_prompt_tokens": `5`, "prompt_name": `"query"`, "input_type": `"query"`, "instruction": `"find"`},
			schemas: embeddingSchemas, decode: func(d *openai.Decoder, b []byte) (any, error) { return d.Embedding(b) }, unused: openai.UnusedOfEmbeddings()},
		{name: "POST " + dialect.PathRerank + ", POST " + dialect.PathRerankV2, base: map[string]string{"model": `"m"`, "query": `"q"`, "documents": `["a"]`},
			fields: map[string]string{"model": `"other"`, "query": `"other"`, "documents": `[{"text":"b"}]`, "top_n": `1`, "return_documents": `false`,
				"truncate": `false`, "truncate_prompt_tokens": `5`, "instruction": `"find"`, "max_chunks_per_doc": `10`, "max_tokens_per_doc": `512`, "rank_fields": `["title"]`, "priority": `1`},
			schemas: rerankSchemas, decode: func(d *openai.Decoder, b []byte) (any, error) { return rerank.Decode(d, b, rerank.V1) }, unused: rerank.Unused()},
		{name: "POST " + dialect.PathMessages, base: map[string]string{"model": `"m"`, "messages": say, "max_tokens": `9`}, fields: message, schemas: messageSchemas,
			decode: func(d *openai.Decoder, b []byte) (any, error) { return anthropic.Decode(d, b) }, unused: anthropic.UnusedOfMessages(),
			partly: map[string]string{"tools": "tools of Anthropic's own types are left out, because nothing is run on the server",
				"messages[].content": "blocks of redacted thinking are left out, because only the server that wrote them can read them",
				"system":             "the attribution block of Claude Code is left out, unless the gateway runs with `--keep-attribution`"}},
		{name: "POST " + dialect.PathResponses, base: map[string]string{"model": `"m"`, "input": `"hi"`}, fields: response, schemas: responseSchemas,
			decode: func(d *openai.Decoder, b []byte) (any, error) { return responses.Decode(d, b) }, unused: responses.Unused(),
			partly: map[string]string{"include": "encrypted reasoning and results of tools of OpenAI's servers, which there are none of",
				"tools": "tools of OpenAI's own types are left out, because nothing is run on the server"}},
	}
}

var chat = map[string]string{
	"messages": `[{"role":"user","content":"other"}]`, "audio": `{"format":"wav","voice":"alloy"}`, "function_call": `{"name":"f"}`, "functions": `[{"name":"f"}]`,
	"logprobs": `true`, "max_completion_tokens": `5`, "metadata": `{"a":"b"}`, "modalities": `["audio"]`, "moderation": `{"model":"m"}`,
	"parallel_tool_calls": `false`, "prediction": `{"type":"content","content":"x"}`, "prompt_cache_options": `{"mode":"implicit"}`,
	"prompt_cache_retention": `"24h"`, "enable_thinking": `true`, "thinking": `{"type":"disabled"}`, "reasoning": `{"effort":"low"}`, "include_reasoning": `false`,
	"reasoning_effort": `"low"`, "response_format": `{"type":"json_object"}`, "safety_identifier": `"k"`,
	"service_tier": `"priority"`, "store": `true`, "tool_choice": `"none","tools":[{"type":"function","function":{"name":"f"}}]`, "tools": `[{"type":"function","function":{"name":"f"}}]`,
	"top_logprobs": `5,"logprobs":true`, "verbosity": `"low"`, "web_search_options": `{}`, "chat_template_kwargs": `{"a":1}`,
}

var message = map[string]string{
	"model": `"other"`, "messages": `[{"role":"user","content":"other"}]`, "max_tokens": `5`, "system": `"s"`, "stop_sequences": `["x"]`, "stream": `true`,
	"temperature": `0.5`, "top_k": `5`, "top_p": `0.5`, "metadata": `{"user_id":"u"}`, "cache_control": `{"type":"ephemeral"}`,
	"tools": `[{"name":"f","input_schema":{"type":"object"}}]`, "tool_choice": `{"type":"none"},"tools":[{"name":"f","input_schema":{"type":"object"}}]`, "thinking": `{"type":"enabled","budget_tokens":1024}`,
	"service_tier": `"priority"`, "container": `"c"`, "inference_geo": `"eu"`, "mcp_servers": `[{"type":"url"}]`, "context_management": `{"edits":[]}`,
	"output_config": `{"effort":"low"}`, "output_format": `{"type":"json_schema","schema":{"type":"object"}}`, "thread": `{"type":"create"}`,
}

var response = map[string]string{
	"background": `true`, "context_management": `[{"type":"compaction"}]`, "conversation": `"conv_1"`, "include": `["message.output_text.logprobs"]`,
	"input": `"other"`, "instructions": `"i"`, "max_output_tokens": `5`, "max_tool_calls": `5`, "metadata": `{"a":"b"}`, "model": `"other"`,
	"moderation": `{"model":"m"}`, "parallel_tool_calls": `false`, "previous_response_id": `"resp_1"`, "prompt": `{"id":"p"}`, "prompt_cache_key": `"k"`, "cache_salt": `"s"`,
	"prompt_cache_options": `{"mode":"implicit"}`, "prompt_cache_retention": `"24h"`, "reasoning": `{"effort":"low"}`, "safety_identifier": `"k"`,
	"service_tier": `"priority"`, "store": `false`, "stream": `true`, "stream_options": `{"include_obfuscation":true}`, "temperature": `0.5`,
	"text": `{"format":{"type":"json_object"}}`, "tool_choice": `"none","tools":[{"type":"function","name":"f"}]`, "tools": `[{"type":"function","name":"f"}]`, "top_logprobs": `5`, "top_p": `0.5`,
	"truncation": `"auto"`, "user": `"u"`, "presence_penalty": `0.5`, "frequency_penalty": `0.5`, "top_k": `5`, "min_p": `0.5`, "seed": `5`, "stop": `["x"]`, "priority": `1`,
	"logit_bias": `{"5":-1.5}`, "repetition_penalty": `1.1`, "repeat_penalty": `1.1`, "min_tokens": `2`, "ignore_eos": `true`, "stop_token_ids": `[5]`,
}
