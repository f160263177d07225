package hub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestParse(t *testing.T) {
	for source, want := range map[string]Source{
		"hf://org/model":                      {Repo: "org/model", Revision: "main", Path: ""},
		"hf://org/model@v1.0":                 {Repo: "org/model", Revision: "v1.0", Path: ""},
		"hf://org/model@refs%2Fpr%2F1":        {Repo: "org/model", Revision: "refs/pr/1", Path: ""},
		"hf://org/model/sub/m-Q4_K_M.gguf":    {Repo: "org/model", Revision: "main", Path: "sub/m-Q4_K_M.gguf"},
		"hf://org/model@main/sub/":            {Repo: "org/model", Revision: "main", Path: "sub"},
		"hf://mlx-community/Qwen3-8B-4bit":    {Repo: "mlx-community/Qwen3-8B-4bit", Revision: "main", Path: ""},
		"hf://o/m@" + strings.Repeat("a", 40): {Repo: "o/m", Revision: strings.Repeat("a", 40), Path: ""},
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
	if _, err := Parse("hf://org/model@v1", "v2"); err == nil || !strings.Contains(err.Error(), "keep only one") {
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
		"named chat templates": {files: append(slices.Clone(folder), "chat_template.jinja", "additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja", "additional_chat_templates/README.md", "additional_chat_templates/old/rag.jinja", "onnx/additional_chat_templates/rag.jinja", "templates/rag.jinja"), format: model.FormatSafetensors,
			want: []string{"additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"}},
		"those of one of two folders": {files: []string{"4bit/additional_chat_templates/a.jinja", "4bit/config.json", "4bit/model.safetensors", "8bit/additional_chat_templates/b.jinja", "8bit/config.json", "8bit/model.safetensors"}, globs: []string{"8bit/*"}, format: model.FormatSafetensors,
			want: []string{"8bit/additional_chat_templates/b.jinja", "8bit/config.json", "8bit/model.safetensors"}},
		"one file":                {files: []string{"README.md", "a.gguf"}, format: model.FormatGGUF, want: []string{"a.gguf"}},
		"one of several":          {files: []string{"a-Q4_0.gguf", "a-Q8_0.gguf"}, globs: []string{"*Q8_0*"}, format: model.FormatGGUF, want: []string{"a-Q8_0.gguf"}},
		"several":                 {files: []string{"a-Q4_0.gguf", "a-Q8_0.gguf"}, says: "a-Q4_0.gguf, a-Q8_0.gguf"},
		"both kinds":              {files: append(slices.Clone(folder), "a.gguf"), says: "model.files"},
		"one of both kinds":       {files: append(slices.Clone(folder), "a.gguf"), globs: []string{"*.gguf"}, format: model.FormatGGUF, want: []string{"a.gguf"}},
		"two folders":             {files: []string{"4bit/config.json", "4bit/model.safetensors", "8bit/config.json", "8bit/model.safetensors"}, says: "several folders"},
		"one of two folders":      {files: []string{"4bit/config.json", "4bit/model.safetensors", "8bit/config.json", "8bit/model.safetensors"}, globs: []string{"8bit/*"}, format: model.FormatSafetensors, want: []string{"8bit/config.json", "8bit/model.safetensors"}},
		"nothing":                 {files: []string{"README.md", "pytorch_model.bin"}, says: "neither"},
		"nothing at all":          {says: "neither"},
		"names of one file":       {files: append(slices.Clone(folder), "additional_chat_templates/rag.jinja", "additional_chat_templates/RAG.jinja"), says: "one on a Mac's disk; rename one (additional_chat_templates/RAG.jinja"},
		"no config":               {files: []string{"model.safetensors"}, says: "config.json"},
		"files next to shards":    {files: []string{"config.json", "model.safetensors", "consolidated.safetensors"}, format: model.FormatSafetensors, want: []string{"config.json", "model.safetensors"}},
		"weights of another name": {files: []string{"config.json", "weights.safetensors"}, says: "model*.safetensors"},
		"two forms":               {files: []string{"config.json", "model.safetensors", "model.fp16.safetensors"}, says: "2 variants"},
		"one file and several":    {files: []string{"config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, says: "model.files"},
		"one of two forms":        {files: []string{"config.json", "model.safetensors", "model.fp16.safetensors"}, globs: []string{"model.fp16.safetensors"}, format: model.FormatSafetensors, want: []string{"config.json", "model.fp16.safetensors"}},
		"a part of another name":  {files: []string{"config.json", "model-00001-of-00001.safetensors", "model_mtp.safetensors"}, format: model.FormatSafetensors, want: []string{"config.json", "model-00001-of-00001.safetensors", "model_mtp.safetensors"}},
		"a model that reads": {files: []string{"config.json", "model.safetensors", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json", "data_config.json", "onnx/model.onnx"},
			format: model.FormatSafetensors, want: []string{"config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json", "sentence_bert_config.json"}},
		"weights of a module":     {files: []string{"2_Dense/config.json", "2_Dense/model.safetensors", "config.json", "model.safetensors", "modules.json"}, format: model.FormatSafetensors, want: []string{"config.json", "model.safetensors", "modules.json"}},
		"a folder like a module":  {files: []string{"2_Dense/config.json", "2_Dense/model.safetensors", "config.json", "model.safetensors"}, says: "several folders"},
		"a folder below a module": {files: []string{"a/2_Dense/model.safetensors", "config.json", "model.safetensors", "modules.json"}, says: "several folders"},
		"a file twice":            {files: []string{"config.json", "config.json", "model.safetensors"}, says: "listed twice"},
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

// TestModulesBringTheirConfigurationAlone: no weights, nothing that is not
// listed, and nothing of another folder.
func TestModulesBringTheirConfigurationAlone(t *testing.T) {
	for _, folder := range []string{"", "small/"} {
		var files []string
		for _, f := range []string{"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "1_Pooling/README.md", "2_Dense/config.json", "2_Dense/model.safetensors", "3_None/other.json"} {
			files = append(files, folder+f)
		}
		all := entries(append(files, "other/1_Pooling/config.json")...)
		c, err := Choose(all, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := c.Modules(); !ok || e.Path != folder+"modules.json" {
			t.Errorf("modules lie in %+v, %v", e, ok)
		}
		got, err := c.WithModules(all, []weights.Module{{Kind: "Transformer"}, {Kind: "Pooling", Path: "1_Pooling"}, {Kind: "Dense", Path: "2_Dense"}, {Kind: "Normalize", Path: "3_None"}, {Kind: "Pooling", Path: "1_Pooling"}})
		var paths []string
		for _, f := range got.Files {
			paths = append(paths, strings.TrimPrefix(f.Path, folder))
		}
		if want := []string{"1_Pooling/config.json", "2_Dense/config.json", "config.json", "model.safetensors", "modules.json"}; err != nil || !slices.Equal(paths, want) {
			t.Errorf("%q (%v), want %q", paths, err, want)
		}
		if len(c.Files) != 3 {
			t.Errorf("the choice itself changed: %+v", c.Files)
		}
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
		l, err := h.List(t.Context(), Source{Repo: "org/model", Revision: rev}, "")
		if err != nil || l.Commit != repo.Refs["main"] || len(l.Files) != len(files) {
			t.Fatalf("%s: %+v, %v", rev, l, err)
		}
		i := slices.IndexFunc(l.Files, func(e Entry) bool { return e.Path == "sub/model.safetensors" })
		if e := l.Files[i]; e.Bytes != 7 || e.SHA256 != "9ae6cf1f7ebca1f4de7bf75be3ccc57e64d3a87b0c1b4b3aa4ba25cbcd2e2e9d" && len(e.SHA256) != 64 {
			t.Errorf("%+v", e)
		}
	}
	l, err := h.List(t.Context(), Source{Repo: "org/model", Revision: "main", Path: "sub"}, "")
	if err != nil || len(l.Files) != 1 || l.Files[0].Path != "sub/model.safetensors" {
		t.Errorf("a folder of it: %+v, %v", l, err)
	}
}

// TestAListingWithAToken: what a token has access to is listed, and the hub's
// error about a token becomes a sentence with the next step, never the token.
func TestAListingWithAToken(t *testing.T) {
	files := map[string]hubtest.File{"a.gguf": {Content: []byte("x"), LFS: true, Xet: true}}
	private, gated := hubtest.Of(files), hubtest.Of(files)
	private.Private, private.Token = true, "secret-1"
	gated.Gated, gated.Token = true, "secret-2"
	stand := &hubtest.Hub{}
	stand.Put("org/private", private)
	stand.Put("org/gated", gated)
	h := serve(t, stand)
	if l, err := h.List(t.Context(), Source{Repo: "org/private", Revision: "main"}, "secret-1"); err != nil || len(l.Files) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	file := func(repo string, token download.Bearer) error {
		r := private
		if repo == "org/gated" {
			r = gated
		}
		resp, err := h.File(t.Context(), Source{Repo: repo, Revision: "main"}, r.Refs["main"], "a.gguf", token, nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	for name, c := range map[string]struct {
		repo         string
		token        download.Bearer
		reason, says string
	}{
		"private, without":                 {repo: "org/private", token: "", reason: v1alpha1.ReasonSourceNotFound, says: "model.secretRef"},
		"private, with another's":          {repo: "org/private", token: "secret-2", reason: v1alpha1.ReasonSourceNotFound, says: "that the token of model.secretRef may read"},
		"private, with none that is known": {repo: "org/private", token: "secret-9", reason: v1alpha1.ReasonTokenRefused, says: "put a valid one into the Secret"},
		"gated, without":                   {repo: "org/gated", token: "", reason: v1alpha1.ReasonGatedModel, says: "accept its licence on the hub, and reference a Secret"},
		"gated, not accepted":              {repo: "org/gated", token: "secret-1", reason: v1alpha1.ReasonGatedModel, says: "accept its licence on the hub with that account"},
		"gated, accepted":                  {repo: "org/gated", token: "secret-2", reason: "", says: ""},
	} {
		err := file(c.repo, c.token)
		if c.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if download.Reason(err, "") != c.reason || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret-") {
			t.Errorf("%s: %v; want %s that says %q", name, err, c.reason, c.says)
		}
	}
}

// TestAFineTokenWithoutTheRight is known to the hub and may not read this.
func TestAFineTokenWithoutTheRight(t *testing.T) {
	h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	_, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, "secret-1")
	if download.Reason(err, "") != v1alpha1.ReasonTokenRefused || !download.Denied(err) || !strings.Contains(err.Error(), "grant it read access") {
		t.Errorf("%v", err)
	}
}

// TestAttackATokenForAnotherHost: neither a page of a listing nor a redirect
// of a file takes the token along.
func TestAttackATokenForAnotherHost(t *testing.T) {
	stolen := make(chan string, 10)
	evil := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen <- r.Header.Get("Authorization")
		fmt.Fprint(w, "[]")
	}))
	t.Cleanup(evil.Close)
	commit := strings.Repeat("a", 40)
	h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/revision/"):
			fmt.Fprintf(w, `{"sha":%q}`, commit)
		case strings.Contains(r.URL.Path, "/tree/"):
			w.Header().Set("Link", "<"+evil.URL+`/next>; rel="next"`)
			fmt.Fprint(w, "[]")
		default:
			http.Redirect(w, r, evil.URL+"/stored", http.StatusFound)
		}
	}))
	src := Source{Repo: "o/m", Revision: "main"}
	if _, err := h.List(t.Context(), src, "secret-1"); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("%v", err)
	}
	resp, err := h.File(t.Context(), src, commit, "m.gguf", "secret-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-stolen; got != "" || len(stolen) > 0 {
		t.Errorf("another host was given %q", got)
	}
}

