package openai

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a documented field does: it changes the request, or the request is rejected with an
// error that names the field.
const (
	honoured = "honoured"
	refused  = "refused"
)

type documented struct{ value, verdict string }

// chatFields are the fields of openai-python 3.54.0,
// types/chat/completion_create_params.py, each with a significant value.
var chatFields = map[string]documented{
	"messages":               {value: `[{"role":"user","content":"other"}]`, verdict: honoured},
	"model":                  {value: `"other"`, verdict: honoured},
	"audio":                  {value: `{"format":"wav","voice":"alloy"}`, verdict: refused},
	"frequency_penalty":      {value: `0.5`, verdict: honoured},
	"function_call":          {value: `{"name":"f"}`, verdict: refused},
	"functions":              {value: `[{"name":"f"}]`, verdict: refused},
	"logit_bias":             {value: `{"5":-1.5}`, verdict: honoured},
	"logprobs":               {value: `true`, verdict: honoured},
	"max_completion_tokens":  {value: `5`, verdict: honoured},
	"max_tokens":             {value: `5`, verdict: honoured},
	"min_tokens":             {value: `5`, verdict: honoured},
	"ignore_eos":             {value: `true`, verdict: honoured},
	"stop_token_ids":         {value: `[5]`, verdict: honoured},
	"return_progress":        {value: `true`, verdict: honoured},
	"repetition_penalty":     {value: `1.1`, verdict: honoured},
	"repeat_penalty":         {value: `1.1`, verdict: honoured},
	"metadata":               {value: `{"a":"b"}`, verdict: refused},
	"modalities":             {value: `["audio"]`, verdict: refused},
	"moderation":             {value: `{"model":"m"}`, verdict: refused},
	"n":                      {value: `2`, verdict: honoured},
	"parallel_tool_calls":    {value: `true`}, // has no meaning without tools
	"prediction":             {value: `{"type":"content","content":"x"}`, verdict: refused},
	"presence_penalty":       {value: `0.5`, verdict: honoured},
	"prompt_cache_key":       {value: `"k"`, verdict: honoured},
	"prompt_cache_options":   {value: `{"mode":"implicit"}`, verdict: refused},
	"prompt_cache_retention": {value: `"24h"`, verdict: refused},
	"reasoning_effort":       {value: `"low"`, verdict: honoured},
	"response_format":        {value: `{"type":"json_object"}`, verdict: honoured},
	"safety_identifier":      {value: `"k"`, verdict: refused},
	"seed":                   {value: `5`, verdict: honoured},
	"service_tier":           {value: `"priority"`, verdict: refused},
	"stop":                   {value: `["x"]`, verdict: honoured},
	"store":                  {value: `true`, verdict: refused},
	"stream":                 {value: `true`, verdict: honoured},
	"stream_options":         {value: `{"include_usage":true},"stream":true`, verdict: honoured},
	"temperature":            {value: `0.5`, verdict: honoured},
	"tool_choice":            {value: `"none"`, verdict: honoured},
	"tools":                  {value: `[{"type":"function","function":{"name":"f"}}]`, verdict: honoured},
	"top_logprobs":           {value: `5,"logprobs":true`, verdict: honoured},
	"top_p":                  {value: `0.5`, verdict: honoured},
	"user":                   {value: `"u"`}, // accepted without effect
	"verbosity":              {value: `"low"`, verdict: refused},
	"web_search_options":     {value: `{}`, verdict: refused},
}

// completionFields are those of types/completion_create_params.py.
var completionFields = map[string]documented{
	"model":             {value: `"other"`, verdict: honoured},
	"prompt":            {value: `"other"`, verdict: honoured},
	"best_of":           {value: `2`, verdict: refused},
	"echo":              {value: `true`, verdict: honoured},
	"frequency_penalty": {value: `0.5`, verdict: honoured},
	"logit_bias":        {value: `{"5":1}`, verdict: honoured},
	"logprobs":          {value: `0`, verdict: honoured},
	"max_tokens":        {value: `5`, verdict: honoured},
	"n":                 {value: `2`, verdict: honoured},
	"presence_penalty":  {value: `0.5`, verdict: honoured},
	"seed":              {value: `5`, verdict: honoured},
	"stop":              {value: `"x"`, verdict: honoured},
	"stream":            {value: `true`, verdict: honoured},
	"stream_options":    {value: `{"include_usage":true},"stream":true`, verdict: honoured},
	"suffix":            {value: `"x"`, verdict: refused},
	"temperature":       {value: `0.5`, verdict: honoured},
	"top_p":             {value: `0.5`, verdict: honoured},
	"user":              {value: `"u"`}, // accepted without effect
}

