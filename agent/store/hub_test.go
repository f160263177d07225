package store

import (
	"bytes"
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// repository is a folder on a hub, and its record.
func repository() (*hubtest.Repo, model.Record) {
	files := map[string]hubtest.File{
		"4bit/config.json":                  {Content: []byte(`{"a":1}`)},
		"4bit/model-00001-of-2.safetensors": {Content: blob(300 << 10), LFS: true},
		"4bit/model-00002-of-2.safetensors": {Content: blob(200 << 10), LFS: true},
		"README.md":                         {Content: []byte("no part of it")},
	}
	repo := hubtest.Of(files)
	rec := model.Record{Source: "hf://org/model/4bit", Commit: repo.Refs["main"], Format: model.FormatSafetensors}
	for _, p := range []string{"4bit/config.json", "4bit/model-00001-of-2.safetensors", "4bit/model-00002-of-2.safetensors"} {
		rec.Files = append(rec.Files, model.File{Path: p, Bytes: int64(len(files[p].Content)), SHA256: digest(files[p].Content)})
	}
	rec.Digest = model.DigestOf(rec.Files)
	return repo, rec
}

// overHub is a store whose hub is served by a handler.
func overHub(t *testing.T, serve http.Handler) *Store {
	t.Helper()
	return overDir(t, serve, filepath.Join(t.TempDir(), "weights"))
}

// overDir is overHub in a folder that may exist already.
func overDir(t *testing.T, serve http.Handler, dir string) *Store {
	t.Helper()
	srv := httptest.NewTLSServer(serve)
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	client := download.NewClient(download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Roots: pool})
	root, err := OpenRoot(t.TempDir(), filepath.Join(t.TempDir(), "model-root.json"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Open(ctx, Options{Dir: dir, Root: root, Fetch: &download.Fetcher{Client: client, Backoff: time.Millisecond},
		Hub: &hub.Hub{Client: client, Endpoint: srv.URL}, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); s.Close(); root.Close(); client.Close() })
	return s
}

func TestAFolderOfAHubIsFetchedWhole(t *testing.T) {
	repo, rec := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	s := overHub(t, stand)
	var seen []v1alpha1.Progress
	path, err := s.Ensure(t.Context(), rec, "", func(p v1alpha1.Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rec.Files {
		got, err := os.ReadFile(filepath.Join(path, filepath.Base(f.Path)))
		if err != nil || digest(got) != f.SHA256 {
			t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
	last := seen[len(seen)-1]
	if last.Stage != v1alpha1.StageDownloading || last.BytesDone != rec.Bytes() || last.BytesTotal != rec.Bytes() {
		t.Errorf("the last progress is %+v, of %d bytes", last, rec.Bytes())
	}
	for i := 1; i < len(seen); i++ {
		if seen[i].BytesDone < seen[i-1].BytesDone {
			t.Errorf("progress went back: %+v after %+v", seen[i], seen[i-1])
		}
	}
	before := len(stand.Requests())
	if again, err := s.Ensure(t.Context(), rec, "", nil); err != nil || again != path || len(stand.Requests()) != before {
		t.Errorf("again: %s, %v, %d more requests", again, err, len(stand.Requests())-before)
	}
	for _, r := range stand.Requests() {
		if strings.Contains(r, "README") || strings.Contains(r, "main") {
			t.Errorf("%s: want the record's files at its commit alone", r)
		}
	}
	if w := s.List(); len(w) != 1 || w[0].Bytes != rec.Bytes() {
		t.Errorf("listed: %+v", w)
	}
	if n, err := s.Remove(rec.Digest); err != nil || n != rec.Bytes() {
		t.Errorf("removed %d bytes, %v", n, err)
	}
}

// TestTheModulesOfAHubsFolderLieBelowIt, are downloaded once for all callers, and
// are removed with it.
func TestTheModulesOfAHubsFolderLieBelowIt(t *testing.T) {
	for _, folder := range []string{"", "small/"} {
		files := map[string]hubtest.File{}
		rec := model.Record{Source: "hf://org/model", Format: model.FormatSafetensors}
		for _, name := range []string{"1_Pooling/config.json", "config.json", "model.safetensors", "modules.json"} {
			f := hubtest.File{Content: []byte(aReader[name]), LFS: name == "model.safetensors"}
			files[folder+name] = f
			rec.Files = append(rec.Files, model.File{Path: folder + name, Bytes: int64(len(f.Content)), SHA256: digest(f.Content)})
		}
		repo := hubtest.Of(files)
		rec.Commit, rec.Digest = repo.Refs["main"], model.DigestOf(rec.Files)
		stand := &hubtest.Hub{}
		stand.Put("org/model", repo)
		s := overHub(t, stand)
		path, err := s.Ensure(t.Context(), rec, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range rec.Files {
			got, err := os.ReadFile(filepath.Join(path, strings.TrimPrefix(f.Path, folder)))
			if err != nil || digest(got) != f.SHA256 {
				t.Errorf("%s: %q, %v", f.Path, got, err)
			}
		}
		before := len(stand.Requests())
		if again, err := s.Ensure(t.Context(), rec, "", nil); err != nil || again != path || len(stand.Requests()) != before {
			t.Errorf("again: %s, %v, %d more requests", again, err, len(stand.Requests())-before)
		}
		if n, err := s.Remove(rec.Digest); err != nil || n != rec.Bytes() {
			t.Errorf("removed %d bytes, %v", n, err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("left behind: %v", err)
		}
	}
}

// TestChangedFileOfAFolderIsRefused leaves nothing on disk.
func TestChangedFileOfAFolderIsRefused(t *testing.T) {
	repo, rec := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	wrong := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, rec.Files[2].SHA256) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, rec.Files[2].Bytes)))
			return
		}
		stand.ServeHTTP(w, r)
	})
	s := overHub(t, wrong)
	_, err := s.Ensure(t.Context(), rec, "", nil)
	if download.Reason(err, "") != v1alpha1.ReasonDigestMismatch {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(filepath.Join(s.opt.Dir, partialDir)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRecordsOfAHubThatCannotBeMeant(t *testing.T) {
	repo, good := repository()
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	s := overHub(t, stand)
	for name, change := range map[string]func(r *model.Record){
		"no commit":             func(r *model.Record) { r.Commit = "" },
		"a branch":              func(r *model.Record) { r.Commit = "main" },
		"a source that is none": func(r *model.Record) { r.Source = "hf://model" },
		"several folders":       func(r *model.Record) { r.Files[0].Path = "config.json" },
		"a file of a folder":    func(r *model.Record) { r.Files[0].Path = "4bit/1_Pooling/model.bin" },
		"a folder of a folder":  func(r *model.Record) { r.Files[0].Path = "4bit/a/b/config.json" },
		"another's folder":      func(r *model.Record) { r.Files[0].Path = "8bit/config.json" },
		"several GGUF files":    func(r *model.Record) { r.Format = model.FormatGGUF },
	} {
		t.Run(name, func(t *testing.T) {
			rec := good
			rec.Files = slices.Clone(good.Files)
			change(&rec)
			rec.Digest = model.DigestOf(rec.Files)
			if path, err := s.Ensure(t.Context(), rec, "", nil); err == nil {
				t.Errorf("%s was handed out", path)
			}
		})
	}
	if n := len(stand.Requests()); n > 0 {
		t.Errorf("%d requests were made", n)
	}
}

// TestAPrivateRepositoryIsFetchedWithItsToken: the token is read for each request
// and sent to the hub alone, and a download that a wrong one left is resumed with
// a right one.
func TestAPrivateRepositoryIsFetchedWithItsToken(t *testing.T) {
	repo, rec := repository()
	repo.Private, repo.Token = true, "hf_secret"
	stand := &hubtest.Hub{}
	stand.Put("org/model", repo)
	large := httptest.NewTLSServer(stand)
	t.Cleanup(large.Close)
	stand.Large = large.URL
	s := overHub(t, stand)
	given := map[string]error{}
	var token download.Bearer
	s.sources.credential = func(ref string) (download.Bearer, error) {
		if ref != "mine" {
			t.Errorf("asked for the token %q", ref)
		}
		return token, given["error"]
	}
	part := filepath.Join(s.opt.Dir, partialDir, partial(rec.Digest, want{rec, "mine"}.origin()), filesDir, rec.Files[0].Path)

	_, err := s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonSourceNotFound)
	token = "hf_other"
	_, err = s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonTokenRefused)
	if _, err := os.Stat(part); err != nil {
		t.Errorf("a denied download leaves nothing to resume: %v", err)
	}
	given["error"] = &download.Error{Reason: v1alpha1.ReasonTokenMissing, Message: "it is not here yet", Transient: true, Status: 401}
	before := len(stand.Requests())
	_, err = s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonTokenMissing)
	if n := len(stand.Requests()) - before; n > 0 {
		t.Errorf("%d requests without the token", n)
	}

	token, given = "hf_secret", nil
	if _, err = s.Ensure(t.Context(), rec, "mine", nil); err != nil {
		t.Fatal(err)
	}
	for _, request := range stand.Bearing() {
		if strings.Contains(request, "/large/") {
			t.Errorf("the token went along with %s", request)
		}
	}
	// No file may contain the token.
	err = filepath.WalkDir(s.opt.Dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if bytes.Contains(b, []byte("hf_secret")) {
			t.Errorf("%s says the token", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttackATokenForASourceThatIsNoHub: only requests to a hub carry a token.
func TestAttackATokenForASourceThatIsNoHub(t *testing.T) {
	w := newWorld(t)
	asked := ""
	w.origin.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked += r.Header.Get("Authorization")
		http.ServeContent(rw, r, "m", time.Time{}, bytes.NewReader(w.content))
	})
	s, _ := w.start()
	s.sources.credential = func(string) (download.Bearer, error) { return "hf_secret", nil }
	path, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "mine", nil)
	wantContent(t, path, err, w.content)
	if asked != "" {
		t.Errorf("it was asked with %q", asked)
	}
}
