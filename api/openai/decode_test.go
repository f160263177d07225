package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// strictly decodes without ignoring a field.
func strictly() *Decoder { return &Decoder{Strict: true} }

func ptr[T any](v T) *T { return &v }

func chatBody(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + extra + `}`
}

func completionBody(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"model":"m","prompt":"hi"` + extra + `}`
}

func TestChatRequestHonoursEveryField(t *testing.T) {
	body := `{"model":"m","messages":[
		{"role":"system","content":"be brief"},
		{"role":"user","name":"ann","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]},
		{"role":"assistant","content":"c","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":null,"provider_specific_fields":{"refusal": null}}],
		"max_completion_tokens":7,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.05,"frequency_penalty":-2,"presence_penalty":0.5,"seed":-9223372036854775808,
		"stop":["x","y"],"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"user":"u"}`
	got, err := strictly().Chat([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := &ChatRequest{
		Parameters: Parameters{Model: "m", Temperature: ptr(0.0), TopP: ptr(0.5), TopK: ptr(-1), MinP: ptr(0.05),
			FrequencyPenalty: ptr(-2.0), PresencePenalty: ptr(0.5),
			Seed: ptr(int64(-9223372036854775808)), Stop: []string{"x", "y"}, Stream: true,
			StreamOptions: &StreamOptions{IncludeUsage: true}},
		MaxCompletionTokens: ptr(7),
		Messages: []Message{
			{Role: "system", Content: Content{Parts: []ContentPart{{Type: "text", Text: "be brief"}}}},
			{Role: "user", Name: "ann", Content: Content{Parts: []ContentPart{{Type: "text", Text: "a"}, {Type: "text", Text: "b"}}}},
			{Role: "assistant", Content: Content{Parts: []ContentPart{{Type: "text", Text: "c"}}}},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if s := got.Messages[1].Content.Text(); s != "ab" {
		t.Errorf("joined text = %q", s)
	}

	again, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := strictly().Chat(again)
	if err != nil {
		t.Fatalf("own encoding refused: %v", err)
	}
	if d := cmp.Diff(want, twice); d != "" {
		t.Error(d)
	}
}

// A parameter with its neutral value is accepted, any other value is rejected by name.
func TestUnsupportedParametersPassOnlyWithTheirNeutralValue(t *testing.T) {
	type row struct {
		name, neutral, other string
	}
	rows := []row{
		{name: "functions", neutral: `[ ]`, other: `[{"name":"f"}]`},
		{name: "function_call", neutral: `"none"`, other: `{"name":"f"}`},
		{name: "modalities", neutral: `["text"]`, other: `["text","audio"]`},
		{name: "metadata", neutral: `{}`, other: `{"a":"b"}`},
		{name: "store", neutral: `false`, other: `true`},
		{name: "service_tier", neutral: `"default"`, other: `"flex"`},
		{name: "verbosity", neutral: `"medium"`, other: `"high"`},
		{name: "audio", neutral: `null`, other: `{"voice":"v","format":"wav"}`},
		{name: "prediction", neutral: `null`, other: `{"type":"content","content":"x"}`},
		{name: "web_search_options", neutral: `null`, other: `{}`},
		{name: "safety_identifier", neutral: `null`, other: `"k"`},
	}
	for _, r := range rows {
		if _, err := strictly().Chat([]byte(chatBody(`"` + r.name + `":` + r.neutral))); err != nil {
			t.Errorf("%s: %s refused: %v", r.name, r.neutral, err)
		}
		_, err := strictly().Chat([]byte(chatBody(`"` + r.name + `":` + r.other)))
		wantError(t, err, 400, r.name, CodeUnsupportedParameter, "'"+r.name+"' is not supported")
	}
	completions := []row{
		{name: "suffix", neutral: `""`, other: `"x"`}, {name: "best_of", neutral: `1`, other: `2`},
	}
	for _, r := range completions {
		if _, err := strictly().Completion([]byte(completionBody(`"` + r.name + `":` + r.neutral))); err != nil {
			t.Errorf("%s: %s refused: %v", r.name, r.neutral, err)
		}
		_, err := strictly().Completion([]byte(completionBody(`"` + r.name + `":` + r.other)))
		wantError(t, err, 400, r.name, CodeUnsupportedParameter, "'"+r.name+"' is not supported")
	}
}

func TestMembersOfAnObjectAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"model":"m"`)
	for i := range 1 << 16 {
		fmt.Fprintf(&b, `,"%x":0`, i)
	}
	_, err := (&Decoder{}).Chat([]byte(b.String() + "}"))
	wantError(t, err, 400, "", CodeInvalidValue, "more than 65536 members")
}

func TestBadChatRequestsAreRefusedWithASentence(t *testing.T) {
	wantRefused(t, map[string]badChat{
		"unknown field":                {body: chatBody(`"temprature":1`), param: "temprature", code: CodeUnknownParameter, message: "'temprature' is unknown"},
		"field names are exact":        {body: chatBody(`"Temperature":1`), param: "Temperature", code: CodeUnknownParameter, message: "'Temperature' is unknown"},
		"unknown field in a message":   {body: `{"model":"m","messages":[{"role":"user","content":"x","wieght":1}]}`, param: "messages[0].wieght", code: CodeUnknownParameter, message: "is unknown"},
		"field given twice":            {body: chatBody(`"model":"o"`), param: "model", code: CodeInvalidValue, message: "appears twice"},
		"not an object":                {body: `[1]`, code: CodeInvalidValue, message: "must be an object, not array"},
		"no model":                     {body: `{"messages":[{"role":"user","content":"x"}]}`, param: "model", code: CodeMissingParameter, message: "'model' is required"},
		"model null":                   {body: `{"model":null,"messages":[]}`, param: "model", code: CodeInvalidValue, message: "must be a string, not null"},
		"no messages":                  {body: `{"model":"m"}`, param: "messages", code: CodeMissingParameter, message: "required"},
		"empty messages":               {body: `{"model":"m","messages":[]}`, param: "messages", code: CodeMissingParameter, message: "required"},
		"messages not a list":          {body: `{"model":"m","messages":"x"}`, param: "messages", code: CodeInvalidValue, message: "must be a list, not string"},
		"no role":                      {body: `{"model":"m","messages":[{"content":"x"}]}`, param: "messages[0].role", code: CodeMissingParameter, message: "required"},
		"unknown role":                 {body: `{"model":"m","messages":[{"role":"boss","content":"x"}]}`, param: "messages[0].role", code: CodeInvalidValue, message: "not 'boss'"},
		"no content":                   {body: `{"model":"m","messages":[{"role":"user"}]}`, param: "messages[0].content", code: CodeMissingParameter, message: "required"},
		"empty list of parts":          {body: `{"model":"m","messages":[{"role":"user","content":[]}]}`, param: "messages[0].content", code: CodeMissingParameter, message: "required"},
		"content a number":             {body: `{"model":"m","messages":[{"role":"user","content":3}]}`, param: "messages[0].content", code: CodeInvalidValue, message: "a string or a list of parts"},
		"an image that is no URL":      {body: userPart(`{"type":"image_url","image_url":{"url":"u"}}`), param: "messages[0].content[0].image_url.url", code: CodeInvalidValue, message: "must be a data URL"},
		"an image with http":           {body: userPart(`{"type":"image_url","image_url":{"url":"http://h/i.png"}}`), param: "messages[0].content[0].image_url.url", code: CodeInvalidValue, message: "must be a data URL"},
		"an image to fetch":            {body: userPart(`{"type":"image_url","image_url":{"url":"https://h/i.png"}}`), param: "messages[0].content[0].image_url.url", code: CodeUnsupportedParameter, message: "does not fetch"},
		"an image that is no base64":   {body: userPart(`{"type":"image_url","image_url":{"url":"data:image/png;base64,!"}}`), param: "messages[0].content[0].image_url.url", code: CodeInvalidValue, message: "not valid base64"},
		"an image of nothing":          {body: userPart(`{"type":"image_url"}`), param: "messages[0].content[0].image_url", code: CodeMissingParameter},
		"an image without URL":         {body: userPart(`{"type":"image_url","image_url":{"detail":"auto"}}`), param: "messages[0].content[0].image_url.url", code: CodeMissingParameter},
		"an image of the system":       {body: strings.Replace(userPart(`{"type":"image_url","image_url":{"url":"data:image/png;base64,aaaa"}}`), "user", "system", 1), param: "messages[0].content", code: CodeUnsupportedParameter},
		"a text with an image":         {body: userPart(`{"type":"text","text":"a","image_url":{"url":"data:image/png;base64,aaaa"}}`), param: "messages[0].content[0].image_url", code: CodeInvalidValue},
		"text part without text":       {body: `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, param: "messages[0].content[0].text", code: CodeMissingParameter, message: "required"},
		"temperature too high":         {body: chatBody(`"temperature":2.01`), param: "temperature", code: CodeInvalidValue, message: "between 0 and 2"},
		"temperature negative":         {body: chatBody(`"temperature":-0.1`), param: "temperature", code: CodeInvalidValue, message: "between 0 and 2"},
		"temperature overflows":        {body: chatBody(`"temperature":1e999`), param: "temperature", code: CodeInvalidValue, message: "between 0 and 2"},
		"temperature a string":         {body: chatBody(`"temperature":"1"`), param: "temperature", code: CodeInvalidValue, message: "must be a number, not string"},
		"top_p above one":              {body: chatBody(`"top_p":1.5`), param: "top_p", code: CodeInvalidValue, message: "between 0 and 1"},
		"top_k below minus one":        {body: chatBody(`"top_k":-2`), param: "top_k", code: CodeInvalidValue, message: "between -1"},
		"min_p negative":               {body: chatBody(`"min_p":-1`), param: "min_p", code: CodeInvalidValue, message: "between 0 and 1"},
		"frequency_penalty too high":   {body: chatBody(`"frequency_penalty":2.1`), param: "frequency_penalty", code: CodeInvalidValue, message: "between -2 and 2"},
		"presence_penalty too low":     {body: chatBody(`"presence_penalty":-3`), param: "presence_penalty", code: CodeInvalidValue, message: "between -2 and 2"},
		"max_tokens zero":              {body: chatBody(`"max_tokens":0`), param: "max_tokens", code: CodeInvalidValue, message: "between 1"},
		"max_tokens a fraction":        {body: chatBody(`"max_tokens":1.5`), param: "max_tokens", code: CodeInvalidValue, message: "an integer"},
		"max_tokens huge":              {body: chatBody(`"max_tokens":99999999999999999999`), param: "max_tokens", code: CodeInvalidValue, message: "between 1"},
		"two limits":                   {body: chatBody(`"max_tokens":1,"max_completion_tokens":2`), param: "max_tokens", code: CodeInvalidValue, message: "Send only one of them"},
		"five stops":                   {body: chatBody(`"stop":["a","b","c","d","e"]`), param: "stop", code: CodeInvalidValue, message: "at most 4"},
		"empty stop":                   {body: chatBody(`"stop":["a",""]`), param: "stop[1]", code: CodeInvalidValue, message: "must not be an empty string"},
		"stop a number":                {body: chatBody(`"stop":1`), param: "stop", code: CodeInvalidValue, message: "a string or a list of strings"},
		"stream a string":              {body: chatBody(`"stream":"yes"`), param: "stream", code: CodeInvalidValue, message: "true or false"},
		"stream_options, no stream":    {body: chatBody(`"stream_options":{"include_usage":true}`), param: "stream_options", code: CodeInvalidValue, message: "only allowed when"},
		"unknown stream option":        {body: chatBody(`"stream":true,"stream_options":{"x":1}`), param: "stream_options.x", code: CodeUnknownParameter, message: "is unknown"},
		"obfuscation":                  {body: chatBody(`"stream":true,"stream_options":{"include_obfuscation":true}`), param: "stream_options.include_obfuscation", code: CodeUnsupportedParameter, message: "not supported"},
		"long names are cut in errors": {body: chatBody(`"` + strings.Repeat("é", 4000) + `":1`), param: strings.Repeat("é", 32) + "...", code: CodeUnknownParameter, message: "is unknown"},
	})
}

func TestBodiesThatAreNoJSONAreRefusedWithTheirPlace(t *testing.T) {
	wantRefused(t, map[string]badChat{
		"malformed":           {body: "{\n \"model\": }", code: CodeMalformedJSON, message: "at byte 12 (line 2, column 11)"},
		"cut off":             {body: `{"model":"m"`, code: CodeMalformedJSON, message: "unexpected end"},
		"empty body":          {code: CodeMalformedJSON, message: "unexpected end"},
		"more than one value": {body: `{} {}`, code: CodeMalformedJSON, message: "at byte 3"},
		"not UTF-8":           {body: "{\"model\":\"\xff\"}", code: CodeMalformedJSON, message: "not UTF-8, at byte 10"},
	})
}

// badChat is the body of a request, and the error that it gets.
type badChat struct{ body, param, code, message string }

func wantRefused(t *testing.T, tests map[string]badChat) {
	t.Helper()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := strictly().Chat([]byte(tc.body))
			wantError(t, err, 400, tc.param, tc.code, tc.message)
		})
	}
}

