//go:build !race

package weights_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// draftFolder is a folder of a model with a draft head, in which a file was changed.
func draftFolder(t *testing.T, drafts tinymodel.Drafts, l tinymodel.Layout, name, from, to string) *weights.File {
	t.Helper()
	c := tinymodel.DraftCases()[1].Config
	c.Drafts = drafts
	path := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, c, l); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, name)
	b, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(b, []byte(from)) {
		t.Fatalf("%s has no %q: %v", name, from, err)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte(from), []byte(to), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func readFacts(t *testing.T, f *weights.File) model.Facts {
	t.Helper()
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// TestADraftHeadCountsAsALayer: its weights, its keys and values, and for each sequence the
// states before a draft.
func TestADraftHeadCountsAsALayer(t *testing.T) {
	for name, l := range map[string]tinymodel.Layout{"as trained": {Matrices: quant.DenseOf(quant.BFloat16)}, "quantised": {Matrices: quant.AffineOf(4, 32, quant.BFloat16)}} {
		plain := readFacts(t, draftFolder(t, tinymodel.NoDrafts, l, "config.json", "{", "{"))
		f := draftFolder(t, tinymodel.RandomDrafts, l, "config.json", "{", "{")
		unread := f.Unread()
		with := readFacts(t, f)
		if !f.Dim.Drafts || unread != 0 || with.WeightBytes <= plain.WeightBytes {
			t.Errorf("%s: drafts %t, %d bytes unread, weights of %d bytes, %d without a head", name, f.Dim.Drafts, unread, with.WeightBytes, plain.WeightBytes)
		}
		var head int64
		for _, s := range f.Dim.DraftSlots() {
			e, _ := f.Entry(s.Path)
			head += e.Held()
		}
		want := plain
		want.Layers, want.GrowingLayers, want.RecurrentStateBytes = plain.Layers+1, plain.GrowingLayers+1, 2*plain.RecurrentStateBytes
		want.WeightBytes, want.DraftWeightBytes = want.WeightBytes+head, head
		if want.WideWeightBytes > 0 {
			want.WideWeightBytes = with.WideWeightBytes
		}
		if with != want {
			t.Errorf("%s: facts %+v, want %+v", name, with, want)
		}
		unused := with.WithoutDraftHead()
		if unused.WideWeightBytes = plain.WideWeightBytes; unused != plain {
			t.Errorf("%s: where its head is not used a model has %+v, want %+v", name, unused, plain)
		}
		if f.DropDraft(); f.Dim.Drafts || readFacts(t, f) != plain || f.Unread() == 0 {
			t.Errorf("%s: without its head a model has %+v, want %+v", name, readFacts(t, f), plain)
		}
	}
}

// TestADraftHeadThatIsNotAsPublishedIsNotLoaded, and its model is.
func TestADraftHeadThatIsNotAsPublishedIsNotLoaded(t *testing.T) {
	l := tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}
	plain := readFacts(t, draftFolder(t, tinymodel.NoDrafts, l, "config.json", "{", "{"))
	for name, c := range map[string]struct{ file, from, to string }{
		"a norm is missing":         {"model.safetensors", "mtp.norm.weight", "mtp.nope.weight"},
		"experts are missing":       {"model.safetensors", "mtp.layers.0.mlp.experts.down_proj", "mtp.layers.0.mlp.experts.dawn_proj"},
		"it has two layers":         {"config.json", `"num_hidden_layers"`, `"mtp_num_hidden_layers": 2, "num_hidden_layers"`},
		"it has its own embeddings": {"config.json", `"num_hidden_layers"`, `"mtp_use_dedicated_embeddings": true, "num_hidden_layers"`},
	} {
		f := draftFolder(t, tinymodel.RandomDrafts, l, c.file, c.from, c.to)
		if f.Dim.Drafts || readFacts(t, f) != plain || f.Unread() == 0 {
			t.Errorf("%s: drafts %t, %d bytes unread, facts %+v", name, f.Dim.Drafts, f.Unread(), readFacts(t, f))
		}
	}
}
