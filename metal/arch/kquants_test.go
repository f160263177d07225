//go:build !race

package arch_test

import (
	"encoding/json"
	"os"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// blockTolerance is the largest error of a logit of a model with so converted
// weights, as a part of the largest logit. Of the other types every value is
// that of the file, and the tolerance is the back end's own. These models are
// random: what is moved does not cancel in them.
func blockTolerance(c tinymodel.Config) float64 {
	const tolerance = 5e-2 // seen: 2.6e-2
	if c.Type == weights.Q2_K || c.Type == weights.Q6_K || c.Finer == weights.Q6_K {
		return tolerance
	}
	return 0
}

// TestBlockTypesComputeTheLogitsOfTheirFiles wants the logits that mlx-lm
// computes in float32 from the values that the gguf package reads
// (test/oracle/goldens/kquants), on every back end.
func TestBlockTypesComputeTheLogitsOfTheirFiles(t *testing.T) {
	b, err := os.ReadFile("testdata/kquants.json")
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	recorded := map[string]recorded{}
	for _, c := range r.Cases {
		recorded[c.Name] = c
	}
	cases := tinymodel.BlockCases()
	if len(recorded) != len(cases) {
		t.Errorf("%d cases are recorded, there are %d", len(recorded), len(cases))
	}
	for _, b := range backends() {
		for _, c := range cases {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				path, err := c.Write(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				want, ok := recorded[c.Name]
				if sum, err := tinymodel.Digest(path); err != nil || !ok || sum != want.SHA256 {
					t.Fatalf("mlx-lm read another file; run test/oracle/goldens/kquants/make.sh (%v)", err)
				}
				n := loadOn(t, path, b.open(t))
				g := &comparison{n: n, t: t, name: "mlx-lm", want: want, made: map[check]int{}, tolerance: max(b.tolerance[n.precision], blockTolerance(c.Config))}
				g.run()
				t.Logf("off by %.1e of the largest logit at most", g.worst)
			})
		}
	}
}
