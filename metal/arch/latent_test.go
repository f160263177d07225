//go:build !race

package arch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
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

// TestAQuantisedExpansionTakesWhatItsHeaderPredicts on every back end: the inspection has
// the header alone.
func TestAQuantisedExpansionTakesWhatItsHeaderPredicts(t *testing.T) {
	models := 0
	for _, cases := range describedModels(t) {
		for _, c := range cases {
			if !strings.Contains(c.tensorNames(), "kv_b_proj.scales") {
				continue
			}
			models++
			dir := c.write(t)
			want, matrices := factsOf(t, dir)
			for _, b := range backends() {
				of := b.open(t)
				if n := loadOn(t, dir, of); b.name == "mlx" && n.precision != quant.Float32 {
					continue // that of the tests widens it
				}
				if got := of.Memory().Weights; got != matrices {
					t.Errorf("%s: %s keeps %d bytes of matrices, predicted are %d", c.Name, b.name, got, matrices)
				}
			}
			file := filepath.Join(dir, "model.safetensors")
			all, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data := 8 + int64(binary.LittleEndian.Uint64(all))
			if err := errors.Join(os.Truncate(file, data), os.Truncate(file, int64(len(all)))); err != nil {
				t.Fatal(err)
			}
			if got, _ := factsOf(t, dir); got != want {
				t.Errorf("%s: the header says %+v, the file %+v", c.Name, got, want)
			}
		}
	}
	if models == 0 {
		t.Error("no model has one")
	}
}

// watched notes, of the matrices of a shape, the rows, and how many are put at once.
type watched struct {
	tensor.Backend
	out, in  int
	matrices []quant.Row
	atOnce   int
}

func (w *watched) LoadMatrix(f quant.Format, out, in int, fill func(put func(int, quant.Row) error) error) (tensor.Matrix, error) {
	if out != w.out || in != w.in {
		return w.Backend.LoadMatrix(f, out, in, fill)
	}
	sizes, err := f.Sizes(in)
	if err != nil {
		return nil, err
	}
	all, err := f.NewRow(out * in)
	w.matrices = append(w.matrices, all)
	return w.Backend.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
		return fill(func(first int, r quant.Row) error {
			rows := len(r.Raw) / sizes.Raw
			w.atOnce = max(w.atOnce, rows)
			to := all.Slice(first, first+rows, sizes)
			copy(to.Raw, r.Raw)
			copy(to.Scales, r.Scales)
			copy(to.Biases, r.Biases)
			return errors.Join(err, put(first, r))
		})
	})
}

// TestKeysOfOneHeadAreTurnedAtATime, so that loading needs memory for no more.
func TestKeysOfOneHeadAreTurnedAtATime(t *testing.T) {
	for _, c := range describedModels(t)["deepseek_v2"] {
		dir := c.write(t)
		f, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		d := f.Dim
		w := &watched{Backend: ref.New(ref.Options{Threads: 2}), out: d.QueryHeads * d.Latent.Rank, in: d.Latent.Plain}
		loadOn(t, dir, w)
		if len(w.matrices) != d.Layers || w.atOnce != d.Latent.Rank {
			t.Errorf("%s: %d matrices of keys in %d layers, up to %d rows at once, want the %d of a head", c.Name, len(w.matrices), d.Layers, w.atOnce, d.Latent.Rank)
		}
	}
}

// TestAnExpansionIsQuantisedAgainAsMLXRoundsIt: from numbers in the type of its scales
// (package quant compares both steps with MLX).
func TestAnExpansionIsQuantisedAgainAsMLXRoundsIt(t *testing.T) {
	for _, c := range describedModels(t)["deepseek_v3"] {
		if !strings.HasSuffix(c.Name, "kv_b_proj whole") {
			continue
		}
		for name, s := range c.Tensors {
			if s.kind == "F32" {
				s.kind = "BF16"
				c.Tensors[name] = s
			}
		}
		dir := c.write(t)
		f, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l := f.Dim.Latent
		for name, shape := range map[string][2]int{"embed_q": {l.Rank, l.Plain}, "unembed_out": {l.Value, l.Rank}} {
			w := &watched{Backend: ref.New(ref.Options{Threads: 2}), out: f.Dim.QueryHeads * shape[0], in: shape[1]}
			loadOn(t, dir, w)
			if len(w.matrices) != f.Dim.Layers {
				t.Fatalf("%s: %d of %s in %d layers", c.Name, len(w.matrices), name, f.Dim.Layers)
			}
			for i, got := range w.matrices {
				want := requantised(t, f, fmt.Sprintf("model.layers.%d.self_attn.%s.weight", i, name))
				if !bytes.Equal(got.Raw, want.Raw) || !bytes.Equal(got.Scales, want.Scales) || !bytes.Equal(got.Biases, want.Biases) {
					t.Errorf("%s: other words of %s in layer %d", c.Name, name, i)
				}
			}
		}
	}
}

// requantised quantises the numbers of a tensor, whose matrices are turned first if they
// lie so.
func requantised(t *testing.T, f *weights.File, path string) quant.Row {
	t.Helper()
	e, _ := f.Entry(path)
	in, out := int(e.Shape[1]), e.Columns()
	values, row := make([]float32, e.Rows()*out), make([]float32, out)
	err := f.Rows(t.Context(), e, func(at int, r quant.Row) error {
		err := e.Format.DequantizeRounded(r, row)
		for i, v := range row {
			to := at*out + i
			if e.Turned() {
				to = (at/in*out+i)*in + at%in
			}
			values[to] = v
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := e.Format.NewRow(len(values))
	if err == nil {
		err = e.Format.Quantize(values, all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// factsOf returns the facts of a folder, and how many of the bytes of its weights are those
// of matrices, which back ends count apart from vectors and kernels.
func factsOf(t *testing.T, dir string) (facts model.Facts, matrices int64) {
	t.Helper()
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if facts, err = f.Facts(); err != nil {
		t.Fatal(err)
	}
	matrices = facts.WeightBytes
	for _, e := range f.Entries() {
		if len(e.Shape) == 1 || strings.Contains(e.Path, "conv") || strings.Contains(e.Path, "A_log") {
			matrices -= e.Held()
		}
	}
	return facts, matrices
}

func (d described) tensorNames() (all string) {
	for name := range d.Tensors {
		all += name + "\n"
	}
	return all
}
