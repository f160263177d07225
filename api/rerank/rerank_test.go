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
	const want = `{"id":"rerank-X","model":"m","results":[{"index":1,"relevance_score":0.5,"document":{"text":"b"}},` +
		`{"index":2,"relevance_score":0.5,"document":{"text":"c"}},{"index":0,"relevance_score":0.25,"document":{"text":"a"}}],` +
		`"usage":{"prompt_tokens":9,"total_tokens":9},"meta":{"api_version":{"version":"1"},"billed_units":{"search_units":1},"tokens":{"input_tokens":9}}}`
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
		"the first version":              {V1, "", true},
		"the first version, not wanted":  {V1, `,"return_documents":false`, false},
		"the second version":             {V2, "", false},
		"the second version, but wanted": {V2, `,"return_documents":true`, true},
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
		"no model":                 {`{"query":"q","documents":["a"]}`, "model"},
		"no query":                 {`{"model":"m","documents":["a"]}`, "query"},
		"no documents":             {`{"model":"m","query":"q","documents":[]}`, "documents"},
		"an empty document":        {`{"model":"m","query":"q","documents":["a",""]}`, "documents[1]"},
		"a document without text":  {`{"model":"m","query":"q","documents":[{}]}`, "documents[0]"},
		"a document with more":     {`{"model":"m","query":"q","documents":[{"text":"a","title":"b"}]}`, "documents[0].title"},
		"a number":                 {`{"model":"m","query":"q","documents":[5]}`, "documents[0]"},
		"none of them":             {string(body(`,"top_n":0`)), "top_n"},
		"chunks":                   {string(body(`,"max_chunks_per_doc":10`)), "max_chunks_per_doc"},
		"tokens of a document":     {string(body(`,"max_tokens_per_doc":512`)), "max_tokens_per_doc"},
		"other fields of a record": {string(body(`,"rank_fields":["title"]`)), "rank_fields"},
		"priority":                 {string(body(`,"priority":3`)), "priority"},
		"an unknown field":         {string(body(`,"topn":3`)), "topn"},
		"too many documents":       {`{"model":"m","query":"q","documents":[` + strings.Repeat(`"a",`, maxDocuments) + `"a"]}`, "documents"},
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
