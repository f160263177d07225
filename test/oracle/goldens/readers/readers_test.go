//go:build oracle

package readers

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine"
)

const (
	modelPath  = "../../../../.cache/models/minilm"
	recordPath = "testdata/minilm.json"
	// leastCosine is the smallest cosine with the reference's vector, mostOff the
	// largest difference of one of its numbers; vectors have length 1.
	leastCosine, mostOff = 0.9999, 1e-5
)

// recorded is what test/oracle/goldens/readers/reference.py wrote.
type recorded struct {
	MadeBy string
	Cases  []struct {
		Texts   []string
		IDs     [][]int32
		Vectors [][]float64
	}
}

func TestVectorsAreThoseOfSentenceTransformers(t *testing.T) {
	if err := run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func run(ctx context.Context) error {
	b, err := os.ReadFile(filepath.FromSlash(recordPath))
	if err != nil {
		return err
	}
	var r recorded
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", recordPath, err)
	}
	if len(r.Cases) != 1 || len(r.Cases[0].Texts) < 10 || len(r.Cases[0].Vectors) != len(r.Cases[0].Texts) {
		return fmt.Errorf("%s records no texts", recordPath)
	}
	for _, name := range backends.Names() {
		if err := r.compare(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (r recorded) compare(ctx context.Context, name string) error {
	b, err := backends.Open(name, backends.Options{})
	if err != nil {
		return err
	}
	reader, err := engine.OpenReader(ctx, modelPath, b, model.Embed)
	if err != nil {
		return err
	}
	defer reader.Close()
	want := r.Cases[0]
	began := time.Now()
	got, tokens, err := reader.Embed(ctx, want.Texts, embed.Options{Truncate: true})
	if err != nil {
		return err
	}
	took := time.Since(began)
	expected := 0
	for _, ids := range want.IDs {
		expected += len(ids)
	}
	if tokens != expected {
		return fmt.Errorf("%d tokens were read, the reference read %d", tokens, expected)
	}
	least, worst := 1.0, 0.0
	for i, v := range got {
		cosine, off := compared(v, want.Vectors[i])
		least, worst = min(least, cosine), max(worst, off)
		if !(cosine >= leastCosine && off <= mostOff) {
			return fmt.Errorf("text %d: cosine %.7f, want %v; off by %.2g, want %v", i, cosine, leastCosine, off, mostOff)
		}
	}
	fmt.Printf("%s: %d texts of %d tokens in %.2f s; least cosine %.7f, off by %.1e at most (%s)\n", name, len(got), tokens, took.Seconds(), least, worst, r.MadeBy)
	return nil
}

// compared gives the cosine of two vectors and the largest difference.
func compared(got []float32, want []float64) (cosine, off float64) {
	if len(got) != len(want) {
		return 0, math.Inf(1)
	}
	var dot, a, b float64
	for i, w := range want {
		g := float64(got[i])
		dot, a, b = dot+g*w, a+g*g, b+w*w
		off = max(off, math.Abs(g-w))
	}
	return dot / math.Sqrt(a*b), off
}