// embeddingFields are those of types/embedding_create_params.py.
var embeddingFields = map[string]documented{
	"input":           {value: `"other"`, verdict: honoured},
	"model":           {value: `"other"`, verdict: honoured},
	"dimensions":      {value: `2`, verdict: honoured},
	"encoding_format": {value: `"base64"`, verdict: honoured},
	"user":            {value: `"u"`}, // accepted without effect
}

func TestEveryDocumentedFieldIsHonouredOrRefusedByName(t *testing.T) {
	for _, route := range []struct {
		name   string
		fields map[string]documented
		base   map[string]string
		decode func([]byte) (any, error)
	}{
		{name: "chat", fields: chatFields, base: map[string]string{"model": `"m"`, "messages": `[{"role":"user","content":"hi"}]`},
			decode: func(b []byte) (any, error) { return strictly().Chat(b) }},
		{name: "completions", fields: completionFields, base: map[string]string{"model": `"m"`, "prompt": `"hi"`},
			decode: func(b []byte) (any, error) { return strictly().Completion(b) }},
		{name: "embeddings", fields: embeddingFields, base: map[string]string{"model": `"m"`, "input": `"hi"`},
			decode: func(b []byte) (any, error) { return strictly().Embedding(b) }},
	} {
		without, err := route.decode(body(route.base, "", ""))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(route.fields)) {
			t.Run(route.name+" "+name, func(t *testing.T) {
				f := route.fields[name]
				got, err := route.decode(body(route.base, name, f.value))
				var e *Error
				switch {
				case f.verdict == refused:
					if !errors.As(err, &e) || e.Param != name || e.Code != CodeUnsupportedParameter || !strings.Contains(e.Message, "'"+name+"'") {
						t.Errorf("want a refusal of it, got %v", err)
					}
				case err != nil:
					t.Errorf("refused: %v", err)
				case cmp.Equal(got, without) != (f.verdict == ""):
					t.Errorf("it leaves the request as it was: %v", cmp.Equal(got, without))
				}
			})
		}
	}
}

// body returns base with a member added or replaced.
func body(base map[string]string, name, value string) []byte {
	members := maps.Clone(base)
	if name != "" {
		members[name] = value
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(members)) {
		quoted, _ := json.Marshal(k)
		out = append(out, string(quoted)+":"+members[k])
	}
	return []byte("{" + strings.Join(out, ",") + "}")
}

