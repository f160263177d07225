package inspect

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Repositories have such indexes: mlx-community/gemma-3-12b-it-4bit names five files and has
// two. Tensors decide, and what is missing is found before the download.
func TestAnIndexOfAnotherBuildIsNoReasonToRefuse(t *testing.T) {
	const index = "model.safetensors.index.json"
	other := `{"metadata":{"total_size":1},"weight_map":{"model.norm.weight":"model-00005-of-00005.safetensors"}}`
	for name, c := range map[string]struct {
		shards bool
		change func(map[string]hubtest.File)
		reason string
	}{
		"for several files": {shards: true, change: func(f map[string]hubtest.File) { f[index] = hubtest.File{Content: []byte(other)} }},
		"for one file":      {change: func(f map[string]hubtest.File) { f[index] = hubtest.File{Content: []byte(other)} }},
		"that is not JSON":  {change: func(f map[string]hubtest.File) { f[index] = hubtest.File{Content: []byte("<html>")} }},
		"and a file is missing": {shards: true, reason: v1alpha1.ReasonInvalidModel, change: func(f map[string]hubtest.File) {
			f[index] = hubtest.File{Content: []byte(other)}
			maps.DeleteFunc(f, func(name string, _ hubtest.File) bool { return strings.HasPrefix(name, "model-00002-of-") })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, files := published(t, c.shards)
			r, _ := onHub(t, hubtest.Of(files))
			plain, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
			if err != nil {
				t.Fatal(err)
			}
			before := len(files)
			if c.change(files); c.reason != "" && len(files) >= before {
				t.Fatalf("nothing is missing of %d files", before)
			}
			r, _ = onHub(t, hubtest.Of(files))
			rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
			if got := download.Reason(err, ""); got != c.reason || err == nil && rec.Facts != plain.Facts {
				t.Errorf("facts %+v (%v), want %+v or %q", rec.Facts, err, plain.Facts, c.reason)
			}
		})
	}
}

func TestNamedChatTemplatesBelongToTheModel(t *testing.T) {
	const named = "additional_chat_templates/tool_use.jinja"
	dir, files := published(t, false)
	files[named] = hubtest.File{Content: []byte("{{ messages }}")}
	files["additional_chat_templates/README.md"] = hubtest.File{Content: []byte("no part of it")}
	for path, f := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700), os.WriteFile(filepath.Join(dir, path), f.Content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := onHub(t, hubtest.Of(files))
	for source, r := range map[string]*Resolver{"hf://org/tiny": r, "file:///model": localFolder(t, dir)} {
		rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: source})
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(rec.Files, func(f model.File) bool { return f.Path == named })
		if at < 0 || rec.Files[at].SHA256 != digest(files[named].Content) || slices.ContainsFunc(rec.Files, func(f model.File) bool { return filepath.Base(f.Path) == "README.md" }) {
			t.Errorf("%s: files %+v", source, rec.Files)
		}
	}
}

func TestAModelWithoutATokenizerIsRefusedBeforeItsDownload(t *testing.T) {
	dir, files := published(t, false)
	delete(files, "tokenizer.json")
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	r, _ := onHub(t, hubtest.Of(files))
	for source, r := range map[string]*Resolver{"hf://org/tiny": r, "file:///model": localFolder(t, dir)} {
		if _, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: source}); download.Reason(err, "") != v1alpha1.ReasonInvalidModel {
			t.Errorf("%s: %v", source, err)
		}
	}
}
