//go:build !race

package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

func configOf(t *testing.T, f *weights.File) map[string]any {
	t.Helper()
	var cfg map[string]any
	if err := f.Folder().JSON(configFile, maxJSON, &cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestTheConfigurationSaysHowEachLayerIsQuantised(t *testing.T) {
	f := converted(t, folderOf(t, small(tinymodel.Llama), tinymodel.Layout{
		Matrices: quant.AffineOf(4, 64, quant.BFloat16), Overrides: map[string]quant.Format{"model.layers.0.mlp.down_proj": quant.AffineOf(8, 32, quant.BFloat16)},
	}), Options{})
	cfg := configOf(t, f)
	q, _ := cfg["quantization"].(map[string]any)
	want := map[string]any{"bits": 4.0, "group_size": 64.0, "mode": "affine"}
	other := map[string]any{"bits": 8.0, "group_size": 32.0, "mode": "affine"}
	if big := map[string]any{"bits": q["bits"], "group_size": q["group_size"], "mode": q["mode"]}; !cmp.Equal(big, want) || len(q) != 4 ||
		!cmp.Equal(q["model.layers.0.mlp.down_proj"], any(other)) || !cmp.Equal(cfg["quantization_config"], any(q)) {
		t.Errorf("quantization is %v", q)
	}
}

// TestOlderWordsForRotation: mlx-lm's llama knows rope_theta and rope_scaling
// alone.
func TestOlderWordsForRotation(t *testing.T) {
	c := small(tinymodel.Llama)
	c.Theta, c.Scaling = 5e5, tinymodel.Scaling{Kind: "llama3", Factor: 8, Original: 64, Low: 1, High: 4}
	source := folderOf(t, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32), Modern: true})
	f := converted(t, source, Options{})
	cfg := configOf(t, f)
	scaling, _ := cfg["rope_scaling"].(map[string]any)
	if cfg["rope_theta"] != 5e5 || scaling["rope_type"] != "llama3" || scaling["factor"] != 8.0 || cfg["tie_word_embeddings"] != true {
		t.Errorf("config is %v", cfg)
	}
	wantDimensions(t, open(t, source).Dim, f.Dim)
}

// TestScalingOfAFileIsSaidInWords of the folder, so that the same dimensions
// come back.
func TestScalingOfAFileIsSaidInWords(t *testing.T) {
	ramp, llama3, broken := make([]byte, 0, 64), make([]byte, 0, 64), make([]byte, 0, 64)
	c := small(tinymodel.Llama)
	c.RopeFactors, c.Theta = true, 500000
	want := family.Llama3Scaling{Factor: 32, Low: 1, High: 4, Context: 8192}.Factors(family.Rope{Theta: c.Theta, Size: c.HeadSize})
	for i, f := range want {
		ramp = binary.LittleEndian.AppendUint32(ramp, math.Float32bits(float32(i+1)))
		llama3 = binary.LittleEndian.AppendUint32(llama3, math.Float32bits(f))
		broken = binary.LittleEndian.AppendUint32(broken, uint32(0x7fc00000+i)) // not numbers
	}
	withFactors, plain := ggufFile(t, c), small(tinymodel.Llama)
	yarn := withKeys(t, ggufFile(t, plain), text("llama.rope.scaling.type", "yarn"), float("llama.rope.scaling.factor", 4), whole("llama.rope.scaling.original_context_length", 64))
	t.Run("factors of Llama 3", func(t *testing.T) {
		f := converted(t, replaced(t, withFactors, ramp, llama3), Options{})
		if diff := cmp.Diff(want, f.Dim.Rope.Factors); diff != "" {
			t.Errorf("factors differ (-file +folder):\n%s", diff)
		}
	})
	for name, path := range map[string]string{"other factors": withFactors, "factors that are no numbers": replaced(t, withFactors, ramp, broken)} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			if _, err := Run(context.Background(), open(t, path), Options{Out: out}); !errors.Is(err, weights.ErrUnsupported) {
				t.Errorf("error %v, want ErrUnsupported", err)
			}
		})
	}
	plain.Scaling = tinymodel.Scaling{Kind: "linear", Factor: 2.5}
	for name, path := range map[string]string{"linear": ggufFile(t, plain), "yarn": yarn} {
		t.Run(name, func(t *testing.T) {
			wantDimensions(t, open(t, path).Dim, converted(t, path, Options{}).Dim)
		})
	}
}