func TestBiasAndLogprobsAreRefusedOutsideTheirBounds(t *testing.T) {
	tests := map[string]struct{ body, param, message string }{
		"bias too large":            {body: chatBody(`"logit_bias":{"5":100.5}`), param: "logit_bias.5", message: "between -100 and 100"},
		"bias too small":            {body: chatBody(`"logit_bias":{"5":-101}`), param: "logit_bias.5", message: "between -100 and 100"},
		"bias of a word":            {body: chatBody(`"logit_bias":{"the":1}`), param: "logit_bias", message: "token ids"},
		"bias of a negative id":     {body: chatBody(`"logit_bias":{"-1":1}`), param: "logit_bias", message: "token ids"},
		"bias of an id in disguise": {body: chatBody(`"logit_bias":{"05":1}`), param: "logit_bias", message: "token ids"},
		"bias of a large id":        {body: chatBody(`"logit_bias":{"2147483648":1}`), param: "logit_bias", message: "token ids"},
		"bias twice":                {body: chatBody(`"logit_bias":{"5":1,"5":2}`), param: "logit_bias.5", message: "appears twice"},
		"bias a list":               {body: chatBody(`"logit_bias":[1]`), param: "logit_bias", message: "must be an object, not array"},
		"bias a string":             {body: chatBody(`"logit_bias":{"5":"1"}`), param: "logit_bias.5", message: "must be a number"},
		"too many biases":           {body: chatBody(`"logit_bias":` + biases(maxBiased+1)), param: "logit_bias", message: "at most 300 tokens"},
		"too many alternatives":     {body: chatBody(`"logprobs":true,"top_logprobs":21`), param: "top_logprobs", message: "between 0 and 20"},
		"fewer than none":           {body: chatBody(`"logprobs":true,"top_logprobs":-1`), param: "top_logprobs", message: "between 0 and 20"},
		"alternatives of nothing":   {body: chatBody(`"top_logprobs":1`), param: "top_logprobs", message: "only allowed when 'logprobs' is true"},
		"a number in chats":         {body: chatBody(`"logprobs":3`), param: "logprobs", message: "true or false"},
		"true in completions":       {body: completionBody(`"logprobs":true`), param: "logprobs", message: "an integer"},
		"six alternatives":          {body: completionBody(`"logprobs":6`), param: "logprobs", message: "between 0 and 5"},
		"penalty of zero":           {body: chatBody(`"repetition_penalty":0`), param: "repetition_penalty", message: "between 0.01 and 100"},
		"a large penalty":           {body: chatBody(`"repeat_penalty":101`), param: "repeat_penalty", message: "between 0.01 and 100"},
		"two penalties":             {body: chatBody(`"repeat_penalty":1.1,"repetition_penalty":1.2`), param: "repetition_penalty", message: "the same parameter"},
		"min_tokens below zero":     {body: chatBody(`"min_tokens":-1`), param: "min_tokens", message: "between 0"},
		"ignore_eos a number":       {body: chatBody(`"ignore_eos":1`), param: "ignore_eos", message: "true or false"},
		"a stop token below zero":   {body: chatBody(`"stop_token_ids":[2,-1]`), param: "stop_token_ids[1]", message: "between 0"},
		"stop tokens as text":       {body: chatBody(`"stop_token_ids":["a"]`), param: "stop_token_ids[0]", message: "an integer"},
		"many stop tokens":          {body: chatBody(`"stop_token_ids":[1` + strings.Repeat(",1", maxStopTokens) + `]`), param: "stop_token_ids", message: "at most 128 tokens"},
		"no tokens of a chat":       {body: chatBody(`"max_tokens":0`), param: "max_tokens", message: "between 1"},
		"fewer than no tokens":      {body: completionBody(`"max_tokens":-1`), param: "max_tokens", message: "between 0"},
		"many choices of prompts":   {body: `{"model":"m","prompt":["a","b"],"n":65}`, param: "n", message: "at most 128 choices"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			decode := func(b []byte) error { _, err := strictly().Chat(b); return err }
			if strings.Contains(tc.body, `"prompt"`) {
				decode = func(b []byte) error { _, err := strictly().Completion(b); return err }
			}
			wantError(t, decode([]byte(tc.body)), 400, tc.param, CodeInvalidValue, tc.message)
		})
	}
	r, err := strictly().Chat([]byte(chatBody(`"logit_bias":` + biases(maxBiased) + `,"logprobs":false,"top_logprobs":0`)))
	if err != nil || len(r.LogitBias) != maxBiased {
		t.Errorf("%v", err)
	}
	if _, wanted := r.TopLogprobsWanted(); wanted {
		t.Error("log-probabilities are returned without a request for them")
	}
}

func biases(n int) string {
	m := map[int]float64{}
	for id := range n {
		m[id] = -100
	}
	raw, _ := json.Marshal(m)
	return string(raw)
}

func TestReasoningOfEarlierTurnsIsTaken(t *testing.T) {
	r, err := strictly().Chat([]byte(`{"model":"m","messages":[{"role":"assistant","content":"a","reasoning_content":"b"},{"role":"assistant","content":"a","reasoning_content":null}]}`))
	if err != nil || r.Messages[0].Reasoning != "b" || r.Messages[1].Reasoning != "" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = strictly().Chat([]byte(`{"model":"m","messages":[{"role":"user","content":"a","reasoning_content":"b"}]}`))
	wantError(t, err, 400, "messages[0].reasoning_content", CodeInvalidValue, "role assistant")
}