func TestCompletionPrompts(t *testing.T) {
	good := map[string][]Prompt{
		`"hi"`:              {{Text: "hi"}},
		`["hi"]`:            {{Text: "hi"}},
		`[1,2]`:             {{Tokens: []int32{1, 2}}},
		`[[3]]`:             {{Tokens: []int32{3}}},
		`[0]`:               {{Tokens: []int32{0}}},
		`[[0,49151]]`:       {{Tokens: []int32{0, 49151}}},
		`["b","a","b"]`:     {{Text: "b"}, {Text: "a"}, {Text: "b"}},
		`[[1],[2,3],[1,2]]`: {{Tokens: []int32{1}}, {Tokens: []int32{2, 3}}, {Tokens: []int32{1, 2}}},
	}
	for raw, want := range good {
		r, err := strictly().Completion([]byte(`{"model":"m","prompt":` + raw + `}`))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if d := cmp.Diff(want, r.Prompts); d != "" {
			t.Errorf("%s: %s", raw, d)
		}
		if r.TokenLimit() != DefaultCompletionTokens {
			t.Errorf("default limit = %d", r.TokenLimit())
		}
	}
	bad := map[string]string{
		`""`: "must not be empty", `[]`: "must not be empty", `[""]`: "must not be empty", `[[]]`: "must not be empty",
		`["a",1]`: "only strings", `[1,"a"]`: "only strings", `["a",[1]]`: "only strings", `[[1],2]`: "only strings", `["a",""]`: "must not be empty", `[[1],[]]`: "must not be empty",
		`["a"` + strings.Repeat(`,"a"`, maxChoices) + `]`: "at most 128 prompts",
		`[-1]`: "between 0", `[1.5]`: "an integer", `[[1,"a"]]`: "an integer", `{}`: "a string or a list", `3`: "a string or a list",
		`null`: "required", `[[[1]]]`: "an integer", `[null]`: "a string or a token",
	}
	for raw, message := range bad {
		_, err := strictly().Completion([]byte(`{"model":"m","prompt":` + raw + `}`))
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: error %v, want %q", raw, err, message)
		}
	}
	if _, err := strictly().Completion([]byte(`{"model":"m"}`)); err == nil {
		t.Error("missing prompt accepted")
	}
	if _, err := strictly().Completion([]byte(completionBody(`"messages":[]`))); err == nil {
		t.Error("messages accepted on completions")
	}
}

