package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// aFolder is a model in safetensors, with unrelated files next to it.
var aFolder = map[string]string{
	"config.json": "{}", "tokenizer.json": "words", "model-00001-of-2.safetensors": "first", "model-00002-of-2.safetensors": "second",
	"README.md": "no part of it", "adapter.safetensors": "none either", "merges.txt": "", ".hidden.safetensors": "nor this",
}

func (w *world) putFolder(name string, files map[string]string) {
	w.t.Helper()
	for f, content := range files {
		w.put(filepath.Join(name, f), []byte(content))
	}
}

// lookAt inspects a folder of the model root as package inspect does.
func lookAt(t *testing.T, r *Root, source string) (model.Record, error) {
	t.Helper()
	l, err := r.OpenFolder(source)
	if err != nil || l == nil {
		return model.Record{}, err
	}
	defer l.Close()
	sums, err := r.SumFolder(t.Context(), l, nil)
	if err != nil {
		return model.Record{}, err
	}
	return l.Record(source, sums), nil
}

// TestTheLeastRecentlyUsedFolderIsForgotten: of more folders than are remembered, the one
// whose name is the first is used again.
func TestTheLeastRecentlyUsedFolderIsForgotten(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	listed := func(rec model.Record) bool {
		return slices.ContainsFunc(s.List(), func(l v1alpha1.StoredWeights) bool { return l.Digest == rec.Digest })
	}
	var recs []model.Record
	for i := range maxFolders + 1 {
		name := fmt.Sprintf("llm/%03d", i)
		w.putFolder(name, map[string]string{"config.json": "{}", "model.safetensors": name})
		rec, err := lookAt(t, s.opt.Root, "file:///"+name)
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, rec)
		if i == maxFolders-1 {
			if _, err := lookAt(t, s.opt.Root, "file:///llm/000"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !listed(recs[0]) || !listed(recs[maxFolders]) || listed(recs[1]) {
		t.Errorf("listed are the first folder, used again: %t; the last: %t; the least recently used: %t", listed(recs[0]), listed(recs[maxFolders]), listed(recs[1]))
	}
}

func TestAFolderOfTheModelRootIsUsedInPlaceAndVerified(t *testing.T) {
	w := newWorld(t)
	w.putFolder("llm/a", aFolder)
	s, stop := w.start()
	rec, err := lookAt(t, s.opt.Root, "file:///llm/a")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range rec.Files {
		names = append(names, f.Path)
		if f.SHA256 != digest([]byte(aFolder[f.Path])) {
			t.Errorf("%+v", f)
		}
	}
	if got := strings.Join(names, " "); got != "config.json model-00001-of-2.safetensors model-00002-of-2.safetensors tokenizer.json" {
		t.Errorf("it is made of %s", got)
	}
	path, err := s.Ensure(t.Context(), rec, "", nil)
	if err != nil || path != filepath.Join(w.models, "llm/a") {
		t.Fatalf("%q %v", path, err)
	}
	held := func(s *Store) bool {
		l := s.List()
		return len(l) == 1 && l[0].Digest == rec.Digest && l[0].Bytes == rec.Bytes() && s.WeightsBytes() == 0
	}
	if !held(s) {
		t.Errorf("list is %+v", s.List())
	}
	stop()
	if s, _ = w.start(); !held(s) {
		t.Errorf("after a restart the list is %+v", s.List())
	}

	for name, c := range map[string]struct {
		file, content, says string
	}{
		"another byte":  {file: "model-00001-of-2.safetensors", content: "fiRst", says: "model-00001-of-2.safetensors has changed"},
		"another size":  {file: "config.json", content: "{} ", says: "config.json has changed"},
		"a new shard":   {file: "model-00003.safetensors", content: "third", says: "new file model-00003.safetensors"},
		"a new part":    {file: "chat_template.jinja", content: "evil", says: "new file chat_template.jinja"},
		"a part is cut": {file: "tokenizer.json", content: "", says: "tokenizer.json is missing"},
	} {
		before, was := aFolder[c.file]
		p := w.put("llm/a/"+c.file, []byte(c.content))
		_, err := s.Ensure(t.Context(), rec, "", nil)
		if download.Reason(err, "") != v1alpha1.ReasonDigestMismatch || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.says)
		}
		if l := s.List(); len(l) > 0 && l[0].Digest == rec.Digest {
			t.Errorf("%s: it is listed as what it was", name)
		}
		if os.Remove(p); was {
			w.put("llm/a/"+c.file, []byte(before))
		}
	}
	if _, err = s.Ensure(t.Context(), rec, "", nil); err != nil {
		t.Errorf("with everything back: %v", err)
	}
}

