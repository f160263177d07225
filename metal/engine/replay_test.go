//go:build replay

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// A prompt of 90,000 tokens of a hybrid model, cancelled when 51,200 are saved,
// is continued from disk by another engine, and its answer equals computing all
// of it. The time is quadratic in the prompt, so it has a target of its own
// (make test-replay).
func TestReplayOf90000TokensResumesOnDisk(t *testing.T) {
	c := tinymodel.Default()
	c.Context, c.QueryHeads, c.KVHeads = 90_500, 2, 1
	brokenOff{hybridOf(t, c), 90_000, 2 * 25, 51_200, true}.resumes(t)
}