// replaced is a copy of a file with other bytes in one place.
func replaced(t *testing.T, path string, old, with []byte) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || bytes.Count(b, old) != 1 {
		t.Fatalf("%d places to change (%v)", bytes.Count(b, old), err)
	}
	out := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(out, bytes.Replace(b, old, with, 1), 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// withHeader is a copy of a GGUF file with a changed header. The data stays at
// a multiple of 32.
func withHeader(t *testing.T, path string, change func(header []byte) []byte) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := weights.ReadHeader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	last := "output_norm.weight" // of the tensors, followed by dimensions, type and offset
	out := change(slices.Clone(b[:bytes.LastIndex(b[:h.DataOffset], []byte(last))+len(last)+4+8+4+8]))
	out = append(out, make([]byte, (32-len(out)%32)%32)...)
	name := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(name, append(out, b[h.DataOffset:]...), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// withKeys is a copy of a GGUF file with more metadata.
func withKeys(t *testing.T, path string, keys ...[]byte) string {
	return withHeader(t, path, func(b []byte) []byte {
		count := binary.LittleEndian.Uint64(b[16:]) + uint64(len(keys))
		return slices.Concat(b[:16], binary.LittleEndian.AppendUint64(nil, count), bytes.Join(keys, nil), b[24:])
	})
}

func key(name string, kind uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(name)))
	return binary.LittleEndian.AppendUint32(append(b, name...), kind)
}

func text(name, v string) []byte {
	return append(binary.LittleEndian.AppendUint64(key(name, 8), uint64(len(v))), v...)
}

func float(name string, v float32) []byte {
	return binary.LittleEndian.AppendUint32(key(name, 6), math.Float32bits(v))
}

func whole(name string, v uint32) []byte { return binary.LittleEndian.AppendUint32(key(name, 4), v) }

func TestTheTokenizerOfAFileReadsTheSame(t *testing.T) {
	for _, pre := range []string{"smollm", "gpt-2", "qwen2", "llama-bpe"} {
		t.Run(pre, func(t *testing.T) {
			path := withHeader(t, ggufFile(t, small(tinymodel.Llama)), func(b []byte) []byte {
				return bytes.Replace(b, text("tokenizer.ggml.pre", "smollm"), text("tokenizer.ggml.pre", pre), 1)
			})
			path = withKeys(t, path, text("tokenizer.chat_template.tool_use", "tools: {{ tools }}"))
			f := converted(t, path, Options{})
			ours, err := tokenizer.FromGGUF(open(t, path).Metadata)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := tokenizer.FromFolder(f.Folder())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"", "The agent isn't 12345 macs.\n\n  x", "<|im_start|>user\nhi<|im_end|>", "e\u0301 \u212b 日本語 ½ ١٢", "\tif x:\r\n\t\treturn\u00a0y  "} {
				for _, special := range []bool{false, true} {
					o := tokenizer.EncodeOptions{AddBOS: true, ParseSpecial: special}
					a, errA := ours.Encode(s, o)
					b, errB := theirs.Encode(s, o)
					if errA != nil || errB != nil || !slices.Equal(a, b) {
						t.Errorf("%q: the file gives %v (%v), the folder %v (%v)", s, a, errA, b, errB)
					}
				}
			}
			if !slices.Equal(ours.Special().Ends(), theirs.Special().Ends()) || ours.Special().BOS != theirs.Special().BOS {
				t.Errorf("special tokens %+v, were %+v", theirs.Special(), ours.Special())
			}
			var cfg struct {
				Template []struct{ Name, Template string } `json:"chat_template"`
			}
			if err := f.Folder().JSON("tokenizer_config.json", maxJSON, &cfg); err != nil || len(cfg.Template) != 2 || cfg.Template[1].Template != "tools: {{ tools }}" {
				t.Errorf("templates %+v (%v)", cfg.Template, err)
			}
		})
	}
}

// TestTheTokenizerIsWrittenInItsOwnComponents: some of what makes pieces shows
// only with a large vocabulary; test/oracle/goldens/convert reads texts with one.
func TestTheTokenizerIsWrittenInItsOwnComponents(t *testing.T) {
	type parts struct {
		Normalizer *struct{ Type string }
		Pre        struct {
			Type          string
			UseRegex      bool `json:"use_regex"`
			PreTokenizers []struct {
				Type     string
				UseRegex bool `json:"use_regex"`
			}
		} `json:"pre_tokenizer"`
		Model struct {
			IgnoreMerges bool `json:"ignore_merges"`
		}
		Added []addedToken `json:"added_tokens"`
	}
	for pre, want := range map[string]string{
		"gpt-2": "ByteLevel true, merges", "smollm": "Digits false, ByteLevel true, merges",
		"llama-bpe": "Split false, ByteLevel false, whole", "qwen2": "NFC, Split false, ByteLevel false, merges",
	} {
		t.Run(pre, func(t *testing.T) {
			path := withHeader(t, ggufFile(t, small(tinymodel.Llama)), func(b []byte) []byte {
				return bytes.Replace(b, text("tokenizer.ggml.pre", "smollm"), text("tokenizer.ggml.pre", pre), 1)
			})
			var p parts
			if err := converted(t, path, Options{}).Folder().JSON("tokenizer.json", maxJSON, &p); err != nil {
				t.Fatal(err)
			}
			var got []string
			if p.Normalizer != nil {
				got = append(got, p.Normalizer.Type)
			}
			if p.Pre.Type != "Sequence" {
				got = append(got, fmt.Sprintf("%s %v", p.Pre.Type, p.Pre.UseRegex))
			}
			for _, s := range p.Pre.PreTokenizers {
				got = append(got, fmt.Sprintf("%s %v", s.Type, s.UseRegex))
			}
			got = append(got, map[bool]string{true: "whole", false: "merges"}[p.Model.IgnoreMerges])
			if strings.Join(got, ", ") != want {
				t.Errorf("components %q, want %q", got, want)
			}
			i := slices.IndexFunc(p.Added, func(a addedToken) bool { return a.Content == "<|im_start|>" })
			if i < 0 || p.Added[i] != (addedToken{ID: p.Added[i].ID, Content: "<|im_start|>", Special: true}) {
				t.Errorf("added tokens %+v", p.Added)
			}
		})
	}
}