// aReader is a model of sentence-transformers.
var aReader = map[string]string{
	"config.json": "{}", "model.safetensors": "weights", "modules.json": `[{"type":"Transformer","path":""},{"type":"Pooling","path":"1_Pooling"},{"type":"Normalize","path":"2_Normalize"}]`,
	"1_Pooling/config.json": `{"pooling_mode":"mean"}`, "1_Pooling/README.md": "no part of it", "3_Other/config.json": "none either",
}

// TestTheModulesOfAFolderArePartOfTheModel: each of their files is verified, and
// none counts as a model.
func TestTheModulesOfAFolderArePartOfTheModel(t *testing.T) {
	w := newWorld(t)
	w.putFolder("llm/a", aReader)
	s, _ := w.start()
	rec, err := lookAt(t, s.opt.Root, "file:///llm/a")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range rec.Files {
		names = append(names, f.Path)
		if f.SHA256 != digest([]byte(aReader[f.Path])) {
			t.Errorf("%+v", f)
		}
	}
	if got := strings.Join(names, " "); got != "1_Pooling/config.json config.json model.safetensors modules.json" {
		t.Errorf("it is made of %s", got)
	}
	path, err := s.Ensure(t.Context(), rec, "", nil)
	if err != nil || path != filepath.Join(w.models, "llm/a") {
		t.Fatalf("%q %v", path, err)
	}
	if l := s.List(); len(l) != 1 || l[0].Digest != rec.Digest {
		t.Errorf("list is %+v", l)
	}
	for file, content := range map[string]string{"1_Pooling/config.json": `{"pooling_mode":"cls"}`, "2_Normalize/config.json": "{}", "modules.json": "[]"} {
		p := w.put("llm/a/"+file, []byte(content))
		_, err := s.Ensure(t.Context(), rec, "", nil)
		wantReason(t, err, v1alpha1.ReasonDigestMismatch)
		if before, was := aReader[file]; was {
			w.put("llm/a/"+file, []byte(before))
		} else if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = s.Ensure(t.Context(), rec, "", nil); err != nil {
		t.Errorf("with everything back: %v", err)
	}
}

// TestAttackModulesThatLeadElsewhere: neither a module's folder nor its
// configuration may be a link, and none lies elsewhere.
func TestAttackModulesThatLeadElsewhere(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, c := range map[string]struct {
		replace, to string // a link, or the text of modules.json
		reason      string
	}{
		"folder-out":   {replace: "1_Pooling", to: outside, reason: v1alpha1.ReasonSourceForbidden},
		"folder-in":    {replace: "1_Pooling", to: "3_Other", reason: v1alpha1.ReasonSourceForbidden},
		"file-out":     {replace: "1_Pooling/config.json", to: filepath.Join(outside, "config.json"), reason: v1alpha1.ReasonSourceForbidden},
		"file-in":      {replace: "1_Pooling/config.json", to: "../config.json", reason: v1alpha1.ReasonSourceForbidden},
		"modules-out":  {replace: "modules.json", to: "/etc/passwd", reason: v1alpha1.ReasonSourceForbidden},
		"modules-up":   {replace: "", to: `[{"type":"Pooling","path":"../other"}]`, reason: v1alpha1.ReasonInvalidModel},
		"modules-root": {replace: "", to: `[{"type":"Pooling","path":"/etc"}]`, reason: v1alpha1.ReasonInvalidModel},
		"modules-deep": {replace: "", to: `[{"type":"Pooling","path":"1_Pooling/deep"}]`, reason: v1alpha1.ReasonInvalidModel},
		"modules-long": {replace: "", to: "[" + strings.Repeat(" ", 70<<10) + "]", reason: v1alpha1.ReasonInvalidModel},
	} {
		w.putFolder(name, aReader)
		if c.replace == "" {
			w.put(name+"/modules.json", []byte(c.to))
		} else {
			p := filepath.Join(w.models, name, c.replace)
			if err := os.RemoveAll(p); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.to, p); err != nil {
				t.Fatal(err)
			}
		}
		rec, err := lookAt(t, root, "file:///"+name)
		if download.Reason(err, "") != c.reason || len(rec.Files) > 0 {
			t.Errorf("%s: %+v, %v, want reason %s", name, rec.Files, err, c.reason)
		}
	}
}

