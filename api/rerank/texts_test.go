//go:build !race

package rerank

import (
	"errors"
	"runtime"
	"testing"
	"weak"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

func TestRequestsWithTextsAreDistinguished(t *testing.T) {
	for body, want := range map[string]bool{
		`{"query":"q","texts":["a"]}`:                 true,
		`{"query":"q","documents":["a"]}`:             false,
		`{"query":"\"texts\"","documents":["texts"]}`: false,
		`{"query":{"texts":1}}`:                       false,
		`{"query":"q","texts":`:                       false,
		`["texts"]`:                                   false,
	} {
		if got := HasTexts([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestRanksAreSortedByScoreAndPosition(t *testing.T) {
	r, err := DecodeTexts(&openai.Decoder{}, []byte(`{"model":"m","query":"q","texts":["a","b","c"],"raw_scores":false,"truncation_direction":"Right","truncate":false}`))
	if err != nil || r.Truncate {
		t.Fatal(r, err)
	}
	want := []Rank{{Index: 1, Score: 0.5}, {Index: 0, Score: 0.25}, {Index: 2, Score: 0.25}}
	if d := cmp.Diff(want, r.Ranks([]float32{0.25, 0.5, 0.25})); d != "" {
		t.Error(d)
	}
	for topN, n := range []int{1: 1, 2: 2, 3: 3, 4: 3} {
		r.TopN = &topN
		if d := cmp.Diff(want[:n], r.Ranks([]float32{0.25, 0.5, 0.25})); d != "" {
			t.Errorf("top_n %d: %s", topN, d)
		}
	}
}

// An answer waits for its reader with the texts that it has, and without the others.
func TestRanksKeepOnlyTheirTexts(t *testing.T) {
	topN := 1
	r := &TextsRequest{Texts: []string{"a", "b", "c"}, Echo: true, TopN: &topN}
	list, out := weak.Make(&r.Texts[0]), r.Ranks([]float32{0, 1, 0})
	if len(out) != 1 || *out[0].Text != "b" {
		t.Fatal(out)
	}
	r = nil
	if runtime.GC(); list.Value() != nil {
		t.Error("all texts are kept")
	}
	runtime.KeepAlive(out)
}

func TestRequestsWithTextsThatCannotBeMeantAreRefused(t *testing.T) {
	for body, param := range map[string]string{
		`{"query":"q","texts":["a"]}`:                                      "model",
		`{"model":"m","texts":["a"]}`:                                      "query",
		`{"model":"m","query":"q","texts":[]}`:                             "texts",
		`{"model":"m","query":"q","texts":["a",""]}`:                       "texts[1]",
		`{"model":"m","query":"q","texts":["a"],"documents":["b"]}`:        "documents",
		`{"model":"m","query":"q","texts":["a"],"top_n":0}`:                "top_n",
		`{"model":"m","query":"q","texts":["a"],"raw_scores":true}`:        "raw_scores",
		`{"model":"m","query":"q","texts":["a"],"return_text":"yes"}`:      "return_text",
		`{"model":"m","query":"q","texts":["a"],"truncation_direction":2}`: "truncation_direction",
	} {
		_, err := DecodeTexts(&openai.Decoder{}, []byte(body))
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != param {
			t.Errorf("%s: %v", body, err)
		}
	}
}
