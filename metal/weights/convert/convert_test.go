//go:build !race

package convert

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// small is a model whose rows are whole groups of 32, 64 and 128.
func small(family tinymodel.Family) tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.HeadSize, c.NormSpread = family, 1, 128, 128, 4, 32, 0.25
	if family == tinymodel.Qwen3MoE {
		c.Experts = tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: 64}
	}
	if family == tinymodel.Qwen3Next {
		c.Layers, c.Experts = 2, tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: 64, Shared: 64}
		c.Hybrid = tinymodel.Hybrid{Interval: 2, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 32, Taps: 4, Rotary: 0.25}
	}
	if family == tinymodel.Qwen35 {
		c.Layers, c.Hybrid = 2, tinymodel.Hybrid{Interval: 2, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 32, Taps: 4, Rotary: 0.5}
	}
	if family == tinymodel.GPTOSS {
		c.Window, c.FeedForward, c.Untied, c.Experts = 32, 64, true, tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: 64}
		c.Scaling = tinymodel.Scaling{Kind: "yarn", Factor: 4, Original: 128, Fractional: true}
	}
	if family == tinymodel.Ministral3 {
		c.Scaling, c.Growth = tinymodel.Scaling{Kind: "yarn", Factor: 8, Original: 16}, 0.3
	}
	if family == tinymodel.Gemma3 {
		c.Window, c.Pattern, c.LocalTheta = 32, 1, 2e4
	}
	return c
}

func ggufFile(t *testing.T, c tinymodel.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return path
}

func folderOf(t *testing.T, c tinymodel.Config, l tinymodel.Layout) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	if err := tinymodel.WriteFolder(path, c, l); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *weights.File {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// converted converts the model at source and opens the result.
func converted(t *testing.T, source string, o Options) *weights.File {
	t.Helper()
	o.Out = filepath.Join(t.TempDir(), "out")
	r, err := Run(context.Background(), open(t, source), o)
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, o.Out)
	if facts, err := f.Facts(); err != nil || facts.WeightBytes != r.Bytes || len(f.Entries()) != r.Tensors {
		t.Errorf("the report says %+v, the folder holds %+v (%v)", r, facts, err)
	}
	return f
}

// wantDimensions compares the decoder of a model with that of a conversion, which has no
// vision tower. GGUF has numbers as float32.
func wantDimensions(t *testing.T, want, got family.Dimensions) {
	t.Helper()
	want.Tower, want.TowerFault = nil, nil
	want.NormEps, got.NormEps = float64(float32(want.NormEps)), float64(float32(got.NormEps))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dimensions differ (-source +folder):\n%s", diff)
	}
}

// wantValues wants every tensor of a model to mean the same in another.
func wantValues(t *testing.T, want, got *weights.File) {
	t.Helper()
	for _, e := range want.Entries() {
		g, ok := got.Entry(e.Path)
		if !ok {
			t.Fatalf("no %s", e.Path)
		}
		a, b := values(t, want, e), values(t, got, g)
		for r := range a {
			if want.Header() != nil && want.Dim.NormsLessOne() && strings.HasSuffix(e.Path, "norm.weight") {
				for i := range b[r] {
					b[r][i]++ // as it is meant
				}
			}
			if !slices.Equal(a[r], b[r]) {
				t.Fatalf("row %d of %s is %v, was %v", r, e.Path, b[r], a[r])
			}
		}
	}
}