// TestAttackRedirectsOfAHub: neither a hub nor an impostor can redirect a request
// to addresses that are not public.
func TestAttackRedirectsOfAHub(t *testing.T) {
	asked := 0
	inner := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(inner.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(inner.URL, "https://"), ":")
	for _, target := range []string{
		"https://169.254.169.254/latest/meta-data", "https://10.96.0.1/api", "https://192.168.1.1/", "https://[::1]:" + port + "/", "https://[::ffff:10.0.0.1]/",
		"https://[64:ff9b::a00:1]/", "https://[fd00::1]/", "https://0.0.0.0:" + port + "/", "https://[::]:" + port + "/", "https://100.64.0.1/",
		"http://127.0.0.1:" + port + "/", "file:///etc/passwd", "https://user:word@127.0.0.1:" + port + "/",
	} {
		h := serve(t, http.RedirectHandler(target, http.StatusTemporaryRedirect))
		src := Source{Repo: "o/m", Revision: "main"}
		_, listed := h.List(t.Context(), src, "secret-1")
		resp, fetched := h.File(t.Context(), src, strings.Repeat("a", 40), "m.gguf", "secret-1", nil)
		if fetched == nil {
			resp.Body.Close()
		}
		for what, err := range map[string]error{"a listing": listed, "a file": fetched} {
			if download.Reason(err, "") != v1alpha1.ReasonSourceForbidden {
				t.Errorf("%s that leads to %s: %v", what, target, err)
			}
		}
	}
	if asked > 0 {
		t.Errorf("%d requests arrived where they must not", asked)
	}
}

