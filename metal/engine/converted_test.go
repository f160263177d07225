package engine_test

import (
	"log/slog"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// TestConvertedWeightsAreLoggedOnce: a type of the file that no layout holds is
// named, others are not.
func TestConvertedWeightsAreLoggedOnce(t *testing.T) {
	for kind, want := range map[weights.Type]int{weights.Q4_K: 0, weights.Q6_K: 1} {
		c := tinymodel.Default()
		c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Type = 1, 256, 256, 8, 2, 32, kind
		logs := &logged{}
		ready(t, engine.Options{ModelPath: model(t, c), Log: slog.New(logs)}, ref.Options{})
		if n := logs.count("some weights are loaded in another format than in the file"); n != want {
			t.Errorf("%v: logged %d times, want %d", kind, n, want)
		}
	}
}
