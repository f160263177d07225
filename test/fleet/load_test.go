//go:build !race

package fleet

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

func TestOnlyWholeAnswersPass(t *testing.T) {
	whole := Request{Question: Question{MaxTokens: 5}, Answer: Answer{Finish: "length", Usage: openai.Usage{CompletionTokens: 5}}}
	short, endless, failed := whole, whole, whole
	short.Usage.CompletionTokens = 4
	endless.Finish = ""
	failed.Err = errors.New("connection refused")
	for name, test := range map[string]struct {
		requests []Request
		want     string // in the error; empty for none
	}{
		"all whole":             {requests: []Request{whole, whole}, want: ""},
		"none at all":           {want: "no request"},
		"too few tokens":        {requests: []Request{whole, short}, want: "1 of 2"},
		"no finish reason":      {requests: []Request{endless}, want: "incomplete answer"},
		"one that was refused":  {requests: []Request{failed, whole}, want: "connection refused"},
		"more than are printed": {requests: []Request{short, short, short, short, short}, want: "5 of 5"},
	} {
		t.Run(name, func(t *testing.T) {
			err := WantWhole(test.requests)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
