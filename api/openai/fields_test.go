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

// What becomes of a documented field: it changes the request, or the request is
// refused with a sentence that names the field.
const (
	honoured = "honoured"
	refused  = "refused"
)

type documented struct{ value, verdict string }

// chatFields are the fields of openai-python 3.54.0,
// types/chat/completion_create_params.py, each with a value that means something.
var chatFields = map[string]documented{
	"messages":               {`[{"role":"user","content":"other"}]`, honoured},
	"model":                  {`"other"`, honoured},
	"audio":                  {`{"format":"wav","voice":"alloy"}`, refused},
	"frequency_penalty":      {`0.5`, honoured},
	"function_call":          {`{"name":"f"}`, refused},
	"functions":              {`[{"name":"f"}]`, refused},
	"logit_bias":             {`{"5":-1.5}`, honoured},
	"logprobs":               {`true`, honoured},
	"max_completion_tokens":  {`5`, honoured},
	"max_tokens":             {`5`, honoured},
	"min_tokens":             {`5`, honoured},
	"ignore_eos":             {`true`, honoured},
	"stop_token_ids":         {`[5]`, honoured},
	"return_progress":        {`true`, honoured},
	"repetition_penalty":     {`1.1`, honoured},
	"repeat_penalty":         {`1.1`, honoured},
	"metadata":               {`{"a":"b"}`, refused},
	"modalities":             {`["audio"]`, refused},
	"moderation":             {`{"model":"m"}`, refused},
	"n":                      {`2`, honoured},
	"parallel_tool_calls":    {`true`, ""}, // nothing to say where there are no tools
	"prediction":             {`{"type":"content","content":"x"}`, refused},
	"presence_penalty":       {`0.5`, honoured},
	"prompt_cache_key":       {`"k"`, honoured},
	"prompt_cache_options":   {`{"mode":"implicit"}`, refused},
	"prompt_cache_retention": {`"24h"`, refused},
	"reasoning_effort":       {`"low"`, honoured},
	"response_format":        {`{"type":"json_object"}`, honoured},
	"safety_identifier":      {`"k"`, refused},
	"seed":                   {`5`, honoured},
	"service_tier":           {`"priority"`, refused},
	"stop":                   {`["x"]`, honoured},
	"store":                  {`true`, refused},
	"stream":                 {`true`, honoured},
	"stream_options":         {`{"include_usage":true},"stream":true`, honoured},
	"temperature":            {`0.5`, honoured},
	"tool_choice":            {`"none"`, honoured},
	"tools":                  {`[{"type":"function","function":{"name":"f"}}]`, honoured},
	"top_logprobs":           {`5,"logprobs":true`, honoured},
	"top_p":                  {`0.5`, honoured},
	"user":                   {`"u"`, ""}, // accepted without effect
	"verbosity":              {`"low"`, refused},
	"web_search_options":     {`{}`, refused},
}

// completionFields are those of types/completion_create_params.py.
var completionFields = map[string]documented{
	"model":             {`"other"`, honoured},
	"prompt":            {`"other"`, honoured},
	"best_of":           {`2`, refused},
	"echo":              {`true`, honoured},
	"frequency_penalty": {`0.5`, honoured},
	"logit_bias":        {`{"5":1}`, honoured},
	"logprobs":          {`0`, honoured},
	"max_tokens":        {`5`, honoured},
	"n":                 {`2`, honoured},
	"presence_penalty":  {`0.5`, honoured},
	"seed":              {`5`, honoured},
	"stop":              {`"x"`, honoured},
	"stream":            {`true`, honoured},
	"stream_options":    {`{"include_usage":true},"stream":true`, honoured},
	"suffix":            {`"x"`, refused},
	"temperature":       {`0.5`, honoured},
	"top_p":             {`0.5`, honoured},
	"user":              {`"u"`, ""}, // accepted without effect
}

// embeddingFields are those of types/embedding_create_params.py.
var embeddingFields = map[string]documented{
	"input":           {`"other"`, honoured},
	"model":           {`"other"`, honoured},
	"dimensions":      {`2`, honoured},
	"encoding_format": {`"base64"`, honoured},
	"user":            {`"u"`, ""}, // accepted without effect
}

