package nn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// watched notes the first row of everything that is loaded.
type watched struct {
	tensor.Backend
	firsts [][]byte
}

func (w *watched) LoadMatrix(f quant.Format, out, in int, fill func(func(int, quant.Row) error) error) (tensor.Matrix, error) {
	var first []byte
	var mu sync.Mutex
	m, err := w.Backend.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
		return fill(func(row int, r quant.Row) error {
			if row == 0 {
				sizes, err := f.Sizes(in)
				if err != nil {
					return err
				}
				mu.Lock()
				first = bytes.Clone(r.Raw[:sizes.Raw])
				mu.Unlock()
			}
			return put(row, r)
		})
	})
	w.firsts = append(w.firsts, first)
	return m, err
}

func (w *watched) LoadVector(t quant.Type, raw []byte) (tensor.Array, error) {
	w.firsts = append(w.firsts, bytes.Clone(raw))
	return w.Backend.LoadVector(t, raw)
}

func open(t *testing.T, c tinymodel.Config) *weights.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestTensorsAreReadInTheOrderOfTheFile: a family may declare its layers in any
// order, and a disk is fast in one.
func TestTensorsAreReadInTheOrderOfTheFile(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.NormSpread, c.Untied = tinymodel.Qwen3, 0.5, true
	f := open(t, c)
	b := &watched{Backend: ref.New(ref.Options{})}
	l := nn.NewLoader(b, f, nil)
	model, err := nn.LoadDecoder(context.Background(), l, f.Dim)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, raw := range b.firsts {
		got = append(got, named(t, f, raw))
	}
	for _, e := range f.Entries() {
		want = append(want, e.Path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of reading (-file +read):\n%s", diff)
	}
	model.Release()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// named finds the tensor that begins with a row.
func named(t *testing.T, f *weights.File, raw []byte) string {
	t.Helper()
	for _, e := range f.Entries() {
		found := errors.New("found")
		err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
			if row == 0 && bytes.Equal(r.Raw, raw) {
				return found
			}
			return nil
		})
		if errors.Is(err, found) {
			return e.Path
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("unknown row of %d bytes", len(raw))
}

func TestATensorThatIsMissingIsNamedBeforeAnythingIsRead(t *testing.T) {
	f := open(t, tinymodel.Default())
	b := &watched{Backend: ref.New(ref.Options{})}
	l := nn.NewLoader(b, f, nil)
	var lin nn.Linear
	var norm nn.RMSNorm
	l.Linear("model.embed_tokens", &lin)
	l.RMSNorm("model.layers.7.self_attn.q_norm", 1e-6, &norm)
	l.Linear("lm_head", &lin)
	err := l.Load(context.Background())
	if !errors.Is(err, weights.ErrMissing) || !strings.Contains(err.Error(), "model.layers.7.self_attn.q_norm.weight") {
		t.Errorf("error %v, want one that names the first missing tensor", err)
	}
	if len(b.firsts) != 0 {
		t.Errorf("%d tensors were read", len(b.firsts))
	}
	l.Release()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestAVectorIsNotTakenForAMatrix(t *testing.T) {
	f := open(t, tinymodel.Default())
	b := ref.New(ref.Options{})
	l := nn.NewLoader(b, f, nil)
	var lin nn.Linear
	l.Linear("model.norm", &lin)
	if err := l.Load(context.Background()); !errors.Is(err, weights.ErrInvalid) {
		t.Errorf("error %v, want ErrInvalid", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// counted is a scope that notes how many rows its products have.
type counted struct {
	tensor.Scope
	rows *[]int
}

func (c counted) Child() tensor.Scope { return counted{Scope: c.Scope.Child(), rows: c.rows} }

func (c counted) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	*c.rows = append(*c.rows, x.Shape()[0])
	return c.Scope.Linear(x, ms...)
}

// TestTheLastBlockWorksOnTheWantedRowsAlone: a chunk of a long prompt does not
// need the last block's output of the other rows.
func TestTheLastBlockWorksOnTheWantedRowsAlone(t *testing.T) {
	c := tinymodel.Default()
	f := open(t, c)
	b := ref.New(ref.Options{})
	l := nn.NewLoader(b, f, nil)
	model, err := nn.LoadDecoder(context.Background(), l, f.Dim)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := b.NewCache(model.CacheSpec())
	if err != nil {
		t.Fatal(err)
	}
	// Products of a block: q k v, o, gate up, down; of the head: one.
	for i, c := range []struct {
		name string
		rows []int
		want []int
	}{
		{name: "no row", want: []int{5, 5, 5, 5, 5}},
		{name: "one row", rows: []int{4}, want: []int{5, 5, 5, 5, 5, 1, 1, 1, 1}},
		{name: "two rows in another order", rows: []int{3, 1}, want: []int{5, 5, 5, 5, 5, 2, 2, 2, 2}},
		{name: "all rows", rows: []int{0, 1, 2, 3, 4}, want: []int{5, 5, 5, 5, 5, 5, 5, 5, 5}},
	} {
		var rows []int
		sc := counted{Scope: b.NewScope(context.Background()), rows: &rows}
		out := model.Step(sc, cache, sc.IDs([]int32{1, 2, 3, 4, 5}), []tensor.Segment{{Request: tensor.RequestID(i), Length: 5}}, c.rows)
		if err := sc.Err(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if (out == nil) != (c.rows == nil) || out != nil && !slices.Equal(out.Shape(), []int{len(c.rows), f.Dim.Vocabulary}) {
			t.Errorf("%s: result %v", c.name, out)
		}
		if diff := cmp.Diff(c.want, rows); diff != "" {
			t.Errorf("%s: rows of the products (-want +got):\n%s", c.name, diff)
		}
		if got := cache.Length(tensor.RequestID(i)); got != 5 {
			t.Errorf("%s: the cache holds %d tokens", c.name, got)
		}
		sc.Close()
	}
	cache.Release()
	model.Release()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// typed notes the types of vectors.
type typed struct {
	tensor.Backend
	types []quant.Type
}

func (b *typed) LoadVector(t quant.Type, raw []byte) (tensor.Array, error) {
	b.types = append(b.types, t)
	return b.Backend.LoadVector(t, raw)
}

// A vector of another type would change that of everything that is computed with it.
func TestVectorsThatNoFileHasAreOfTheModelsType(t *testing.T) {
	for name, config := range map[string]string{
		"ones in norms of groups": `{"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
			"hybrid_override_pattern": "M*", "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "time_step_limit": [0.0, 1e9],
			"mlp_hidden_act": "relu2", "use_conv_bias": true, "vocab_size": 256, "max_position_embeddings": 64, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false}`,
		"zeros as biases of norms": `{"model_type": "cohere", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
			"vocab_size": 256, "max_position_embeddings": 64, "layer_norm_eps": 1e-5, "logit_scale": 0.5, "rope_theta": 1e4, "tie_word_embeddings": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := tinymodel.Described{Name: "constants", Seed: 1, Matrices: quant.DenseOf(quant.BFloat16)}
			if err := json.Unmarshal([]byte(config), &m.Config); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(config, "nemotron_h") {
				m.Renamed = []string{"model.layers.", "backbone.layers.", "model.embed_tokens.", "backbone.embeddings.", "model.norm.", "backbone.norm_f."}
			}
			dir := filepath.Join(t.TempDir(), "model")
			if err := m.Write(dir); err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b := &typed{Backend: ref.New(ref.Options{})}
			model, err := nn.LoadDecoder(t.Context(), nn.NewLoader(b, f, nil), f.Dim)
			if err != nil {
				t.Fatal(err)
			}
			defer model.Release()
			for _, got := range b.types {
				if got != quant.BFloat16 {
					t.Errorf("vectors have the types %v, want bfloat16", b.types)
					break
				}
			}
		})
	}
}
