package engine

import (
	"strconv"
	"testing"

	"metalfleet.dev/metalfleet/metal/batch"
)

// TestImagesOfTenantsThatComeAndGoWaitForThoseThatAreThere: a tenant whose image takes many parts gets
// its share, whether others are new, come again or left before they were served, and also if no chunk
// asks for its image now and then.
func TestImagesOfTenantsThatComeAndGoWaitForThoseThatAreThere(t *testing.T) {
	for _, c := range []struct {
		name  string
		other func(part, i int) string
		every int // of this number of parts, one has a chunk that asks for the image
	}{
		{"are new", func(part, i int) string { return strconv.Itoa(part) + " " + strconv.Itoa(i) }, 1},
		{"come again", func(part, i int) string { return strconv.Itoa(i + part%2*6) }, 1},
		{"stay", func(_, i int) string { return strconv.Itoa(i) }, 1},
		{"stay while it pauses", func(_, i int) string { return strconv.Itoa(i) }, 2},
	} {
		const parts, others = 700, 6
		victim := &sequence{id: others, owner: "victim"}
		e, got := &imageEncoder{sequences: &sequences{}}, 0
		for part := range parts {
			e.byID = map[batch.ID]*sequence{victim.id: victim}
			var all []wantedImage
			for i := range others {
				s := &sequence{id: batch.ID(i), owner: c.other(part, i)}
				e.byID[s.id] = s
				all = append(all, wantedImage{sequence: s})
			}
			if part%c.every == 0 {
				all = append(all, wantedImage{sequence: victim})
			}
			next := e.inTurn(all)[0].sequence.owner
			if e.took(next); next == victim.owner {
				got++
			}
		}
		if got < parts/(others+2) {
			t.Errorf("others that %s: %d of %d parts were computed for one of %d tenants", c.name, got, parts, others+1)
		}
	}
}
