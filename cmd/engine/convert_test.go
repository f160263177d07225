package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConvertWritesAFolderThatAnswersTheSame(t *testing.T) {
	m, out := tinyModel(t), filepath.Join(t.TempDir(), "out")
	if stdout, stderr, code := runProgram(t, "", "convert", "--model", m, "--out", out); code != exitOK || !strings.Contains(stdout, "20 tensors") {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	generate := func(model string) string {
		stdout, stderr, code := runProgram(t, "", "generate", "--model", model, "--prompt", "a b c", "--max-tokens", "8", "--json")
		if code != exitOK {
			t.Fatalf("code %d: %s", code, stderr)
		}
		return stdout
	}
	if a, b := generate(m), generate(out); a != b {
		t.Errorf("the file says %s, the folder %s", a, b)
	}
}

func TestConvertSaysWhatIsWrong(t *testing.T) {
	m, full := tinyModel(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "notes.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no model":                {args: []string{"--out", out}, code: exitUsage, says: "--model"},
		"no folder":               {args: []string{"--model", m}, code: exitUsage, says: "--out"},
		"a folder with something": {args: []string{"--model", m, "--out", full}, code: exitUsage, says: "is not an empty folder"},
		"seven bits":              {args: []string{"--model", m, "--out", out, "--quantize", "7"}, code: exitUsage, says: "7 bits"},
		"an unknown type":         {args: []string{"--model", m, "--out", out, "--dtype", "float8"}, code: exitUsage, says: "bfloat16, float16, float32"},
		"a model that is none":    {args: []string{"--model", full, "--out", out}, code: exitModel, says: "contains neither"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runProgram(t, "", append([]string{"convert"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.says) || stdout != "" {
				t.Errorf("code %d, %q, want %d and %q", code, stderr, c.code, c.says)
			}
		})
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}
