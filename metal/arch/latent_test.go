//go:build !race

package arch_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// TestMatricesThatLieTurnedAreNotConverted: they would be written with rows and columns
// exchanged.
func TestMatricesThatLieTurnedAreNotConverted(t *testing.T) {
	for name, lies := range map[string]string{"deepseek_v2": "kv_b_proj", "deepseek_v3": "kv_b_proj", "llama4_text": "experts.gate_up_proj"} {
		for _, c := range describedModels(t)[name] {
			if !strings.Contains(c.tensorNames(), lies) {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				f, err := weights.Open(c.write(t))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				o := convert.Options{Out: filepath.Join(t.TempDir(), "out"), Plan: convert.Plan{Again: true}}
				if o.Plan.Rest, err = convert.ParseTarget("8:32"); err != nil {
					t.Fatal(err)
				}
				if _, err = convert.Run(context.Background(), f, o); !errors.Is(err, weights.ErrUnsupported) {
					t.Errorf("error %v, want one that it is unsupported", err)
				}
			})
		}
	}
}

func (d described) tensorNames() (all string) {
	for name := range d.Tensors {
		all += name + "\n"
	}
	return all
}
