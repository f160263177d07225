//go:build !race

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// denseModel is a folder whose matrices are floats.
func denseModel(t *testing.T) string {
	t.Helper()
	c := tinymodel.Default()
	c.Hidden, c.FeedForward, c.QueryHeads, c.HeadSize = 128, 256, 4, 32
	path := filepath.Join(t.TempDir(), "dense")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestQuantizeWritesWhatItIsTold(t *testing.T) {
	m := denseModel(t)
	plan := file(t, "# what is looked up\n*embed_tokens = 8:64\n")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"by default":         {args: nil, want: []string{"affine 4-bit group 64 bfloat16", " 4.5"}},
		"bits and group":     {args: []string{"--bits", "6", "--group", "32", "--dtype", "float32"}, want: []string{"affine 6-bit group 32 float32"}},
		"small floats":       {args: []string{"--mode", "mxfp4"}, want: []string{"mxfp4: ", " 4.2"}},
		"by layer":           {args: []string{"--mode", "nvfp4", "--layer", "*down_proj=mxfp8", "--layer", "*embed_tokens=keep"}, want: []string{"nvfp4: ", "mxfp8: ", "bfloat16: "}},
		"a plan":             {args: []string{"--plan", plan}, want: []string{"affine 8-bit group 64", "affine 4-bit group 64"}},
		"only what is named": {args: []string{"--mode", "keep", "--layer", "*up_proj=4"}, want: []string{"affine 4-bit group 64", "bfloat16: "}},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			stdout, stderr, code := runProgram(t, "", append([]string{"quantize", "--model", m, "--out", out}, c.args...)...)
			for _, want := range c.want {
				if code != exitOK || !strings.Contains(stdout, want) {
					t.Errorf("code %d, %q, %q, want %q", code, stdout, stderr, want)
				}
			}
			if stdout, stderr, code := runProgram(t, "", "generate", "--model", out, "--prompt", "a b c", "--max-tokens", "4", "--json"); code != exitOK || !strings.Contains(stdout, `"finishReason"`) {
				t.Errorf("code %d, %q, %q", code, stdout, stderr)
			}
		})
	}
	listed, _, code := runProgram(t, "", "inspect", "--model", m, "--tensors")
	if code != exitOK || !strings.Contains(listed, "model.layers.0.mlp.down_proj ") || strings.Contains(listed, ".weight") {
		t.Errorf("code %d, %q", code, listed)
	}
}

func TestQuantizeSaysWhatIsWrong(t *testing.T) {
	m, full, out := denseModel(t), t.TempDir(), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(filepath.Join(full, "notes.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no folder":               {args: []string{"--model", m}, says: "--out"},
		"a folder with something": {args: []string{"--model", m, "--out", full}, says: "is not an empty folder"},
		"an unknown mode":         {args: []string{"--model", m, "--out", out, "--mode", "mxfp6"}, says: "want affine, mxfp4, mxfp8, nvfp4 or keep"},
		"an unknown target":       {args: []string{"--model", m, "--out", out, "--layer", "*=q4"}, says: "BITS or BITS:GROUP"},
		"a layer that is none":    {args: []string{"--model", m, "--out", out, "--layer", "head=8"}, says: `"head" matches no remaining layer`},
		"groups of sixteen":       {args: []string{"--model", m, "--out", out, "--group", "16"}, says: "groups of [32 64 128]"},
		"no plan":                 {args: []string{"--model", m, "--out", out, "--plan", out}, says: "no such file"},
		"a broken plan":           {args: []string{"--model", m, "--out", out, "--plan", file(t, "x\n")}, says: "line 1"},
		"quantised already":       {args: []string{"--model", tinyModel(t), "--out", out}, says: "--dequantize"},
		"an unknown type":         {args: []string{"--model", m, "--out", out, "--dtype", "float8"}, says: "bfloat16, float16, float32"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runProgram(t, "", append([]string{"quantize"}, c.args...)...)
			if code != exitUsage || !strings.Contains(stderr, c.says) || stdout != "" {
				t.Errorf("code %d, %q, want %d and %q", code, stderr, exitUsage, c.says)
			}
		})
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}