func TestTheEnvelopeIsReadAndNothingElse(t *testing.T) {
	for body, want := range map[string]Envelope{
		` {"messages":3,"Model":"other","model":"a/b","new_field":{}}`:                           {Model: "a/b", Messages: json.RawMessage("3")},
		`{"model":"m","n":3,"prompt":["a","b"]}`:                                                 {Model: "m", Prompt: json.RawMessage(`["a","b"]`), Choices: 6},
		`{"model":"m","n":-3,"prompt":[1,2,3]}`:                                                  {Model: "m", Prompt: json.RawMessage(`[1,2,3]`)},
		`{"model":"m","n":1e99,"prompt":[[1,2],[3]]}`:                                            {Model: "m", Prompt: json.RawMessage(`[[1,2],[3]]`), Choices: 2},
		`{"model":"m","cache_salt":"` + strings.Repeat(`\ud83d\ude00`, maxSalt) + `"}`:           {Model: "m", CacheSalt: strings.Repeat("\U0001f600", maxSalt)},
		`{"model":"m","cache_salt":"` + strings.Repeat("s", maxSaltJSON) + `"}`:                  {Model: "m"},
		`{"model":"m","n":100000}`:                                                               {Model: "m", Choices: 128},
		`{ "stream" : true , "model" : "m" , "prompt" : "a \\\" , } b" , "x" : [ { } , "]" ] }`:  {Model: "m", Stream: true, Prompt: json.RawMessage(`"a \\\" , } b"`)},
		`{"mod\u0065l":"m\u0021","stream":1,"tools":[{"a":{"model":"inner","stream":true}}]}`:    {Model: "m!", Tools: json.RawMessage(`[{"a":{"model":"inner","stream":true}}]`)},
		"{\"model\":\"first\",\n\t\"messages\":[1,-2.5e3,null,\"\\\\\"],\r\n\"model\":\"last\"}": {Model: "last", Messages: json.RawMessage(`[1,-2.5e3,null,"\\"]`)},
	} {
		if e, err := DecodeEnvelope([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		} else if d := cmp.Diff(want, e); d != "" {
			t.Errorf("%s: %s", body, d)
		}
	}
	bad := map[string]struct{ body, param, code, message string }{
		"malformed":    {body: `{"model":"m"`, code: CodeMalformedJSON, message: "unexpected end"},
		"two values":   {body: `{"model":"m"}{}`, code: CodeMalformedJSON, message: "at byte 13"},
		"a list":       {body: `[]`, code: CodeInvalidValue, message: "an object, not array"},
		"no model":     {body: `{}`, param: "model", code: CodeMissingParameter, message: "model"},
		"empty model":  {body: `{"model":""}`, param: "model", code: CodeMissingParameter, message: "model"},
		"model a list": {body: `{"model":["m"]}`, param: "model", code: CodeInvalidValue, message: "a string, not array"},
	}
	for name, tc := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeEnvelope([]byte(tc.body))
			wantError(t, err, 400, tc.param, tc.code, tc.message)
		})
	}
}

