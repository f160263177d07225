//go:build replay

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/test/tinymodel"
)

// TestB1AReplayOf90000TokensResumesOnDisk is the replay at its full length: a
// prompt of 90,000 tokens of a hybrid, cancelled when 51,200 are saved, goes on
// there by another engine, and its answer is that of computing all of it. It is
// quadratic in the prompt, and so has a target of its own (make test-replay).
func TestB1AReplayOf90000TokensResumesOnDisk(t *testing.T) {
	c := tinymodel.Default()
	c.Context, c.QueryHeads, c.KVHeads = 90_500, 2, 1
	brokenOff{hybridOf(t, c), 90_000, 2 * 25, 51_200, true}.resumes(t)
}
