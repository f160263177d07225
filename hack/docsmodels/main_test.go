//go:build !race

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/weights"
)

const root = "../.."

func TestThePageIsCurrent(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(output)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := page(root, string(got))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s is out of date; run go run ./hack/docsmodels (-page +code):\n%s", output, diff)
	}
	if _, err := page(root, "a page without marks"); err == nil {
		t.Error("a page without marks is accepted")
	}
}

func TestThePageNamesEveryFamilyAndType(t *testing.T) {
	text, err := tables(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range arch.Supported() {
		if strings.Count(text, "`"+family+"`") < 2 || strings.Contains(text, "`"+family+"`||") {
			t.Errorf("%s has no description or no reference", family)
		}
	}
	for _, kind := range weights.Types() {
		if !strings.Contains(text, "\n|"+kind.String()+"|") {
			t.Errorf("%v is missing", kind)
		}
	}
}

func TestNamesOfCasesAreRead(t *testing.T) {
	for name, want := range map[string][3]string{
		"llama/gguf Q4_K with Q6_K":           {"llama", "gguf", "Q4_K"},
		"mistral/hf bfloat16 window of 16":    {"llama", "hf", "bfloat16"},
		"qwen3/mlx 4 bits by 64 bfloat16":     {"qwen3", "mlx", "4 bits"},
		"qwen3_moe/mlx mxfp4 experts, others": {"qwen3_moe", "mlx", "mxfp4"},
		"qwen2/mlx mixed by path":             {"qwen2", "mlx", "mixed by path"},
		"llama/gguf rope factors":             {"llama", "", ""},
		"bert mean":                           {"bert", "", ""},
	} {
		family, source, format := parseCase(name)
		if got := [3]string{family, source, format}; got != want {
			t.Errorf("%q is read as %q, want %q", name, got, want)
		}
	}
}

// tree returns a root with some files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRecordsAndTolerancesComeFromTheTree also checks that records of other things are
// ignored.
func TestRecordsAndTolerancesComeFromTheTree(t *testing.T) {
	dir := tree(t, map[string]string{
		"metal/a/testdata/one.json":   `{"madeBy": "x 1", "cases": [{"name": "llama/gguf Q4_0", "sha256": "ab"}, {"name": "mistral/hf float32", "sha256": "cd"}, {"name": "qwen3_next/hf float32", "sha256": "01"}]}`,
		"metal/a/a_test.go":           "const ours = 3e-5 // seen\n\nconst recurring = 2.5\n",
		"metal/a/other_test.go":       "const tolerance = 1 // of another record\n",
		"metal/a/testdata/other.json": `{}`,
		"metal/a/one_test.go":         "const tolerance = 0.5\n",
		"metal/b/testdata/other.json": `{"mlx": "0.32", "cases": [{"mode": "mxfp4"}]}`,
		"metal/c/testdata/list.json":  `[1, 2]`,
		"metal/e/testdata/half.json":  `{"madeBy": "z 3", "cases": [{"name": "qwen3_5/hf bfloat16", "sha256": "02"}]}`,
		"metal/e/half_test.go":        "const tolerance = 2e-3\nconst fromFloat32 = 1.5 // seen: 1\n",
		"metal/d/testdata/two.json":   `{"madeBy": "y 2", "cases": [{"name": "bert mean", "sha256": "ef"}]}`,
	})
	r, err := readRecords(dir)
	if err != nil || len(r) != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if c := r.of("llama"); len(c) != 1 || c[0].files != 2 || c[0].tolerance != "0.5 or 3e-5" || c[0].reference != "x 1" || c[0].where != "metal/a/testdata/one.json" {
		t.Errorf("llama is %+v", c)
	}
	if c := r.of("qwen3_next"); len(c) != 1 || c[0].tolerance != "2.5 x 0.5 or 3e-5" {
		t.Errorf("a hybrid is %+v", c)
	}
	if c := r.of("qwen3_5"); len(c) != 1 || c[0].tolerance != "1.5 x the reference's own distance from float32" {
		t.Errorf("a hybrid in half precision is %+v", c)
	}
	if c := r.of("bert"); len(c) != 1 || c[0].tolerance != "as the tests say" {
		t.Errorf("bert is %+v", c)
	}
	if f := r.formats("llama"); len(f["gguf"]) != 1 || f["gguf"][0] != "Q4_0" || f["hf"][0] != "float32" {
		t.Errorf("formats are %v", f)
	}
}
