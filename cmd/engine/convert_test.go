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
		"no model":                {[]string{"--out", out}, exitUsage, "--model"},
		"no folder":               {[]string{"--model", m}, exitUsage, "--out"},
		"a folder with something": {[]string{"--model", m, "--out", full}, exitUsage, "is not an empty folder"},
		"seven bits":              {[]string{"--model", m, "--out", out, "--quantize", "7"}, exitUsage, "7 bits"},
		"an unknown type":         {[]string{"--model", m, "--out", out, "--dtype", "float8"}, exitUsage, "bfloat16, float16, float32"},
		"a model that is none":    {[]string{"--model", full, "--out", out}, exitModel, "contains neither"},
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