// values are a tensor's numbers, row by row.
func values(t *testing.T, f *weights.File, e weights.Entry) [][]float32 {
	t.Helper()
	out := make([][]float32, e.Rows())
	if err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
		out[row] = make([]float32, e.Columns())
		return e.Format.Dequantize(r, out[row])
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGGUFBecomesAFolderOfTheSameValues(t *testing.T) {
	for _, family := range []tinymodel.Family{tinymodel.Llama, tinymodel.Qwen2, tinymodel.Qwen3, tinymodel.Qwen3MoE, tinymodel.Gemma3} {
		for _, kind := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q5_0, weights.Q5_1, weights.Q8_0, weights.Q2_K, weights.Q3_K, weights.Q4_K, weights.Q5_K, weights.Q6_K} {
			t.Run(fmt.Sprintf("%s in %v", family, kind), func(t *testing.T) {
				c := small(family)
				if _, ok := kind.RowBytes(128); !ok { // blocks of 256
					c.Hidden, c.FeedForward, c.QueryHeads = 256, 256, 8
				}
				if c.Experts.Count > 0 {
					c.Experts.FeedForward = c.Hidden
				}
				c.Type, c.Untied = kind, family == tinymodel.Llama
				source := open(t, ggufFile(t, c))
				got := converted(t, ggufFile(t, c), Options{})
				wantDimensions(t, source.Dim, got.Dim)
				wantValues(t, source, got)
				if kind.Quantized() && got.Precision() != quant.Float32 {
					t.Errorf("precision %v: scales lost something", got.Precision())
				}
				if len(got.Entries()) != len(source.Entries()) {
					t.Errorf("%d tensors of %d", len(got.Entries()), len(source.Entries()))
				}
				for _, e := range source.Entries() {
					g, ok := got.Entry(e.Path)
					if !ok || g.Format.Quantized() != e.Format.Quantized() {
						t.Fatalf("%s is %v, was %v", e.Path, g.Format, e.Format)
					}
				}
			})
		}
	}
}

// TestExpertsAreStackedWhenTheyAreConverted, because mlx-lm packs them so, and
// reads routers of 8 bits.
func TestExpertsAreStackedWhenTheyAreConverted(t *testing.T) {
	source := folderOf(t, small(tinymodel.Qwen3MoE), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)})
	same := converted(t, source, Options{})
	wantValues(t, open(t, source), same)
	packed := converted(t, source, Options{Plan: Plan{Rest: Affine(4, 32), Again: true}})
	for path, want := range map[string]quant.Format{
		"model.layers.0.mlp.switch_mlp.up_proj.weight": quant.AffineOf(4, 32, quant.Float32),
		"model.layers.0.mlp.gate.weight":               quant.AffineOf(8, 64, quant.Float32),
	} {
		e, ok := packed.Entry(path)
		if !ok || e.Format != want || e.Name != path {
			t.Errorf("%s is %v, called %s; want %v", path, e.Format, e.Name, want)
		}
	}
	wantDimensions(t, open(t, source).Dim, packed.Dim)
}

// TestTheDecoderOfAModelThatSeesIsConvertedAlone, under the name that it has by
// itself.
func TestTheDecoderOfAModelThatSeesIsConvertedAlone(t *testing.T) {
	for _, family := range []tinymodel.Family{tinymodel.Gemma3, tinymodel.Mistral, tinymodel.Ministral3} {
		for _, modern := range []bool{false, true} {
			source := folderOf(t, small(family), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32), Sees: true, Modern: modern})
			f := converted(t, source, Options{})
			wantValues(t, open(t, source), f)
			wantDimensions(t, open(t, source).Dim, f.Dim)
			text, err := os.ReadFile(filepath.Join(f.Folder().Path(), configFile))
			if err != nil || !strings.Contains(string(text), fmt.Sprintf(`"model_type": %q`, family)) || strings.Contains(string(text), "vision") || f.Unread() != 0 {
				t.Errorf("%s: %d bytes of eyes and the configuration %s, %v", family, f.Unread(), text, err)
			}
		}
	}
}

