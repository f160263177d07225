package rerank

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

func TestPairsOfAScoreRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want []Group
	}{
		"one pair":            {`"text_1":"q","text_2":"a"`, []Group{{"q", []int{0}}}},
		"one query":           {`"text_1":"q","text_2":["a","b"]`, []Group{{"q", []int{0, 1}}}},
		"a list of one query": {`"text_1":["q"],"text_2":["a","b"]`, []Group{{"q", []int{0, 1}}}},
		"a query for each":    {`"text_1":["q","r","q"],"text_2":["a","b","c"]`, []Group{{"q", []int{0, 2}}, {"r", []int{1}}}},
		"other names":         {`"queries":"q","documents":["a","b"]`, []Group{{"q", []int{0, 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := DecodeScore(&openai.Decoder{}, []byte(`{"model":"m",`+tc.body+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, r.Groups()); d != "" || !r.Truncate {
				t.Error(d)
			}
		})
	}
}

func TestScoreRequestsThatCannotBeMeantAreRefused(t *testing.T) {
	many := `["a"` + strings.Repeat(`,"a"`, maxDocuments) + `]`
	for name, tc := range map[string]struct{ body, param string }{
		"no model":         {`{"text_1":"q","text_2":"a"}`, "model"},
		"no query":         {`{"model":"m","text_2":"a"}`, "text_1"},
		"no document":      {`{"model":"m","text_1":"q","text_2":[]}`, "text_2"},
		"an empty text":    {`{"model":"m","text_1":"q","text_2":["a",""]}`, "text_2[1]"},
		"no texts":         {`{"model":"m","text_1":"q","text_2":7}`, "text_2"},
		"two for three":    {`{"model":"m","text_1":["q","r"],"text_2":["a","b","c"]}`, "text_1"},
		"two for one":      {`{"model":"m","text_1":["q","r"],"text_2":"a"}`, "text_1"},
		"too many":         {`{"model":"m","text_1":"q","text_2":` + many + `}`, "text_2[2048]"},
		"two names of one": {`{"model":"m","text_1":"q","text_2":"a","documents":["b"]}`, "documents"},
		"malformed":        {`{"model":`, ""},
		"truncate no bool": {`{"model":"m","text_1":"q","text_2":"a","truncate":1}`, "truncate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeScore(&openai.Decoder{}, []byte(tc.body))
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 400 || e.Param != tc.param {
				t.Errorf("%v", err)
			}
		})
	}
}
