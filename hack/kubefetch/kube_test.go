//go:build !race

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const root = "../.."

// wanted returns the programs of an archive.
func wanted() []string { return []string{"etcd", "kube-apiserver", "kubectl"} }

// released returns an archive as it is published: its programs are scripts that print their
// origin, with half a megabyte that does not compress.
func released(t *testing.T, programs ...string) []byte {
	t.Helper()
	return archiveOf(t, "#!/bin/sh\necho released\nexit 0\n", programs...)
}

func archiveOf(t *testing.T, script string, programs ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	noise := make([]byte, 256<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for _, name := range append([]string{"LICENSE"}, programs...) {
		script := fmt.Appendf(nil, "%s%x", script, noise)
		if err := w.WriteHeader(&tar.Header{Name: "controller-tools/envtest/" + name, Mode: 0o755, Size: int64(len(script))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(script); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func pinned(archive []byte) string {
	sum := sha512.Sum512(archive)
	return fmt.Sprintf("%s/%s envtest-v1.2.3/a.tar.gz %s etcd kube-apiserver kubectl\n", runtime.GOOS, runtime.GOARCH, hex.EncodeToString(sum[:]))
}

// serving responds with the archive, and counts requests.
func serving(archive []byte, asked *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/mirror/envtest-v1.2.3/a.tar.gz" {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(archive))
	}
}

// breaking truncates the first responses to half.
func breaking(archive []byte, times int32, then http.HandlerFunc) http.HandlerFunc {
	var asked atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > times {
			then(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(archive)))
		_, _ = w.Write(archive[:len(archive)/2])
		panic(http.ErrAbortHandler)
	}
}

// tree returns a checkout with hack/kube.sh, this program and its pins, in which compiling
// takes no time.
func tree(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, content []byte) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(sources, "../kube.sh") {
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(s, "_test.go") {
			put(filepath.ToSlash(filepath.Join("hack/kubefetch", s)), b)
		}
	}
	put("go.mod", []byte("module metalfleet.dev/metalfleet\n\ngo 1.26\n"))
	put("hack/kubefetch/pins.txt", []byte(pinned(archive)))
	put("hack/kube/compile.sh", []byte(`cd "$(dirname "$0")/../.."
echo compiling
mkdir -p bin/kube
for c in etcd kube-apiserver kubectl kube-controller-manager; do
  printf '#!/bin/sh\necho compiled\n' >bin/kube/$c
  chmod +x bin/kube/$c
done
`))
	return dir
}

// kube runs hack/kube.sh of a tree, and returns its output.
func kube(t *testing.T, dir, mirror string, arguments ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{"hack/kube.sh"}, arguments...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS=", "KUBE_MIRROR="+mirror, "HTTP_PROXY=", "http_proxy=", "GOWORK=off")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// from returns the output of the programs of a tree, and their names.
func from(t *testing.T, dir string) (prints string, names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "bin", "kube"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".fetch-") {
			t.Errorf("%s is left over", e.Name())
		}
		if e.Name() == marker || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		names = append(names, e.Name())
		out, err := exec.Command(filepath.Join(dir, "bin", "kube", e.Name()), "--version").Output()
		if err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
		if prints != "" && prints != string(out) {
			t.Errorf("%s is %s, and another is %s", e.Name(), out, prints)
		}
		prints = string(out)
	}
	return strings.TrimSpace(prints), names
}

func TestKubeFetchesWhatIsReleasedAndCompilesWhereItCannot(t *testing.T) {
	archive := released(t, wanted()...)
	altered := bytes.Clone(archive)
	altered[len(altered)/2] ^= 1
	var asked atomic.Int32
	serve := serving(archive, &asked)
	whole := func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		serve(w, r)
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string   // output of the programs in the end
		lines   []string // of the output
	}{
		"the right file":              {handler: serve, want: "released", lines: []string{"Kubernetes v1.2.3 (etcd, kube-apiserver, kubectl), as released"}},
		"half a file, then the rest":  {handler: breaking(archive, 1, serve), want: "released", lines: []string{"the download broke off after", "resuming it"}},
		"half a file, then all of it": {handler: breaking(archive, 1, whole), want: "released", lines: []string{"the download broke off after", "resuming it"}},
		"half a file, twice":          {handler: breaking(archive, 2, serve), want: "compiled", lines: []string{"broke off after 0.", "twice", "compiling"}},
		"a wrong checksum":            {handler: serving(altered, &asked), want: "compiled", lines: []string{"its SHA-512 is", "the file is deleted", "compiling"}},
		"no such file":                {handler: http.NotFound, want: "compiled", lines: []string{"the answer is 404 Not Found", "compiling"}},
		"a page in place of the file": {handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "log in first") }, want: "compiled", lines: []string{"its SHA-512 is", "compiling"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			defer server.Close()
			dir := tree(t, archive)
			out, err := kube(t, dir, server.URL+"/mirror/", "--without-controllers")
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if prints, names := from(t, dir); prints != test.want || !contains(names, wanted()) {
				t.Errorf("the programs %v are %s, want %s:\n%s", names, prints, test.want, out)
			}
			for _, line := range test.lines {
				if !strings.Contains(out, line) {
					t.Errorf("the output misses %q:\n%s", line, out)
				}
			}
			if compiled := strings.Contains(out, "compiling\n"); compiled != (test.want == "compiled") {
				t.Errorf("compiled: %t:\n%s", compiled, out)
			}
		})
	}
}

