package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// published is a folder of a tiny model as a hub holds it: weights in large
// file storage, the rest not.
func published(t *testing.T, shards bool) (dir string, files map[string]hubtest.File) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "model")
	layout := tinymodel.Layout{}
	if shards {
		layout.ShardBytes = 32 << 10
	}
	c := tinymodel.Default()
	c.Family = tinymodel.Qwen3
	if err := tinymodel.WriteFolder(dir, c, layout); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]hubtest.File{"README.md": {Content: []byte("read me")}, "pytorch_model.bin": {Content: []byte("pickled"), LFS: true}}
	for _, n := range names {
		content, err := os.ReadFile(filepath.Join(dir, n.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[n.Name()] = hubtest.File{Content: content, LFS: strings.HasSuffix(n.Name(), ".safetensors")}
	}
	return dir, files
}

// onHub makes a resolver whose hub is a stand-in with one repository.
func onHub(t *testing.T, repo *hubtest.Repo) (*Resolver, *hubtest.Hub) {
	t.Helper()
	stand := &hubtest.Hub{PageSize: 4}
	stand.Put("org/tiny", repo)
	r, srv := remote(t, stand.ServeHTTP)
	r.Hub = &hub.Hub{Client: r.Client, Endpoint: srv.URL}
	return r, stand
}

func TestResolveAFolderOfAHub(t *testing.T) {
	for _, shards := range []bool{false, true} {
		dir, files := published(t, shards)
		repo := hubtest.Of(files)
		r, stand := onHub(t, repo)
		rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(rec.Validate(), rec.Facts.Validate()); err != nil {
			t.Error(err)
		}
		f, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want, err := f.Facts()
		if err != nil || rec.Facts != want {
			t.Errorf("facts are %+v, of the folder itself %+v (%v)", rec.Facts, want, err)
		}
		if rec.Format != model.FormatSafetensors || rec.Commit != repo.Refs["main"] || rec.Source != "hf://org/tiny" {
			t.Errorf("%+v", rec)
		}
		wanted := slices.Sorted(maps.Keys(files))
		wanted = slices.DeleteFunc(wanted, func(n string) bool { return n == "README.md" || n == "pytorch_model.bin" })
		var got []string
		for _, f := range rec.Files {
			got = append(got, f.Path)
			if c := files[f.Path].Content; f.Bytes != int64(len(c)) || f.SHA256 != digest(c) {
				t.Errorf("%+v, want %d bytes with %s", f, len(c), digest(c))
			}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("files %q, want %q", got, wanted)
		}
		for _, request := range stand.Requests() {
			if strings.Contains(request, "README") || strings.Contains(request, "pytorch") {
				t.Errorf("it was fetched: %s", request)
			}
		}
	}
}

func TestResolveOneFileOfAHub(t *testing.T) {
	content := tiny(t)
	repo := hubtest.Of(map[string]hubtest.File{"q/a-Q8_0.gguf": {Content: content, LFS: true}, "q/a-Q4_0.gguf": {Content: content[:100], LFS: true}, "b.gguf": {Content: content[:50]}})
	repo.Refs["v1"] = repo.Refs["main"]
	r, _ := onHub(t, repo)
	for _, order := range []v1alpha1.Inspection{
		{Source: "hf://org/tiny", Files: []string{"*Q8_0.gguf"}},
		{Source: "hf://org/tiny/q/a-Q8_0.gguf", Revision: "v1"},
		{Source: "hf://org/tiny@v1/q", Files: []string{"*Q8*"}},
	} {
		rec, err := r.Resolve(t.Context(), order)
		wantTiny(t, rec, err, order.Source, content)
		if rec.Commit != repo.Refs["main"] || rec.Files[0].Path != "q/a-Q8_0.gguf" {
			t.Errorf("%+v", rec)
		}
	}
	for name, c := range map[string]struct {
		order  v1alpha1.Inspection
		reason string
	}{
		"several files":          {order: v1alpha1.Inspection{Source: "hf://org/tiny"}, reason: v1alpha1.ReasonInvalidModel},
		"no digest":              {order: v1alpha1.Inspection{Source: "hf://org/tiny/b.gguf"}, reason: v1alpha1.ReasonInvalidModel},
		"cut off":                {order: v1alpha1.Inspection{Source: "hf://org/tiny/q/a-Q4_0.gguf"}, reason: v1alpha1.ReasonInvalidModel},
		"a digest of its own":    {order: v1alpha1.Inspection{Source: "hf://org/tiny", SHA256: digest(content)}, reason: v1alpha1.ReasonSourceForbidden},
		"no such repository":     {order: v1alpha1.Inspection{Source: "hf://org/none"}, reason: v1alpha1.ReasonSourceNotFound},
		"no such revision":       {order: v1alpha1.Inspection{Source: "hf://org/tiny", Revision: "v2"}, reason: v1alpha1.ReasonSourceNotFound},
		"no repository's name":   {order: v1alpha1.Inspection{Source: "hf://tiny"}, reason: v1alpha1.ReasonSourceForbidden},
		"nothing at this path":   {order: v1alpha1.Inspection{Source: "hf://org/tiny/none"}, reason: v1alpha1.ReasonInvalidModel},
		"a pattern that is none": {order: v1alpha1.Inspection{Source: "hf://org/tiny", Files: []string{"["}}, reason: v1alpha1.ReasonSourceForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Resolve(t.Context(), c.order)
			wantReason(t, err, c.reason)
			if download.IsTransient(err) {
				t.Errorf("it would be tried again soon: %v", err)
			}
		})
	}
}

