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
		"each token with its text":      {[]step{{2, 2, []int32{0}}, {3, 3, []int32{1}}}, nil},
		"parts of a character wait":     {[]step{{1, 1, []int32{0}}, {0, 0, nil}, {0, 0, nil}, {4, 4, []int32{1, 2, 3}}, {1, 1, []int32{4}}}, nil},
		"what may be a stop waits":      {[]step{{2, 2, []int32{0}}, {1, 0, nil}, {1, 0, nil}, {2, 4, []int32{1, 2, 3}}}, nil},
		"a stop's own tokens":           {[]step{{2, 2, []int32{0}}, {1, 0, nil}, {1, 0, nil}}, []int32{1, 2}},
		"a token that a stop cuts":      {[]step{{2, 2, []int32{0}}, {5, 3, []int32{1}}, {1, 0, nil}}, []int32{2}},
		"a token without text, alone":   {[]step{{2, 2, []int32{0}}, {0, 0, nil}}, []int32{1}},
		"a token without text, between": {[]step{{2, 2, []int32{0}}, {0, 0, nil}, {1, 1, []int32{1, 2}}}, nil},
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