func TestKubeCompilesWhereNothingAnswers(t *testing.T) {
	archive := released(t, wanted()...)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections, but never a request
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for name, test := range map[string]struct{ mirror, line string }{
		"a listener that never answers": {mirror: "http://" + silent.Addr().String(), line: "http://" + silent.Addr().String() + " did not answer within 5s; KUBE_MIRROR can name a mirror"},
		"a refused connection":          {mirror: closed.URL, line: closed.URL + " cannot be reached: dial tcp"},
		"no URL":                        {mirror: "mirror.test/releases", line: "is not a URL; correct KUBE_MIRROR"},
		"fetching turned off":           {mirror: "none", line: "KUBE_MIRROR=none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, archive)
			out, err := kube(t, dir, test.mirror, "--without-controllers")
			if err != nil || !strings.Contains(out, test.line) || !strings.HasSuffix(out, "compiling\n") {
				t.Errorf("%v, want %q and compiling:\n%s", err, test.line, out)
			}
			if prints, names := from(t, dir); prints != "compiled" {
				t.Errorf("%v are %s", names, prints)
			}
			if err := os.RemoveAll(filepath.Join(dir, "bin")); err != nil {
				t.Fatal(err)
			}
			if out, err := kube(t, dir, test.mirror, "--without-controllers", "--no-compile"); err == nil || !strings.Contains(out, test.line) || strings.Contains(out, "compiling") {
				t.Errorf("without compiling it ends with %v:\n%s", err, out)
			}
		})
	}
}

func TestKubeFetchesOnce(t *testing.T) {
	archive := released(t, wanted()...)
	var asked atomic.Int32
	server := httptest.NewServer(serving(archive, &asked))
	defer server.Close()
	dir := tree(t, archive)
	run := func(want int32, arguments ...string) string {
		t.Helper()
		out, err := kube(t, dir, server.URL+"/mirror", arguments...)
		if err != nil || asked.Load() != want {
			t.Fatalf("%v after %d requests, want %d:\n%s", err, asked.Load(), want, out)
		}
		return out
	}
	run(1, "--without-controllers")
	if out := run(1, "--without-controllers"); !strings.Contains(out, "is in bin/kube") {
		t.Errorf("it does not name what is there:\n%s", out)
	}
	if err := os.Remove(filepath.Join(dir, "bin", "kube", "kubectl")); err != nil {
		t.Fatal(err)
	}
	run(2, "--without-controllers")
	// Another release is pinned.
	if err := os.WriteFile(filepath.Join(dir, "bin", "kube", marker), []byte("another\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(3, "--without-controllers")
	if out := run(3); !strings.Contains(out, "no release with kube-controller-manager is known") {
		t.Errorf("it does not give the reason for compiling:\n%s", out)
	}
	if prints, names := from(t, dir); prints != "compiled" || !slices.Contains(names, "kube-controller-manager") {
		t.Errorf("with controllers %v are %s", names, prints)
	}
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(name string) bool { return !slices.Contains(all, name) })
}