// TestAHubThatLies: what it lists and what it serves are not the same.
func TestAHubThatLies(t *testing.T) {
	for name, c := range map[string]struct {
		change func(files map[string]hubtest.File)
		reason string
	}{
		"weights without a digest": {change: func(f map[string]hubtest.File) {
			f["model.safetensors"] = hubtest.File{Content: f["model.safetensors"].Content}
		}, reason: v1alpha1.ReasonInvalidModel},
		"a header that is too long": {change: func(f map[string]hubtest.File) {
			c := slices.Clone(f["model.safetensors"].Content)
			copy(c, []byte{255, 255, 255, 255, 255, 255, 255, 127})
			f["model.safetensors"] = hubtest.File{Content: c, LFS: true}
		}, reason: v1alpha1.ReasonInvalidModel},
		"a configuration that is none": {change: func(f map[string]hubtest.File) {
			f["config.json"] = hubtest.File{Content: []byte("{")}
		}, reason: v1alpha1.ReasonInvalidModel},
		"an unsupported family": {change: func(f map[string]hubtest.File) {
			f["config.json"] = hubtest.File{Content: []byte(`{"model_type":"abacus","architectures":["AbacusForCausalLM"]}`)}
		}, reason: v1alpha1.ReasonUnsupportedModel},
		"a tokenizer that is too large": {change: func(f map[string]hubtest.File) {
			f["tokenizer.json"] = hubtest.File{Content: make([]byte, maxSmallFile+1)}
		}, reason: v1alpha1.ReasonInvalidModel},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			_, files := published(t, false)
			c.change(files)
			r, _ := onHub(t, hubtest.Of(files))
			_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
			wantReason(t, err, c.reason)
			left, err := filepath.Glob(filepath.Join(os.TempDir(), "metalfleet-look-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}

// TestAttackHeadersOfManyFiles: what is read and written of headers is bounded for all
// files of a model together.
func TestAttackHeadersOfManyFiles(t *testing.T) {
	_, files := published(t, true)
	for name, f := range files {
		if strings.HasPrefix(name, "model-00001-") || strings.HasPrefix(name, "model-00002-") {
			files[name] = hubtest.File{Content: padded(f.Content, 512<<10), LFS: true}
		}
	}
	for most, refused := range map[int64]bool{800 << 10: true, 64 << 20: false} {
		r, _ := onHub(t, hubtest.Of(files))
		r.headerBytes = most
		_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
		if refused {
			wantReason(t, err, v1alpha1.ReasonInvalidModel)
		} else if err != nil {
			t.Errorf("with %d bytes of headers: %v", most, err)
		}
	}
}

// padded is a file of safetensors whose header has a length.
func padded(content []byte, length int) []byte {
	n := 8 + int(binary.LittleEndian.Uint64(content))
	out := binary.LittleEndian.AppendUint64(nil, uint64(length))
	out = append(out, content[8:n]...)
	out = append(out, bytes.Repeat([]byte(" "), length-(n-8))...)
	return append(out, content[n:]...)
}

// TestAPrivateRepositoryIsReadWithItsToken: the hub is asked with the token
// that the order names, the storage that it leads to without any.
func TestAPrivateRepositoryIsReadWithItsToken(t *testing.T) {
	_, files := published(t, true)
	repo := hubtest.Of(files)
	repo.Private, repo.Gated, repo.Token = true, true, "hf_secret"
	r, stand := onHub(t, repo)
	large := httptest.NewTLSServer(stand) // with the certificate that every test server has
	t.Cleanup(large.Close)
	stand.Large = large.URL
	order := v1alpha1.Inspection{Source: "hf://org/tiny", TokenRef: strings.Repeat("a", 64)}

	_, err := r.Resolve(t.Context(), order)
	wantReason(t, err, v1alpha1.ReasonTokenMissing)
	r.Token = func(string) (download.Bearer, bool) { return "", false }
	_, err = r.Resolve(t.Context(), order)
	wantReason(t, err, v1alpha1.ReasonTokenMissing)
	if n := len(stand.Requests()); n > 0 {
		t.Fatalf("%d requests were made without the token", n)
	}

	r.Token = func(ref string) (download.Bearer, bool) { return "hf_secret", ref == order.TokenRef }
	rec, err := r.Resolve(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Validate(); err != nil {
		t.Error(err)
	}
	host := strings.TrimPrefix(large.URL, "https://")
	bearing := stand.Bearing()
	for _, request := range bearing {
		if strings.HasPrefix(request, host) || strings.Contains(request, "/large/") {
			t.Errorf("the token went along with %s", request)
		}
	}
	if asked := stand.Requests(); len(bearing) == 0 || !slices.ContainsFunc(asked, func(s string) bool { return strings.Contains(s, "/large/") }) {
		t.Errorf("%d requests with the token, of %q", len(bearing), asked)
	}
	if out := fmt.Sprintf("%+v", rec); strings.Contains(out, "hf_") {
		t.Errorf("the record says the token: %s", out)
	}
}

// TestASmallFileIsProvenByItsIDInGit, since a hub says no SHA-256 of it.
func TestASmallFileIsProvenByItsIDInGit(t *testing.T) {
	_, files := published(t, false)
	stand := &hubtest.Hub{}
	stand.Put("org/tiny", hubtest.Of(files))
	r, srv := remote(t, func(w http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, "/tokenizer.json") {
			other := bytes.Clone(files["tokenizer.json"].Content)
			other[len(other)/2] ^= 1
			w.Write(other)
			return
		}
		stand.ServeHTTP(w, q)
	})
	r.Hub = &hub.Hub{Client: r.Client, Endpoint: srv.URL}
	_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"})
	wantReason(t, err, v1alpha1.ReasonDigestMismatch)
}

// TestFilesThatTheHubAlsoOffersByXet are fetched by https as they are.
func TestFilesThatTheHubAlsoOffersByXet(t *testing.T) {
	_, files := published(t, false)
	for name, f := range files {
		f.Xet = f.LFS
		files[name] = f
	}
	r, stand := onHub(t, hubtest.Of(files))
	if _, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny"}); err != nil {
		t.Fatal(err)
	}
	for _, request := range stand.Requests() {
		if strings.Contains(request, "xet") {
			t.Errorf("%s", request)
		}
	}
}

// reader is one of the tiny models of sentence-transformers as a hub holds it.
func reader(t *testing.T, name string) (dir string, files map[string]hubtest.File) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "model")
	all := tinymodel.Readers()
	at := slices.IndexFunc(all, func(r tinymodel.Reader) bool { return r.Name == name })
	if at < 0 {
		t.Fatalf("no reader %q", name)
	}
	if err := all[at].Write(dir); err != nil {
		t.Fatal(err)
	}
	files = map[string]hubtest.File{"README.md": {Content: []byte("read me")}, "data_config.json": {Content: []byte("{}")}, "onnx/model.onnx": {Content: []byte("x"), LFS: true},
		"1_Pooling/README.md": {Content: []byte("no part of it")}}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(dir, p)
		files[filepath.ToSlash(below)] = hubtest.File{Content: content, LFS: strings.HasSuffix(p, ".safetensors")}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir, files
}

// TestAModelThatReadsComesWithItsModules: what an engine reads of it and nothing
// else, with the task that its makers say, from a hub and from the model root.
func TestAModelThatReadsComesWithItsModules(t *testing.T) {
	always := []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
	for name, c := range map[string]struct {
		task  model.Task
		wants []string
	}{
		"bert mean":       {task: model.Embed, wants: []string{"1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"}},
		"xlm-roberta cls": {task: model.Embed, wants: []string{"1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"}},
		"bert rerank":     {task: model.Rerank, wants: nil},
		"qwen3 embed":     {task: model.Embed, wants: []string{"1_Pooling/config.json", "config_sentence_transformers.json", "generation_config.json", "modules.json"}},
		"qwen3 rerank":    {task: model.Rerank, wants: []string{"1_LogitScore/config.json", "generation_config.json", "modules.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := reader(t, name)
			wants := slices.Sorted(slices.Values(append(slices.Clone(always), c.wants...)))
			r, stand := onHub(t, hubtest.Of(files))
			for source, resolve := range map[string]*Resolver{"hf://org/tiny": r, "file:///model": localFolder(t, dir)} {
				rec, err := resolve.Resolve(t.Context(), v1alpha1.Inspection{Source: source})
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(rec.Validate(), rec.Facts.Validate()); err != nil || rec.Facts.TaskOf() != c.task {
					t.Errorf("%s: made for %s (%v), want %s", source, rec.Facts.TaskOf(), err, c.task)
				}
				var got []string
				for _, f := range rec.Files {
					if f.SHA256 != digest(files[f.Path].Content) {
						t.Errorf("%s: %+v", source, f)
					}
					got = append(got, f.Path)
				}
				if !slices.Equal(got, wants) {
					t.Errorf("%s: files %q, want %q", source, got, wants)
				}
			}
			for _, request := range stand.Requests() {
				if strings.Contains(request, "README") || strings.Contains(request, "onnx") || strings.Contains(request, "data_config") {
					t.Errorf("it was fetched: %s", request)
				}
			}
		})
	}
}

// localFolder makes a resolver over the model root that a folder lies in.
func localFolder(t *testing.T, dir string) *Resolver {
	t.Helper()
	root, err := store.OpenRoot(filepath.Dir(dir), filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return &Resolver{Root: root}
}

// TestModulesThatNoEngineRunsAreRefusedBeforeADownload, from either source.
func TestModulesThatNoEngineRunsAreRefusedBeforeADownload(t *testing.T) {
	const first, second = `[{"path":"","type":"sentence_transformers.models.Transformer"},`, `{"path":"1_Pooling","type":"sentence_transformers.models.Pooling"}`
	dense := hubtest.File{Content: []byte("weights"), LFS: true}
	for name, c := range map[string]struct {
		change func(f map[string]hubtest.File)
		reason string
		says   string
		unread string // a file that is not fetched
	}{
		"a dense layer": {change: func(f map[string]hubtest.File) {
			f["modules.json"] = hubtest.File{Content: []byte(first + second + `,{"path":"2_Dense","type":"sentence_transformers.models.Dense"}]`)}
			f["2_Dense/config.json"], f["2_Dense/model.safetensors"] = hubtest.File{Content: []byte("{}")}, dense
		}, reason: v1alpha1.ReasonUnsupportedModel, says: `module "Dense" is not supported (supported: `, unread: "2_Dense/model"},
		"a folder outside": {change: func(f map[string]hubtest.File) {
			f["modules.json"] = hubtest.File{Content: []byte(first + `{"path":"../../1_Pooling","type":"Pooling"}]`)}
		}, reason: v1alpha1.ReasonInvalidModel, says: "not a direct subfolder"},
		"no configuration": {change: func(f map[string]hubtest.File) { delete(f, "1_Pooling/config.json") }, reason: v1alpha1.ReasonInvalidModel, says: "1_Pooling"},
		"no modules":       {change: func(f map[string]hubtest.File) { delete(f, "modules.json") }, reason: v1alpha1.ReasonInvalidModel, says: "modules.json"},
		"empty modules":    {change: func(f map[string]hubtest.File) { f["modules.json"] = hubtest.File{Content: []byte{}} }, reason: v1alpha1.ReasonInvalidModel, says: "modules.json"},
		"no list":          {change: func(f map[string]hubtest.File) { f["modules.json"] = hubtest.File{Content: []byte("{}")} }, reason: v1alpha1.ReasonInvalidModel, says: "not a list"},
		"a long list": {change: func(f map[string]hubtest.File) {
			f["modules.json"] = hubtest.File{Content: bytes.Repeat([]byte(" "), weights.MaxModulesBytes+1)}
		}, reason: v1alpha1.ReasonInvalidModel, says: "over 65536 bytes", unread: "modules.json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			_, files := reader(t, "bert mean")
			c.change(files)
			dir := filepath.Join(t.TempDir(), "model")
			for n, f := range files {
				p := filepath.Join(dir, n)
				if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, f.Content, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			r, stand := onHub(t, hubtest.Of(files))
			for source, resolve := range map[string]*Resolver{"hf://org/tiny": r, "file:///model": localFolder(t, dir)} {
				_, err := resolve.Resolve(t.Context(), v1alpha1.Inspection{Source: source})
				wantReason(t, err, c.reason)
				if err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v, want one that says %s", source, err, c.says)
				}
			}
			for _, request := range stand.Requests() {
				if c.unread != "" && strings.Contains(request, c.unread) {
					t.Errorf("it was fetched: %s", request)
				}
			}
			if left, err := filepath.Glob(filepath.Join(os.TempDir(), "metalfleet-look-*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}
