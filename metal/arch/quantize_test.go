//go:build !race

package arch_test

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/weights/convert"
)

// TestQuantisedModelsStayNearTheirSource bounds the change of the logits after
// a prompt, as the ratio of root mean squares. The model is random, so nothing
// in it is redundant: bounds are a third above the values measured on both
// backends. test/oracle/goldens/convert has bounds for a real model.
func TestQuantisedModelsStayNearTheirSource(t *testing.T) {
	c := tinymodel.BlockCases()[0].Config
	c.Layers = 1
	source := filepath.Join(t.TempDir(), "source")
	if err := tinymodel.WriteFolder(source, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	prompt := tinymodel.BlockCases()[0].Prompts()[0]
	for _, plan := range []struct {
		rest, layers string
		bound        float64
	}{
		{rest: "8:32", bound: 0.026}, {rest: "8:64", bound: 0.024}, {rest: "6:64", bound: 0.095}, {rest: "5:64", bound: 0.22}, {rest: "4:32", bound: 0.4}, {rest: "4:64", bound: 0.36},
		{rest: "mxfp8", bound: 0.15}, {rest: "mxfp4", bound: 0.85}, {rest: "nvfp4", bound: 0.8}, {rest: "4:64", layers: "*embed_tokens=8:64", bound: 0.23},
	} {
		folder := quantised(t, source, plan.rest, plan.layers)
		for _, b := range backends() {
			n := loadOn(t, source, b.open(t))
			want := n.all(1, prompt, len(prompt))
			got := loadOn(t, folder, b.open(t)).all(1, prompt, len(prompt))
			d := distance(got[len(got)-n.vocab:], want[len(want)-n.vocab:])
			t.Logf("%s: %s %s moves logits by %.4f", b.name, plan.rest, plan.layers, d)
			if !(d <= plan.bound) || d == 0 {
				t.Errorf("%s: %s %s moves logits by %.4f, want up to %v and not nothing", b.name, plan.rest, plan.layers, d, plan.bound)
			}
		}
	}
}

func quantised(t *testing.T, source, rest, layers string) string {
	t.Helper()
	f, err := weights.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := convert.Options{Out: filepath.Join(t.TempDir(), "out")}
	if o.Plan.Rest, err = convert.ParseTarget(rest); err != nil {
		t.Fatal(err)
	}
	if layers != "" {
		r, err := convert.ParseRule(layers)
		if err != nil {
			t.Fatal(err)
		}
		o.Plan.Rules = append(o.Plan.Rules, r)
	}
	if _, err := convert.Run(context.Background(), f, o); err != nil {
		t.Fatal(err)
	}
	return o.Out
}

func distance(got, want []float32) float64 {
	var moved, all float64
	for i, v := range want {
		moved += math.Pow(float64(got[i]-v), 2)
		all += math.Pow(float64(v), 2)
	}
	return math.Sqrt(moved / all)
}
