//go:build !race

package vision_test

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/vision"
)

// Text, an image of 2 x 3, a token, an image of 3 x 1, text; the positions are those of
// the definition (a table of it), also for parts of the prompt.
func TestTokensOfImagesStandInRowsAndColumns(t *testing.T) {
	images := []vision.Span{{At: 2, Rows: 2, Columns: 3}, {At: 9, Rows: 3, Columns: 1}}
	want := []vision.Place{
		{0, 0, 0}, {1, 1, 1},
		{2, 2, 2}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2}, {2, 3, 3}, {2, 3, 4},
		{5, 5, 5}, // the longer side is 3
		{6, 6, 6}, {6, 7, 6}, {6, 8, 6},
		{9, 9, 9}, {10, 10, 10},
	}
	for first := range want {
		for n := range len(want) - first + 1 {
			got, flat := vision.Places(images, first, n)
			if !slices.Equal(got, want[first:first+n]) {
				t.Fatalf("tokens %d to %d stand at %v, want %v", first, first+n, got, want[first:first+n])
			}
			level := !slices.ContainsFunc(got, func(p vision.Place) bool { return p.Row != p.Time || p.Column != p.Time })
			if flat && !level || level && !flat && !within(images, first, n) {
				t.Errorf("tokens %d to %d: flat is %v", first, first+n, flat)
			}
		}
	}
	if got, flat := vision.Places(nil, 7, 2); !flat || !slices.Equal(got, []vision.Place{{7, 7, 7}, {8, 8, 8}}) {
		t.Errorf("without images tokens stand at %v", got)
	}
}

// within reports whether any of the tokens is of an image.
func within(images []vision.Span, first, n int) bool {
	return slices.ContainsFunc(images, func(m vision.Span) bool { return m.At < first+n && first < m.At+m.Tokens() })
}