func TestTheFormOfAnAnswerIsReadOrRefused(t *testing.T) {
	for body, want := range map[string]*Constraint{
		`"response_format":{"type":"text"}`:                                 nil,
		`"response_format":null`:                                            nil,
		`"response_format":{"type":"json_object"}`:                          {Kind: ConstraintObject, Param: "response_format"},
		`"response_format":{"type":"json_object","schema":null}`:            {Kind: ConstraintObject, Param: "response_format"},
		`"response_format":{"type":"json_object","schema":{"const": "42"}}`: {Kind: ConstraintSchema, Text: `{"const":"42"}`, Param: "response_format.schema"},
		`"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":false,"description":"d","schema":{"type": "null"}}}`: {Kind: ConstraintSchema, Text: `{"type":"null"}`, Param: "response_format.json_schema.schema"},
		`"structured_outputs":{"json":{"type":"null"}}`:        {Kind: ConstraintSchema, Text: `{"type":"null"}`, Param: "structured_outputs.json"},
		`"structured_outputs":{"json":"{\"a\":1}"}`:            {Kind: ConstraintSchema, Text: `{"a":1}`, Param: "structured_outputs.json"},
		`"structured_outputs":{"json_object":true}`:            {Kind: ConstraintObject, Param: "structured_outputs.json_object"},
		`"structured_outputs":{"regex":"a"}`:                   {Kind: ConstraintRegex, Text: "a", Param: "structured_outputs.regex"},
		`"guided_grammar":"root ::= x"`:                        {Kind: ConstraintGrammar, Text: "root ::= x", Param: "guided_grammar"},
		`"guided_choice":["a","b"],"guided_json":null`:         {Kind: ConstraintChoice, Choices: []string{"a", "b"}, Param: "guided_choice"},
		`"json_schema":{"type":"null"},"grammar":""`:           {Kind: ConstraintSchema, Text: `{"type":"null"}`, Param: "json_schema"},
		`"grammar":"root ::= x"`:                               {Kind: ConstraintGrammar, Text: "root ::= x", Param: "grammar"},
		`"guided_json":true,"response_format":{"type":"text"}`: {Kind: ConstraintSchema, Text: "true", Param: "guided_json"},
	} {
		r, err := strictly().Chat([]byte(chatBody(body)))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if d := cmp.Diff(want, r.Constraint); d != "" {
			t.Errorf("%s: %s", body, d)
		}
	}
	for body, want := range map[string]struct{ param, code, message string }{
		`"response_format":{}`:                                                 {param: "response_format.type", code: CodeMissingParameter, message: "required"},
		`"response_format":{"type":"json_schema"}`:                             {param: "response_format.json_schema.schema", code: CodeMissingParameter, message: "required"},
		`"response_format":{"type":"json_object","schema":42}`:                 {param: "response_format.schema", code: CodeInvalidValue, message: "a JSON schema"},
		`"response_format":{"type":"json_schema","schema":{}}`:                 {param: "response_format.schema", code: CodeUnknownParameter, message: "is unknown"},
		`"response_format":{"type":"yaml"}`:                                    {param: "response_format.type", code: CodeInvalidValue, message: "one of text, json_object, json_schema"},
		`"response_format":{"type":"text","json_schema":{"schema":{}}}`:        {param: "response_format.json_schema", code: CodeInvalidValue, message: "only allowed"},
		`"response_format":{"type":"json_schema","json_schema":{"schema":[]}}`: {param: "response_format.json_schema.schema", code: CodeInvalidValue, message: "a JSON schema"},
		`"structured_outputs":{}`:                                              {param: "structured_outputs", code: CodeInvalidValue, message: "exactly one of"},
		`"structured_outputs":{"json_object":false}`:                           {param: "structured_outputs.json_object", code: CodeInvalidValue, message: "must be true"},
		`"structured_outputs":{"regex":"a","choice":["a"]}`:                    {param: "structured_outputs.choice", code: CodeInvalidValue, message: "Send only one of them"},
		`"structured_outputs":{"whitespace_pattern":"a","regex":"a"}`:          {param: "structured_outputs.whitespace_pattern", code: CodeUnknownParameter, message: "is unknown"},
		`"guided_regex":"a","response_format":{"type":"json_object"}`:          {param: "response_format", code: CodeInvalidValue, message: "Send only one of them"},
	} {
		_, err := strictly().Chat([]byte(chatBody(body)))
		wantError(t, err, 400, want.param, want.code, want.message)
	}
}
