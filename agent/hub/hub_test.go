package hub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestParse(t *testing.T) {
	for source, want := range map[string]Source{
		"hf://org/model":                      {"org/model", "main", ""},
		"hf://org/model@v1.0":                 {"org/model", "v1.0", ""},
		"hf://org/model@refs%2Fpr%2F1":        {"org/model", "refs/pr/1", ""},
		"hf://org/model/sub/m-Q4_K_M.gguf":    {"org/model", "main", "sub/m-Q4_K_M.gguf"},
		"hf://org/model@main/sub/":            {"org/model", "main", "sub"},
		"hf://mlx-community/Qwen3-8B-4bit":    {"mlx-community/Qwen3-8B-4bit", "main", ""},
		"hf://o/m@" + strings.Repeat("a", 40): {"o/m", strings.Repeat("a", 40), ""},
	} {
		if got, err := Parse(source, ""); err != nil || got != want {
			t.Errorf("%s is %+v (%v), want %+v", source, got, err, want)
		}
	}
	if got, err := Parse("hf://org/model", "refs/pr/2"); err != nil || got.Revision != "refs/pr/2" {
		t.Errorf("%+v, %v", got, err)
	}
	for source, says := range map[string]string{
		"https://org/model":         "hf://",
		"hf://":                     "OWNER/NAME",
		"hf://org":                  "OWNER/NAME",
		"hf://org/":                 "OWNER/NAME",
		"hf://../model":             "OWNER/NAME",
		"hf://org/mo--del":          "OWNER/NAME",
		"hf://org/mo..del":          "OWNER/NAME",
		"hf://org/model?x":          "OWNER/NAME",
		"hf://org/model@":           "revision",
		"hf://org/model@a%zz":       "revision",
		"hf://org/model@../../x":    "revision",
		"hf://org/model@..%2F..":    "revision",
		"hf://org/model@main/../x":  "leaves",
		"hf://org/model/a//b":       "leaves",
		"hf://org/model/a\\..\\b":   "leaves",
		"hf://org/model@-rf":        "revision",
		"hf://org/model@a b":        "revision",
		"hf://org@x/model":          "OWNER/NAME",
		"hf://user:word@host/model": "OWNER/NAME",
	} {
		if got, err := Parse(source, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is %+v (%v), want an error that says %s", source, got, err, says)
		}
	}
	if _, err := Parse("hf://org/model@v1", "v2"); err == nil || !strings.Contains(err.Error(), "keep one") {
		t.Errorf("two revisions: %v", err)
	}
}

func entries(paths ...string) []Entry {
	var out []Entry
	for _, p := range paths {
		out = append(out, Entry{Path: p, Bytes: 1})
	}
	return out
}

func TestChoose(t *testing.T) {
	folder := []string{"README.md", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json", "pytorch_model.bin", "onnx/model.onnx"}
	for name, c := range map[string]struct {
		files, globs []string
		format       model.Format
		want         []string
		says         string
	}{
		"a folder": {files: folder, format: model.FormatSafetensors,
			want: []string{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"}},
		"one file":                {files: []string{"README.md", "a.gguf"}, format: model.FormatGGUF, want: []string{"a.gguf"}},
		"one of several":          {files: []string{"a-Q4_0.gguf", "a-Q8_0.gguf"}, globs: []string{"*Q8_0*"}, format: model.FormatGGUF, want: []string{"a-Q8_0.gguf"}},
		"several":                 {files: []string{"a-Q4_0.gguf", "a-Q8_0.gguf"}, says: "a-Q4_0.gguf, a-Q8_0.gguf"},
		"both kinds":              {files: append(slices.Clone(folder), "a.gguf"), says: "model.files"},
		"one of both kinds":       {files: append(slices.Clone(folder), "a.gguf"), globs: []string{"*.gguf"}, format: model.FormatGGUF, want: []string{"a.gguf"}},
		"two folders":             {files: []string{"4bit/config.json", "4bit/model.safetensors", "8bit/config.json", "8bit/model.safetensors"}, says: "several folders"},
		"one of two folders":      {files: []string{"4bit/config.json", "4bit/model.safetensors", "8bit/config.json", "8bit/model.safetensors"}, globs: []string{"8bit/*"}, format: model.FormatSafetensors, want: []string{"8bit/config.json", "8bit/model.safetensors"}},
		"nothing":                 {files: []string{"README.md", "pytorch_model.bin"}, says: "neither"},
		"nothing at all":          {says: "neither"},
		"no config":               {files: []string{"model.safetensors"}, says: "config.json"},
		"what is beside shards":   {files: []string{"config.json", "model.safetensors", "consolidated.safetensors"}, format: model.FormatSafetensors, want: []string{"config.json", "model.safetensors"}},
		"weights of another name": {files: []string{"config.json", "weights.safetensors"}, says: "model*.safetensors"},
		"a broken pattern":        {files: folder, globs: []string{"[a"}, says: "[a"},
		"a pattern for nothing":   {files: folder, globs: []string{"*.safetensor"}, says: "neither"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(entries(c.files...), c.globs)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%+v, %v; want an error that says %s", got, err, c.says)
				}
				return
			}
			var paths []string
			for _, f := range got.Files {
				paths = append(paths, f.Path)
			}
			if err != nil || got.Format != c.format || !slices.Equal(paths, c.want) {
				t.Errorf("%s %q (%v), want %s %q", got.Format, paths, err, c.format, c.want)
			}
		})
	}
	var many []string
	for i := range maxFiles {
		many = append(many, fmt.Sprintf("model-%05d.safetensors", i))
	}
	if _, err := Choose(entries(append(many, "config.json")...), nil); err == nil || !strings.Contains(err.Error(), "257") {
		t.Errorf("a model of 257 files: %v", err)
	}
}

