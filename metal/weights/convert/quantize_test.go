//go:build !race

package convert

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func target(t *testing.T, text string) Target {
	t.Helper()
	to, err := ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func rules(t *testing.T, lines ...string) []Rule {
	t.Helper()
	r, err := ReadRules(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEveryModeIsWrittenAndReadBack: the words are those of package quant, which
// are MLX's.
func TestEveryModeIsWrittenAndReadBack(t *testing.T) {
	source := folderOf(t, small(tinymodel.Qwen3), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	before := open(t, source)
	all := []string{"mxfp4", "mxfp8", "nvfp4"}
	for _, bits := range []string{"2", "3", "4", "5", "6", "8"} {
		all = append(all, bits+":32", bits+":64", bits+":128")
	}
	for _, mode := range all {
		t.Run(mode, func(t *testing.T) {
			to := target(t, mode)
			f := converted(t, source, Options{Plan: Plan{Rest: to}})
			want := to.format(quant.BFloat16)
			for _, e := range f.Entries() {
				if len(e.Shape) == 1 {
					continue
				}
				if e.Format != want {
					t.Fatalf("%s is %v, want %v", e.Path, e.Format, want)
				}
				was, _ := before.Entry(e.Path)
				old, row := values(t, before, was), make([]float32, e.Columns())
				r, err := want.NewRow(e.Columns())
				if err != nil {
					t.Fatal(err)
				}
				for i, got := range values(t, f, e) {
					if err := errors.Join(want.Quantize(old[i], r), want.Dequantize(r, row)); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, row) {
						t.Fatalf("row %d of %s is %v, want %v", i, e.Path, got[:4], row[:4])
					}
				}
			}
		})
	}
}

// TestPlansMixFormats: the first rule that matches a path counts, the others get
// the rest, and config.json says it by path.
func TestPlansMixFormats(t *testing.T) {
	c := small(tinymodel.Llama)
	c.Untied, c.Layers = true, 2
	source := folderOf(t, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	f := converted(t, source, Options{Plan: Plan{Rest: Affine(4, 64), Rules: rules(t,
		"# heads are fine", "*embed_tokens=8:64", "lm_head=8:32   # finer", "", "model.layers.0.*=mxfp8", "*down_proj=keep", "*.o_proj = nvfp4")}})
	for path, want := range map[string]string{
		"model.embed_tokens": "affine 8-bit group 64 bfloat16", "lm_head": "affine 8-bit group 32 bfloat16",
		"model.layers.0.mlp.down_proj": "mxfp8", "model.layers.1.mlp.down_proj": "bfloat16",
		"model.layers.1.self_attn.o_proj": "nvfp4", "model.layers.1.self_attn.q_proj": "affine 4-bit group 64 bfloat16",
	} {
		if e, ok := f.Entry(path + ".weight"); !ok || e.Format.String() != want {
			t.Errorf("%s is %v, want %s", path, e.Format, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(f.Folder().Path(), configFile))
	if err != nil {
		t.Fatal(err)
	}
	var cfg struct{ Quantization map[string]any }
	if err := json.Unmarshal(text, &cfg); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]map[string]any{
		"lm_head":                         {"bits": 8.0, "group_size": 32.0, "mode": "affine"},
		"model.layers.1.self_attn.o_proj": {"bits": 4.0, "group_size": 16.0, "mode": "nvfp4"},
	} {
		if got, _ := cfg.Quantization[path].(map[string]any); !maps.Equal(got, want) {
			t.Errorf("config.json says %v of %s, want %v", got, path, want)
		}
	}
}

func TestOnlySomeLayersAreQuantised(t *testing.T) {
	source := folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)})
	f := converted(t, source, Options{Plan: Plan{Rules: rules(t, "*_proj=mxfp4")}})
	for path, want := range map[string]quant.Mode{"model.embed_tokens.weight": quant.Dense, "model.layers.0.mlp.up_proj.weight": quant.MXFP4} {
		if e, _ := f.Entry(path); e.Format.Mode != want {
			t.Errorf("%s is %v", path, e.Format)
		}
	}
}

// TestWhatIsQuantisedIsNotRoundedTwice unless it is asked for, or the rounding
// is somewhere else.
func TestWhatIsQuantisedIsNotRoundedTwice(t *testing.T) {
	for name, source := range map[string]string{
		"affine": folderOf(t, small(tinymodel.Qwen3), tinymodel.Layout{Matrices: quant.AffineOf(8, 64, quant.BFloat16)}),
		"blocks": ggufFile(t, small(tinymodel.Qwen3)),
	} {
		t.Run(name, func(t *testing.T) {
			f, out := open(t, source), filepath.Join(t.TempDir(), "out")
			_, err := Run(context.Background(), f, Options{Out: out, Plan: Plan{Rest: Affine(4, 64)}})
			if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "is already quantised") || !strings.Contains(err.Error(), "--dequantize") {
				t.Errorf("error %v, want ErrOptions with the remedy", err)
			}
			wantEmpty(t, filepath.Dir(out))
			got := converted(t, source, Options{Plan: Plan{Rest: target(t, "mxfp8"), Again: true}})
			if e, _ := got.Entry("model.layers.0.mlp.up_proj.weight"); e.Format.Mode != quant.MXFP8 {
				t.Errorf("asked for, it is %v", e.Format)
			}
			wantValues(t, f, converted(t, source, Options{Plan: Plan{Rest: Affine(4, 64), Rules: rules(t, "*=keep")}}))
		})
	}
}

func TestPlansThatCannotBeMeantAreRefused(t *testing.T) {
	c := small(tinymodel.Llama)
	c.FeedForward = 160
	f := open(t, folderOf(t, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}))
	for says, p := range map[string]Plan{
		`"*embedding" matches no remaining layer`: {Rules: rules(t, "*embedding=8")},
		`"*.up_proj" matches no remaining layer`:  {Rules: rules(t, "*_proj=keep", "*.up_proj=8:32")},
		"mlp.down_proj has rows of 160":           {Rules: rules(t, "*.down_proj=4:64")},
		"layers *: 4 bits in groups of 16":        {Rules: []Rule{{Layers: "*", As: Affine(4, 16)}}},
		"7 bits in groups of 64":                  {Rest: Affine(7, 64)},
		"0 bits in groups of 32: unsupported":     {Rest: Affine(0, 32)},
	} {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := Run(context.Background(), f, Options{Out: out, Plan: p}); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want ErrOptions that says %s", err, says)
		}
		wantEmpty(t, filepath.Dir(out))
	}
	for _, text := range []string{"", "=4", "x", "x=", "x=four", "x=4:", "x=4:16", "x=9:64", "x=4:64:1", "a/b=4", "[=4", "x=mxfp6"} {
		if r, err := ParseRule(text); !errors.Is(err, ErrOptions) {
			t.Errorf("%q is read as %+v (%v)", text, r, err)
		}
	}
	if _, err := ReadRules(strings.NewReader("a=4\n\nb=5:5")); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("error %v, want the line", err)
	}
}