func TestReadBodyRefusesWhatIsTooLarge(t *testing.T) {
	if b, err := ReadBody(strings.NewReader("12345"), 3, 5); err != nil || string(b) != "12345" {
		t.Errorf("at the limit: %q, %v", b, err)
	}
	_, err := ReadBody(strings.NewReader("123456"), -1, 5)
	wantError(t, err, 413, "", CodeBodyTooLarge, "5 bytes")
}

func TestDeepNestingIsRefusedNotOverflowed(t *testing.T) {
	_, err := strictly().Chat([]byte(strings.Repeat("[", 1<<20)))
	wantError(t, err, 400, "", CodeMalformedJSON, "not valid JSON")
}

func wantError(t *testing.T, err error, status int, param, code, message string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("error = %v, want an *Error", err)
		return
	}
	if e.Status != status || e.Param != param || e.Code != code || !strings.Contains(e.Message, message) {
		t.Errorf("error = %d param %q code %q: %s\nwant %d param %q code %q: ...%s...", e.Status, e.Param, e.Code, e.Message, status, param, code, message)
	}
}

// FuzzTheEnvelope: the envelope skips values exactly as encoding/json parses them.
func FuzzTheEnvelope(f *testing.F) {
	f.Add([]byte(`{"model":"m","a":[1,{"b":"\\\""},[]],"stream":false, "messages" : [ {"role":"user"} ,2] }`))
	f.Add([]byte(`{"":{},"model":"","x":-0.5e-7}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := DecodeEnvelope(body)
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil || !utf8.Valid(body) || want == nil {
			if err == nil {
				t.Fatalf("%q is taken", body)
			}
			return
		}
		got := map[string]json.RawMessage{}
		for name, value := range Members(body) {
			got[string(name)] = value
			var all, each []json.RawMessage
			if json.Unmarshal(value, &all) == nil {
				for one := range Elements(value) {
					each = append(each, one)
				}
				if len(all) != len(each) {
					t.Fatalf("%q has %d elements, not %d", value, len(all), len(each))
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		if err == nil && !bytes.Equal(e.Messages, want["messages"]) {
			t.Fatalf("messages %q", e.Messages)
		}
	})
}

func FuzzDecodeRequests(f *testing.F) {
	f.Add([]byte(chatBody(`"stop":["a"],"stream":true,"stream_options":{"include_usage":true}`)))
	f.Add([]byte(completionBody(`"logprobs":0`)))
	f.Add([]byte(`{"model":"m","prompt":[[1,2]]}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`))
	f.Add([]byte("{\"\xff\":"))
	f.Fuzz(func(t *testing.T, body []byte) {
		chat, err := strictly().Chat(body)
		checkOutcome(t, chat, err, chat == nil)
		completion, err := strictly().Completion(body)
		checkOutcome(t, completion, err, completion == nil)
	})
}

// checkOutcome requires a typed, bounded error, or a request that survives its own
// encoding.
func checkOutcome(t *testing.T, request any, err error, isNil bool) {
	t.Helper()
	if (err != nil) != isNil {
		t.Fatalf("request nil %v, error %v", isNil, err)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Message == "" || len(e.Message) > maxMessage+len("...") {
			t.Fatalf("untyped or unbounded error: %v", err)
		}
		return
	}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var again any
	switch request.(type) {
	case *ChatRequest:
		again, err = strictly().Chat(body)
	case *CompletionRequest:
		again, err = strictly().Completion(body)
	default:
		err = fmt.Errorf("unexpected %T", request)
	}
	if err != nil {
		t.Fatalf("own encoding %s refused: %v", body, err)
	}
	if d := cmp.Diff(request, again); d != "" {
		t.Fatal(d)
	}
}

// userPart is a request with one content part.
func userPart(part string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + part + `]}]}`
}

func TestImagesAreDecodedOrFetched(t *testing.T) {
	var asked []string
	d := &Decoder{FetchImage: func(url string) ([]byte, error) {
		asked = append(asked, url)
		return []byte("fetched"), nil
	}}
	for url, want := range map[string]string{"data:image/png;base64,aGk=": "hi", "DATA:image/jpeg;base64,aGk": "hi", "https://h/i.png": "fetched"} {
		r, err := d.Chat([]byte(userPart(`{"type":"image_url","image_url":{"url":"` + url + `","detail":"high"}}`)))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Messages[0].Content.Parts[0].Image; string(got.Data) != want {
			t.Errorf("%s is %q, want %q", url, got.Data, want)
		}
	}
	if len(asked) != 1 || asked[0] != "https://h/i.png" {
		t.Errorf("fetched %q", asked)
	}
	d.FetchImage = func(string) ([]byte, error) { return nil, errors.New("the host is not allowed") }
	var e *Error
	if _, err := d.Chat([]byte(userPart(`{"type":"image_url","image_url":{"url":"https://h/i.png"}}`))); !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, "not allowed") {
		t.Errorf("%v", err)
	}
}

// TestDecodingCopiesALargeValueOnce: into the request, and not once more for each object around
// it.
func TestDecodingCopiesALargeValueOnce(t *testing.T) {
	text := strings.Repeat("a", 4<<20)
	for name, body := range map[string]string{
		"a text":            userPart(`{"type":"text","text":"` + text + `"}`),
		"an ignored member": userPart(`{"type":"text","text":"a","unknown":"` + text + `"}`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := new(Decoder).Chat([]byte(body)); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 3*uint64(len(body)) { // the body itself is one
			t.Errorf("%s: %d bytes for a body of %d", name, took, len(body))
		}
	}
}