func TestEveryDocumentedFieldIsHonouredOrRefusedByName(t *testing.T) {
	for _, route := range []struct {
		name   string
		fields map[string]documented
		base   map[string]string
		decode func([]byte) (any, error)
	}{
		{"chat", chatFields, map[string]string{"model": `"m"`, "messages": `[{"role":"user","content":"hi"}]`},
			func(b []byte) (any, error) { return strictly().Chat(b) }},
		{"completions", completionFields, map[string]string{"model": `"m"`, "prompt": `"hi"`},
			func(b []byte) (any, error) { return strictly().Completion(b) }},
		{"embeddings", embeddingFields, map[string]string{"model": `"m"`, "input": `"hi"`},
			func(b []byte) (any, error) { return strictly().Embedding(b) }},
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

// body is the base with one member more, or another one.
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
		"bias too large":            {chatBody(`"logit_bias":{"5":100.5}`), "logit_bias.5", "between -100 and 100"},
		"bias too small":            {chatBody(`"logit_bias":{"5":-101}`), "logit_bias.5", "between -100 and 100"},
		"bias of a word":            {chatBody(`"logit_bias":{"the":1}`), "logit_bias", "token ids"},
		"bias of a negative id":     {chatBody(`"logit_bias":{"-1":1}`), "logit_bias", "token ids"},
		"bias of an id in disguise": {chatBody(`"logit_bias":{"05":1}`), "logit_bias", "token ids"},
		"bias of a large id":        {chatBody(`"logit_bias":{"2147483648":1}`), "logit_bias", "token ids"},
		"bias twice":                {chatBody(`"logit_bias":{"5":1,"5":2}`), "logit_bias.5", "appears twice"},
		"bias a list":               {chatBody(`"logit_bias":[1]`), "logit_bias", "must be an object, not array"},
		"bias a string":             {chatBody(`"logit_bias":{"5":"1"}`), "logit_bias.5", "must be a number"},
		"too many biases":           {chatBody(`"logit_bias":` + biases(maxBiased+1)), "logit_bias", "at most 300 tokens"},
		"too many alternatives":     {chatBody(`"logprobs":true,"top_logprobs":21`), "top_logprobs", "between 0 and 20"},
		"fewer than none":           {chatBody(`"logprobs":true,"top_logprobs":-1`), "top_logprobs", "between 0 and 20"},
		"alternatives of nothing":   {chatBody(`"top_logprobs":1`), "top_logprobs", "only allowed when 'logprobs' is true"},
		"a number in chats":         {chatBody(`"logprobs":3`), "logprobs", "true or false"},
		"true in completions":       {completionBody(`"logprobs":true`), "logprobs", "an integer"},
		"six alternatives":          {completionBody(`"logprobs":6`), "logprobs", "between 0 and 5"},
		"penalty of zero":           {chatBody(`"repetition_penalty":0`), "repetition_penalty", "between 0.01 and 100"},
		"a large penalty":           {chatBody(`"repeat_penalty":101`), "repeat_penalty", "between 0.01 and 100"},
		"two penalties":             {chatBody(`"repeat_penalty":1.1,"repetition_penalty":1.2`), "repetition_penalty", "the same parameter"},
		"min_tokens below zero":     {chatBody(`"min_tokens":-1`), "min_tokens", "between 0"},
		"ignore_eos a number":       {chatBody(`"ignore_eos":1`), "ignore_eos", "true or false"},
		"a stop token below zero":   {chatBody(`"stop_token_ids":[2,-1]`), "stop_token_ids[1]", "between 0"},
		"stop tokens as text":       {chatBody(`"stop_token_ids":["a"]`), "stop_token_ids[0]", "an integer"},
		"many stop tokens":          {chatBody(`"stop_token_ids":[1` + strings.Repeat(",1", maxStopTokens) + `]`), "stop_token_ids", "at most 128 tokens"},
		"no tokens of a chat":       {chatBody(`"max_tokens":0`), "max_tokens", "between 1"},
		"fewer than no tokens":      {completionBody(`"max_tokens":-1`), "max_tokens", "between 0"},
		"many choices of prompts":   {`{"model":"m","prompt":["a","b"],"n":65}`, "n", "at most 128 choices"},
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
		t.Error("log-probabilities are told though nobody asked")
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
		`"response_format":{}`:                                                 {"response_format.type", CodeMissingParameter, "required"},
		`"response_format":{"type":"json_schema"}`:                             {"response_format.json_schema.schema", CodeMissingParameter, "required"},
		`"response_format":{"type":"json_object","schema":42}`:                 {"response_format.schema", CodeInvalidValue, "a JSON schema"},
		`"response_format":{"type":"json_schema","schema":{}}`:                 {"response_format.schema", CodeUnknownParameter, "is unknown"},
		`"response_format":{"type":"yaml"}`:                                    {"response_format.type", CodeInvalidValue, "one of text, json_object, json_schema"},
		`"response_format":{"type":"text","json_schema":{"schema":{}}}`:        {"response_format.json_schema", CodeInvalidValue, "only allowed"},
		`"response_format":{"type":"json_schema","json_schema":{"schema":[]}}`: {"response_format.json_schema.schema", CodeInvalidValue, "a JSON schema"},
		`"structured_outputs":{}`:                                              {"structured_outputs", CodeInvalidValue, "exactly one of"},
		`"structured_outputs":{"json_object":false}`:                           {"structured_outputs.json_object", CodeInvalidValue, "must be true"},
		`"structured_outputs":{"regex":"a","choice":["a"]}`:                    {"structured_outputs.choice", CodeInvalidValue, "Send only one of them"},
		`"structured_outputs":{"whitespace_pattern":"a","regex":"a"}`:          {"structured_outputs.whitespace_pattern", CodeUnknownParameter, "is unknown"},
		`"guided_regex":"a","response_format":{"type":"json_object"}`:          {"response_format", CodeInvalidValue, "Send only one of them"},
	} {
		_, err := strictly().Chat([]byte(chatBody(body)))
		wantError(t, err, 400, want.param, want.code, want.message)
	}
}
