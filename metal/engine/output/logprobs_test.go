//go:build !race

package output

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/sample"
)

// Each token brings some bytes of text, after which a number of bytes is shown; the tokens
// whose text begins in them are returned.
func TestLogprobsWaitForTheTextOfTheirToken(t *testing.T) {
	type step struct {
		decoded, shown int
		returned       []int32
	}
	for name, tc := range map[string]struct {
		steps []step
		rest  []int32
	}{
		"each token with its text":      {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 3, shown: 3, returned: []int32{1}}}, rest: nil},
		"parts of a character wait":     {steps: []step{{decoded: 1, shown: 1, returned: []int32{0}}, {decoded: 0, shown: 0}, {decoded: 0, shown: 0}, {decoded: 4, shown: 4, returned: []int32{1, 2, 3}}, {decoded: 1, shown: 1, returned: []int32{4}}}, rest: nil},
		"what may be a stop waits":      {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 1, shown: 0}, {decoded: 1, shown: 0}, {decoded: 2, shown: 4, returned: []int32{1, 2, 3}}}, rest: nil},
		"a stop's own tokens":           {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 1, shown: 0}, {decoded: 1, shown: 0}}, rest: []int32{1, 2}},
		"a token that a stop cuts":      {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 5, shown: 3, returned: []int32{1}}, {decoded: 1, shown: 0}}, rest: []int32{2}},
		"a token without text, alone":   {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 0, shown: 0}}, rest: []int32{1}},
		"a token without text, between": {steps: []step{{decoded: 2, shown: 2, returned: []int32{0}}, {decoded: 0, shown: 0}, {decoded: 1, shown: 1, returned: []int32{1, 2}}}, rest: nil},
	} {
		t.Run(name, func(t *testing.T) {
			var p pendingLogprobs
			ids := func(rs []sample.Ranked) (out []int32) {
				for _, r := range rs {
					out = append(out, r.Chosen.ID)
				}
				return out
			}
			for i, s := range tc.steps {
				p.add(&sample.Ranked{Chosen: sample.Likely{ID: int32(i)}}, s.decoded)
				if got := ids(p.show(s.shown)); !slices.Equal(got, s.returned) {
					t.Errorf("token %d: returned %v, want %v", i, got, s.returned)
				}
			}
			if got := ids(p.flush()); !slices.Equal(got, tc.rest) {
				t.Errorf("left %v, want %v", got, tc.rest)
			}
		})
	}
}
