package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTokensThatEndAnAnswer(t *testing.T) {
	p := &inputProcessor{ends: map[int32]bool{2: true}}
	calls := map[int32]bool{9: true}
	for name, c := range map[string]struct {
		request Request
		calls   map[int32]bool
		want    map[int32]bool
	}{
		"a call":                {Request{}, calls, map[int32]bool{2: true, 9: true}},
		"no tools":              {Request{}, nil, map[int32]bool{2: true}},
		"stop tokens":           {Request{StopTokens: []int32{5, 2}}, calls, map[int32]bool{2: true, 5: true, 9: true}},
		"ends that are ignored": {Request{IgnoreEnd: true, StopTokens: []int32{5}}, calls, map[int32]bool{5: true}},
		"a form":                {Request{IgnoreEnd: true, Constraint: new(Constraint)}, nil, map[int32]bool{2: true}},
	} {
		if d := cmp.Diff(c.want, p.endTokens(c.request, c.calls).tokens); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
