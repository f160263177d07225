//go:build !race

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
		"one pair":            {body: `"text_1":"q","text_2":"a"`, want: []Group{{Query: "q", At: []int{0}}}},
		"one query":           {body: `"text_1":"q","text_2":["a","b"]`, want: []Group{{Query: "q", At: []int{0, 1}}}},
		"a list of one query": {body: `"text_1":["q"],"text_2":["a","b"]`, want: []Group{{Query: "q", At: []int{0, 1}}}},
		"a query for each":    {body: `"text_1":["q","r","q"],"text_2":["a","b","c"]`, want: []Group{{Query: "q", At: []int{0, 2}}, {Query: "r", At: []int{1}}}},
		"other names":         {body: `"queries":"q","documents":["a","b"]`, want: []Group{{Query: "q", At: []int{0, 1}}}},
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
		"no model":         {body: `{"text_1":"q","text_2":"a"}`, param: "model"},
		"no query":         {body: `{"model":"m","text_2":"a"}`, param: "text_1"},
		"no document":      {body: `{"model":"m","text_1":"q","text_2":[]}`, param: "text_2"},
		"an empty text":    {body: `{"model":"m","text_1":"q","text_2":["a",""]}`, param: "text_2[1]"},
		"no texts":         {body: `{"model":"m","text_1":"q","text_2":7}`, param: "text_2"},
		"two for three":    {body: `{"model":"m","text_1":["q","r"],"text_2":["a","b","c"]}`, param: "text_1"},
		"two for one":      {body: `{"model":"m","text_1":["q","r"],"text_2":"a"}`, param: "text_1"},
		"too many":         {body: `{"model":"m","text_1":"q","text_2":` + many + `}`, param: "text_2[2048]"},
		"two names of one": {body: `{"model":"m","text_1":"q","text_2":"a","documents":["b"]}`, param: "documents"},
		"malformed":        {body: `{"model":`},
		"truncate no bool": {body: `{"model":"m","text_1":"q","text_2":"a","truncate":1}`, param: "truncate"},
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
