//go:build !race

package rerank

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

// strictly decodes without ignoring a field.
func strictly() *openai.Decoder { return &openai.Decoder{Strict: true} }

func body(extra string) []byte {
	return []byte(`{"model":"m","query":"q","documents":["a",{"text":"b"},"c"]` + extra + `}`)
}

func decode(t *testing.T, v Version, extra string) *Request {
	t.Helper()
	r, err := Decode(strictly(), body(extra), v)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestResponseFitsCohereAndJinaClients(t *testing.T) {
	answer := decode(t, V1, "").Answer([]float32{0.25, 0.5, 0.5}, 9)
	if !regexp.MustCompile(`^rerank-[0-9a-f]{8}$`).MatchString(answer.ID) {
		t.Errorf("id %q", answer.ID)
	}
	answer.ID = "rerank-X"
	got, err := openai.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"rerank-X","results":[{"index":1,"relevance_score":0.5,"document":{"text":"b"}},` +
		`{"index":2,"relevance_score":0.5,"document":{"text":"c"}},{"index":0,"relevance_score":0.25,"document":{"text":"a"}}],` +
		`"model":"m","usage":{"prompt_tokens":9,"total_tokens":9},"meta":{"api_version":{"version":"1"},"billed_units":{"search_units":1},"tokens":{"input_tokens":9}}}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
}

func TestDocumentsAreReturnedOnRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		version Version
		extra   string
		echo    bool
	}{
		"the first version":              {version: V1, echo: true},
		"the first version, not wanted":  {version: V1, extra: `,"return_documents":false`},
		"the second version":             {version: V2},
		"the second version, but wanted": {version: V2, extra: `,"return_documents":true`, echo: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := decode(t, tc.version, tc.extra).Answer([]float32{1, 2, 3}, 1)
			if got := a.Results[0].Document != nil; got != tc.echo {
				t.Errorf("echoed: %v", got)
			}
			if a.Meta.APIVersion.Version != map[Version]string{V1: "1", V2: "2"}[tc.version] {
				t.Errorf("version %q", a.Meta.APIVersion.Version)
			}
		})
	}
}

func TestTopNReturnsTheBest(t *testing.T) {
	for top, want := range map[string]int{"1": 1, "3": 3, "7": 3, "null": 3} {
		a := decode(t, V1, `,"top_n":`+top).Answer([]float32{1, 3, 2}, 1)
		if len(a.Results) != want || a.Results[0].Index != 1 {
			t.Errorf("top_n %s: %+v", top, a.Results)
		}
	}
}

func TestEveryFieldIsHonouredOrRefusedByName(t *testing.T) {
	r := decode(t, V1, `,"truncate":false,"instruction":"find it"`)
	if r.Truncate || r.Instruction != "find it" || !decode(t, V1, "").Truncate {
		t.Errorf("%+v", r)
	}
	decode(t, V1, `,"max_chunks_per_doc":1,"rank_fields":["text"],"priority":0,"max_tokens_per_doc":null`)
	for name, tc := range map[string]struct{ body, param string }{
		"no model":                 {body: `{"query":"q","documents":["a"]}`, param: "model"},
		"no query":                 {body: `{"model":"m","documents":["a"]}`, param: "query"},
		"no documents":             {body: `{"model":"m","query":"q","documents":[]}`, param: "documents"},
		"an empty document":        {body: `{"model":"m","query":"q","documents":["a",""]}`, param: "documents[1]"},
		"a document without text":  {body: `{"model":"m","query":"q","documents":[{}]}`, param: "documents[0]"},
		"a document with more":     {body: `{"model":"m","query":"q","documents":[{"text":"a","title":"b"}]}`, param: "documents[0].title"},
		"a number":                 {body: `{"model":"m","query":"q","documents":[5]}`, param: "documents[0]"},
		"none of them":             {body: string(body(`,"top_n":0`)), param: "top_n"},
		"chunks":                   {body: string(body(`,"max_chunks_per_doc":10`)), param: "max_chunks_per_doc"},
		"tokens of a document":     {body: string(body(`,"max_tokens_per_doc":512`)), param: "max_tokens_per_doc"},
		"other fields of a record": {body: string(body(`,"rank_fields":["title"]`)), param: "rank_fields"},
		"priority":                 {body: string(body(`,"priority":3`)), param: "priority"},
		"an unknown field":         {body: string(body(`,"topn":3`)), param: "topn"},
		"too many documents":       {body: `{"model":"m","query":"q","documents":[` + strings.Repeat(`"a",`, maxDocuments) + `"a"]}`, param: "documents"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(strictly(), []byte(tc.body), V2)
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 400 || e.Param != tc.param || !strings.Contains(e.Message, "'"+tc.param+"'") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnErrorIsFoundByEachClient(t *testing.T) {
	e := openai.Invalid("query", "no")
	raw, err := ErrorBody(e)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Message, Detail string }
	if err := json.Unmarshal(raw, &got); err != nil || got.Message != "no" || got.Detail != "no" {
		t.Errorf("%s, %v", raw, err)
	}
	if back := openai.ParseError(400, nil, raw); back.Param != "query" || back.Code != openai.CodeInvalidValue {
		t.Errorf("%+v", back)
	}
}