// TestAttackAHubByItsName: an endpoint whose name means an address inside is
// refused like any source, unless the Mac's administrator allowed it.
func TestAttackAHubByItsName(t *testing.T) {
	srv := httptest.NewTLSServer(&hubtest.Hub{})
	t.Cleanup(srv.Close)
	c := download.NewClient(download.Policy{})
	t.Cleanup(c.Close)
	h := &Hub{Client: c, Endpoint: strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)}
	if _, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, ""); download.Reason(err, "") != v1alpha1.ReasonSourceForbidden {
		t.Errorf("%v", err)
	}
}

// TestAttackPathsOfAListing: a hub that lists paths which would leave a folder,
// or files that it cannot name, is not believed.
func TestAttackPathsOfAListing(t *testing.T) {
	commit := strings.Repeat("a", 40)
	for _, file := range []string{
		`"path":"../../etc/cron.d/x","size":1,"oid":"` + commit + `"`, `"path":"/etc/passwd","size":1,"oid":"` + commit + `"`, `"path":"a/../../b","size":1,"oid":"` + commit + `"`,
		`"path":"a\\..\\b","size":1,"oid":"` + commit + `"`, `"path":"a\u0000b","size":1,"oid":"` + commit + `"`, `"path":"a\u001b[2Jb","size":1,"oid":"` + commit + `"`,
		`"path":"","size":1,"oid":"` + commit + `"`, `"path":"` + strings.Repeat("x", 513) + `","size":1,"oid":"` + commit + `"`, `"path":"a","size":-1,"oid":"` + commit + `"`,
		`"path":"a","size":1`, `"path":"a","size":1,"oid":"../x"`, `"path":"a","size":1,"lfs":{"oid":"abc","size":1}`, `"path":"a","size":1,"lfs":{"oid":"` + strings.Repeat("0", 64) + `","size":-5}`,
	} {
		h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/revision/") {
				fmt.Fprintf(w, `{"sha":%q}`, commit)
				return
			}
			fmt.Fprintf(w, `[{"type":"file",%s}]`, file)
		}))
		if l, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, ""); err == nil {
			t.Errorf("%s is believed: %+v", file, l)
		}
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
		"no repository":    {source: Source{Repo: "org/none", Revision: "main"}, says: "no public repository org/none"},
		"private":          {source: Source{Repo: "org/private", Revision: "main"}, says: "no token was sent"},
		"no such revision": {source: Source{Repo: "org/public", Revision: "v9"}, says: `no revision "v9"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.List(t.Context(), c.source, "")
			var e *download.Error
			if !errors.As(err, &e) || e.Reason != v1alpha1.ReasonSourceNotFound || !strings.Contains(e.Message, c.says) || e.Transient {
				t.Errorf("%v, want one that says %s", err, c.says)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.List(ctx, Source{Repo: "org/public", Revision: "main"}, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestAttackAListingOfEmptyLines: each costs a few bytes to send, and many to keep.
func TestAttackAListingOfEmptyLines(t *testing.T) {
	page := []byte("[" + strings.Repeat("{},", maxPage/3-1) + "{}]")
	h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/revision/") {
			fmt.Fprintf(w, `{"sha":%q}`, strings.Repeat("a", 40))
			return
		}
		_, _ = w.Write(page)
	}))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, "")
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 48<<20 {
		t.Errorf("%d files, %v, with %d MiB of memory", len(l.Files), err, took>>20)
	}
}

// TestAttackAListingWithoutEnd: pages without end, and pages elsewhere.
func TestAttackAListingWithoutEnd(t *testing.T) {
	commit := strings.Repeat("a", 40)
	for name, c := range map[string]struct{ link, says string }{
		"pages without end":       {link: `</api/models/o/m/tree/x?again>; rel="next"`, says: "more than"},
		"a page on another host":  {link: `<https://other.example/x>; rel="next"`, says: "another host"},
		"a page that is no https": {link: `<http://other.example/x>; rel="next"`, says: "another host"},
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/revision/") {
					fmt.Fprintf(w, `{"sha":%q}`, commit)
					return
				}
				w.Header().Set("Link", c.link)
				fmt.Fprint(w, `[{"type":"file","path":"a","size":1,"oid":"`+commit+`"}]`)
			}))
			if _, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, ""); err == nil || !strings.Contains(err.Error(), c.says) {
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
			if l, err := h.List(t.Context(), Source{Repo: "o/m", Revision: "main"}, ""); err == nil {
				t.Errorf("%+v", l)
			}
		})
	}
}