func TestFilesOfAFolderGoAlong(t *testing.T) {
	source := folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)})
	put := func(name, content string) {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("chat_template.jinja", "{{ messages }}")
	put("additional_chat_templates/tool_use.jinja", "{{ tools }}")
	put("README.md", "is not copied")
	put("training_args.bin", "is not copied")
	f := converted(t, source, Options{})
	for name, goes := range map[string]bool{
		"tokenizer.json": true, "tokenizer_config.json": true, "generation_config.json": true, "chat_template.jinja": true,
		"additional_chat_templates/tool_use.jinja": true, "README.md": false, "training_args.bin": false,
	} {
		want, _ := os.ReadFile(filepath.Join(source, name))
		got, err := os.ReadFile(filepath.Join(f.Folder().Path(), name))
		if goes != (err == nil) || goes && !bytes.Equal(want, got) {
			t.Errorf("%s: %d bytes of %d went along (%v)", name, len(got), len(want), err)
		}
	}
}

func TestFilesThatLeadOutOfTheFolderDoNotGoAlong(t *testing.T) {
	source := folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)})
	if err := os.Symlink("/etc/passwd", filepath.Join(source, "vocab.txt")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Run(context.Background(), open(t, source), Options{Out: out}); !errors.Is(err, weights.ErrInvalid) || !strings.Contains(err.Error(), "leads out") {
		t.Errorf("error %v, want ErrInvalid", err)
	}
	wantEmpty(t, filepath.Dir(out))
}

func TestWhatAFolderCannotSayIsRefused(t *testing.T) {
	c := small(tinymodel.Llama)
	path := ggufFile(t, c)
	old := whole("llama.rope.dimension_count", uint32(c.HeadSize))
	for name, p := range map[string]string{
		"a part of the head is turned": replaced(t, path, old, whole("llama.rope.dimension_count", uint32(c.HeadSize)/2)),
	} {
		if _, err := Run(context.Background(), open(t, p), Options{Out: filepath.Join(t.TempDir(), "out")}); !errors.Is(err, weights.ErrUnsupported) {
			t.Errorf("%s: error %v, want ErrUnsupported", name, err)
		}
	}
}

// TestOlderWordsForWindows: mlx-lm's gemma3_text knows one pattern and two bases;
// it would take its own for what transformers 5 says of each layer.
func TestOlderWordsForWindows(t *testing.T) {
	c := small(tinymodel.Gemma3)
	c.Layers, c.Pattern, c.Theta, c.Scaling = 4, 2, 5e5, tinymodel.Scaling{Kind: "linear", Factor: 8}
	source := folderOf(t, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32), Modern: true})
	f := converted(t, source, Options{})
	cfg := configOf(t, f)
	scaling, _ := cfg["rope_scaling"].(map[string]any)
	if cfg["rope_theta"] != 5e5 || cfg["rope_local_base_freq"] != 2e4 || cfg["sliding_window_pattern"] != 2.0 || scaling["factor"] != 8.0 || cfg["sliding_window"] != 32.0 {
		t.Errorf("config is %v", cfg)
	}
	wantDimensions(t, open(t, source).Dim, f.Dim)
	for name, c := range map[string]struct {
		everywhere []bool
		want       any
	}{
		"no pattern":      {everywhere: []bool{true, false, false, true}, want: nil},
		"all of them":     {everywhere: []bool{true, true}, want: 1},
		"none that comes": {everywhere: []bool{false, false}, want: 3},
	} {
		cfg := map[string]any{"layer_types": []any{}}
		modernWindows(cfg, family.Dimensions{Layers: len(c.everywhere), Everywhere: c.everywhere, LocalRope: &family.Rope{Theta: 1e4}})
		if cfg["sliding_window_pattern"] != c.want {
			t.Errorf("%s: pattern %v, want %v", name, cfg["sliding_window_pattern"], c.want)
		}
	}
}
