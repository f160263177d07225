package embed_test

import (
	"runtime"
	"testing"
	"weak"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// A request keeps its vectors until it ends. It keeps no others that were computed in the same pass,
// whose requests ended long before.
func TestAVectorKeepsNoOthersOfItsPass(t *testing.T) {
	for _, r := range tinymodel.Readers() {
		if r.Rerank {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			model := openReader(t, write(t, r), ref.New(ref.Options{}))
			out := model.compute(model.inputs(false)[:2])
			kept, other := out[0], weak.Make(&out[1][0])
			out = nil
			runtime.GC()
			if other.Value() != nil {
				t.Errorf("a vector of %d numbers keeps another one", len(kept))
			}
			runtime.KeepAlive(kept)
		})
	}
}