// TestAttackAModuleThatIsSwapped between the check and the read.
func TestAttackAModuleThatIsSwapped(t *testing.T) {
	w := newWorld(t)
	w.putFolder("a", aReader)
	w.put("a/4_Evil/config.json", []byte(`{"pooling_mode":"last"}`))
	root, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l, err := root.OpenFolder("file:///a")
	if err != nil || l == nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := filepath.Join(w.models, "a/1_Pooling")
	if err := os.RemoveAll(p); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("4_Evil", p); err != nil {
		t.Fatal(err)
	}
	_, err = root.SumFolder(t.Context(), l, nil)
	wantReason(t, err, v1alpha1.ReasonSourceForbidden)
}

// TestAttackFoldersThatLeadElsewhere: neither the path of a folder nor its files
// may contain a link, wherever it leads.
// putLink replaces a path of the model root by a symbolic link.
func (w *world) putLink(name, to string) {
	w.t.Helper()
	p := filepath.Join(w.models, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.RemoveAll(p); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(to, p); err != nil {
		w.t.Fatal(err)
	}
}

func TestAttackFoldersThatLeadElsewhere(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir()
	for f, content := range aFolder {
		if err := os.WriteFile(filepath.Join(outside, f), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"real", "config", "shard", "extra", "pipe", "both"} {
		w.putFolder(name, aFolder)
	}
	w.putLink("out", outside)
	w.putLink("inside", "real")
	w.putLink("up/again", "..")
	w.putLink("config/config.json", "/etc/passwd")
	w.putLink("shard/model-00002-of-2.safetensors", "model-00001-of-2.safetensors")
	w.putLink("extra/vocab.txt", "/etc/passwd")
	os.Remove(filepath.Join(w.models, "pipe/tokenizer.json"))
	if err := syscall.Mkfifo(filepath.Join(w.models, "pipe/tokenizer.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.put("both/a.gguf", []byte("x"))
	w.putFolder("alone", map[string]string{"model.safetensors": "weights"})
	root, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for source, want := range map[string]struct{ reason, says string }{
		"file:///real":          {},
		"file://real/":          {},
		"file:///inside":        {reason: v1alpha1.ReasonSourceForbidden, says: "is a symbolic link"},
		"file:///up/again/real": {reason: v1alpha1.ReasonSourceForbidden, says: "is a symbolic link"},
		"file:///config":        {reason: v1alpha1.ReasonSourceForbidden, says: "config.json is a symbolic link"},
		"file:///shard":         {reason: v1alpha1.ReasonSourceForbidden, says: "is a symbolic link"},
		"file:///extra":         {reason: v1alpha1.ReasonSourceForbidden, says: "vocab.txt is a symbolic link"},
		"file:///pipe":          {reason: v1alpha1.ReasonSourceForbidden, says: "not a regular file"},
		"file:///both":          {reason: v1alpha1.ReasonInvalidModel, says: "its own folder"},
		"file:///alone":         {reason: v1alpha1.ReasonInvalidModel},
		"file:///../real":       {reason: v1alpha1.ReasonSourceForbidden},
		"file:///real/..":       {reason: v1alpha1.ReasonSourceForbidden},
	} {
		rec, err := lookAt(t, root, source)
		if download.Reason(err, "") != want.reason || err != nil && !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v, want reason %q and %q", source, err, want.reason, want.says)
		}
		if (len(rec.Files) > 0) != (want.reason == "") {
			t.Errorf("%s: %+v", source, rec)
		}
	}
	// A link that leads outside is no folder at all: Open refuses it.
	for _, source := range []string{"file:///out", "file:///etc/passwd", "file:////etc/passwd"} {
		if l, err := root.OpenFolder(source); l != nil {
			t.Errorf("%s opens %s", source, l.Path())
		} else if err == nil {
			if f, err := root.Open(source); err == nil {
				t.Errorf("%s opens %s", source, f.Path())
			}
		}
	}
}

// TestAttackAFolderThatIsSwapped between the check and the read.
func TestAttackAFolderThatIsSwapped(t *testing.T) {
	w := newWorld(t)
	w.putFolder("a", aFolder)
	w.put("a/other.txt", []byte("fiRst"))
	root, err := OpenRoot(w.models, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l, err := root.OpenFolder("file:///a")
	if err != nil || l == nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := filepath.Join(w.models, "a/model-00001-of-2.safetensors")
	os.Remove(p)
	if err := os.Symlink("other.txt", p); err != nil {
		t.Fatal(err)
	}
	_, err = root.SumFolder(t.Context(), l, nil)
	wantReason(t, err, v1alpha1.ReasonSourceForbidden)
}