func TestLargeModelsAreManyFilesWithAnIndex(t *testing.T) {
	source := folderOf(t, small(tinymodel.Qwen3), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	f := converted(t, source, Options{shard: 40_000})
	names, err := f.Folder().Names(".safetensors")
	if err != nil || len(names) < 4 || !f.Folder().Has(indexFile) || names[0] != fmt.Sprintf("model-00001-of-%05d.safetensors", len(names)) {
		t.Errorf("files %v, index %v (%v)", names, f.Folder().Has(indexFile), err)
	}
	for _, n := range names {
		if st, err := os.Stat(filepath.Join(f.Folder().Path(), n)); err != nil || st.Size() > 40_000+4096 && st.Size() < 100_000 {
			t.Errorf("%s has %d bytes (%v)", n, st.Size(), err)
		}
	}
	wantValues(t, open(t, source), f)
	if one := converted(t, source, Options{}); one.Folder().Has(indexFile) {
		t.Error("one file has an index")
	}
}

func TestNothingIsWrittenOver(t *testing.T) {
	f := open(t, ggufFile(t, small(tinymodel.Llama)))
	dir := t.TempDir()
	full, file, empty := filepath.Join(dir, "full"), filepath.Join(dir, "file"), filepath.Join(dir, "empty")
	for _, d := range []string{full, empty} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{file, filepath.Join(full, "notes.txt")} {
		if err := os.WriteFile(name, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		o    Options
		want error
	}{
		"a folder with something in it": {o: Options{Out: full}, want: ErrExists},
		"a file":                        {o: Options{Out: file}, want: ErrExists},
		"no name":                       {o: Options{}, want: ErrOptions},
		"seven bits":                    {o: Options{Out: empty, Plan: Plan{Rest: Affine(7, 64), Again: true}}, want: ErrOptions},
		"groups of sixteen":             {o: Options{Out: empty, Plan: Plan{Rest: Affine(4, 16), Again: true}}, want: ErrOptions},
		"a folder that is not there":    {o: Options{Out: filepath.Join(dir, "none", "out")}, want: os.ErrNotExist},
		"an empty folder":               {o: Options{Out: empty}, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.create = func(path string) (sink, error) {
				if c.want != nil {
					t.Error("something was begun")
				}
				return createFile(path)
			}
			if _, err := Run(context.Background(), f, c.o); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	for _, name := range []string{file, filepath.Join(full, "notes.txt")} {
		if b, err := os.ReadFile(name); err != nil || string(b) != "mine" {
			t.Errorf("%s holds %q (%v)", name, b, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".convert-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestWhatAppearsMeanwhileIsNotWrittenOver(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	o := Options{Out: out, create: func(path string) (sink, error) {
		if err := os.MkdirAll(out, 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(out, "notes.txt"), []byte("mine"), 0o644); err != nil {
			t.Error(err)
		}
		return createFile(path)
	}}
	if _, err := Run(context.Background(), open(t, ggufFile(t, small(tinymodel.Llama))), o); !errors.Is(err, ErrExists) {
		t.Errorf("error %v, want ErrExists", err)
	}
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
		t.Errorf("%v is left (%v)", left, err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "notes.txt")); err != nil || string(b) != "mine" {
		t.Errorf("the notes are %q (%v)", b, err)
	}
}

// fullDisk fails at one write.
type fullDisk struct {
	sink
	left *int
	err  error
}

func (d fullDisk) WriteAt(b []byte, at int64) (int, error) {
	if *d.left--; *d.left == -1 {
		return 0, d.err
	}
	return d.sink.WriteAt(b, at)
}

func (d fullDisk) Sync() error {
	if *d.left--; *d.left == -1 {
		return d.err
	}
	return d.sink.Sync()
}

func TestNothingIsLeftAfterAFault(t *testing.T) {
	f := open(t, folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}))
	count := 1 << 30
	o := Options{create: func(path string) (sink, error) {
		s, err := createFile(path)
		return fullDisk{sink: s, left: &count, err: &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}}, err
	}}
	o.Out = filepath.Join(t.TempDir(), "whole")
	r, err := Run(context.Background(), f, o)
	if err != nil {
		t.Fatal(err)
	}
	writes := 1<<30 - count
	for _, n := range []int{0, 1, 2, writes / 2, writes - 9, writes - 3, writes - 2, writes - 1} {
		count = n
		o.Out = filepath.Join(t.TempDir(), "out")
		_, err := Run(context.Background(), f, o)
		if !errors.Is(err, errSpace) || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes", r.Bytes)) {
			t.Errorf("disk full at write %d of %d: error %v, want ErrSpace and %d bytes", n, writes, err, r.Bytes)
		}
		wantEmpty(t, filepath.Dir(o.Out))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Run(ctx, f, Options{Out: out}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	wantEmpty(t, filepath.Dir(out))
}

func TestAModelThatDoesNotFitIsNotBegun(t *testing.T) {
	if err := room(t.TempDir(), 1<<62); !errors.Is(err, errSpace) || !strings.Contains(err.Error(), fmt.Sprint(int64(1)<<62)) {
		t.Errorf("error %v, want ErrSpace and the bytes", err)
	}
	if err := room(t.TempDir(), 1); err != nil {
		t.Error(err)
	}
}