// serve answers as a hub on loopback.
func serve(t *testing.T, h http.Handler) *Hub {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	c := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Roots: roots})
	t.Cleanup(c.Close)
	return &Hub{Client: c, Endpoint: s.URL + "/"}
}

func TestList(t *testing.T) {
	files := map[string]hubtest.File{"config.json": {Content: []byte("{}")}, "sub/model.safetensors": {Content: []byte("weights"), LFS: true}}
	for i := range 7 {
		files[fmt.Sprintf("more-%d", i)] = hubtest.File{Content: []byte("x")}
	}
	repo := hubtest.Of(files)
	repo.Refs["refs/pr/1"] = repo.Refs["main"]
	stand := &hubtest.Hub{PageSize: 3}
	stand.Put("org/model", repo)
	h := serve(t, stand)
	for _, rev := range []string{"main", "refs/pr/1", repo.Refs["main"]} {
		l, err := h.List(t.Context(), Source{Repo: "org/model", Revision: rev})
		if err != nil || l.Commit != repo.Refs["main"] || len(l.Files) != len(files) {
			t.Fatalf("%s: %+v, %v", rev, l, err)
		}
		i := slices.IndexFunc(l.Files, func(e Entry) bool { return e.Path == "sub/model.safetensors" })
		if e := l.Files[i]; e.Bytes != 7 || e.SHA256 != "9ae6cf1f7ebca1f4de7bf75be3ccc57e64d3a87b0c1b4b3aa4ba25cbcd2e2e9d" && len(e.SHA256) != 64 {
			t.Errorf("%+v", e)
		}
	}
	l, err := h.List(t.Context(), Source{Repo: "org/model", Revision: "main", Path: "sub"})
	if err != nil || len(l.Files) != 1 || l.Files[0].Path != "sub/model.safetensors" {
		t.Errorf("a folder of it: %+v, %v", l, err)
	}
}

func TestWhatTheHubRefusesIsSaid(t *testing.T) {
	files := map[string]hubtest.File{"a.gguf": {Content: []byte("x"), LFS: true}}
	private, public := hubtest.Of(files), hubtest.Of(files)
	private.Private, private.Token = true, "secret-1"
	stand := &hubtest.Hub{}
	stand.Put("org/private", private)
	stand.Put("org/public", public)
	h := serve(t, stand)
	for name, c := range map[string]struct {
		source Source
		says   string
	}{
		"no repository":    {Source{Repo: "org/none", Revision: "main"}, "no repository org/none"},
		"private":          {Source{Repo: "org/private", Revision: "main"}, "without a token"},
		"no such revision": {Source{Repo: "org/public", Revision: "v9"}, `no revision "v9"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.List(t.Context(), c.source)
			var e *download.Error
			if !errors.As(err, &e) || e.Reason != v1alpha1.ReasonSourceNotFound || !strings.Contains(e.Message, c.says) || e.Transient {
				t.Errorf("%v, want one that says %s", err, c.says)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.List(ctx, Source{Repo: "org/public", Revision: "main"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestAHubThatNeverEnds: pages without end, and pages elsewhere.
func TestAHubThatNeverEnds(t *testing.T) {
	commit := strings.Repeat("a", 40)
	for name, c := range map[string]struct{ link, says string }{
		"pages without end":       {`</api/models/o/m/tree/x?again>; rel="next"`, "more than"},
		"a page on another host":  {`<https://other.example/x>; rel="next"`, "another host"},
		"a page that is no https": {`<http://other.example/x>; rel="next"`, "another host"},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/revision/") {
					fmt.Fprintf(w, `{"sha":%q}`, commit)
					return
				}
				w.Header().Set("Link", c.link)
				fmt.Fprint(w, `[{"type":"file","path":"a","size":1}]`)
			}))
			if _, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want an error that says %s", err, c.says)
			}
		})
	}
	for name, body := range map[string]string{
		"no JSON":         "<html>",
		"no commit":       `{"sha":"main"}`,
		"a short commit":  `{"sha":"abc"}`,
		"nothing":         "",
		"a page too long": `{"sha":"` + strings.Repeat("x", maxPage) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/tree/") {
					fmt.Fprint(w, "[]")
					return
				}
				fmt.Fprint(w, body)
			}))
			if l, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}); err == nil {
				t.Errorf("%+v", l)
			}
		})
	}
}
