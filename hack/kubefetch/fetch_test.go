//go:build !race

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// short has limits that a test can reach.
var short = limits{answer: 2 * time.Second, stall: 300 * time.Millisecond, whole: time.Minute, report: time.Hour}

// fetch runs a fetcher against a mirror whose archive is pinned.
func fetch(t *testing.T, archive []byte, l limits, handler http.HandlerFunc) (dir string, lines []string, err error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	dir = filepath.Join(t.TempDir(), "kube")
	f := fetcher{pins: pinned(archive), mirror: server.URL + "/mirror", platform: runtime.GOOS + "/" + runtime.GOARCH, out: dir, limits: l, report: func(line string) { lines = append(lines, line) }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = f.run(ctx, wanted())
	return dir, lines, err
}

// hanging sends half a file and then nothing until the client disconnects.
func hanging(archive []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(archive[:len(archive)/2])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

func TestADownloadThatStandsStillIsResumedOnceAndGivenUp(t *testing.T) {
	archive := released(t, wanted()...)
	dir, lines, err := fetch(t, archive, short, hanging(archive))
	if err == nil || !strings.Contains(err.Error(), "broke off after") || !strings.Contains(strings.Join(lines, "\n"), "resuming it") {
		t.Errorf("%v, %q", err, lines)
	}
	empty(t, dir)
}

func TestADownloadThatTakesLongerThanCompilingIsGivenUp(t *testing.T) {
	archive := released(t, wanted()...)
	l := short
	l.whole, l.stall = 500*time.Millisecond, time.Minute
	dir, _, err := fetch(t, archive, l, hanging(archive))
	if err == nil || !strings.Contains(err.Error(), "has not come within 500ms") {
		t.Errorf("%v", err)
	}
	empty(t, dir)
}

func TestAnArchiveWithoutAProgramChangesNothing(t *testing.T) {
	archive := released(t, "etcd", "kubectl")
	var asked atomic.Int32
	dir, _, err := fetch(t, archive, usual, serving(archive, &asked))
	if err == nil || !strings.Contains(err.Error(), "holds no program kube-apiserver") {
		t.Errorf("%v", err)
	}
	empty(t, dir)
}

// A program of another kind of machine must not take the place of one that is
// compiled.
func TestAProgramThatDoesNotRunHereIsNotInstalled(t *testing.T) {
	archive := archiveOf(t, "#!/bin/sh\nexit 1\n", wanted()...)
	var asked atomic.Int32
	dir, _, err := fetch(t, archive, usual, serving(archive, &asked))
	if err == nil || !strings.Contains(err.Error(), "the released etcd does not run on this machine") {
		t.Errorf("%v", err)
	}
	empty(t, dir)
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestPinsAreOfThePlatformsAndTheVersionThatAreCompiled(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "hack", "kube", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v[0-9]+\.[0-9]+\.)[0-9]+$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("hack/kube/go.mod names no version of k8s.io/kubernetes")
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/arm64"} {
		p, err := pinFor(pins, platform, wanted())
		if err != nil {
			t.Errorf("%s: %v", platform, err)
			continue
		}
		if !strings.HasPrefix(p.version, "Kubernetes "+string(m[1])) || !strings.HasSuffix(p.archive, "-"+strings.ReplaceAll(platform, "/", "-")+".tar.gz") {
			t.Errorf("%s is pinned to %s of %s, and %s* is compiled: pin another of envtest-releases.yaml", platform, p.archive, p.version, m[1])
		}
	}
	if _, err := pinFor(pins, "plan9/386", wanted()); err == nil {
		t.Error("an archive is pinned for a platform without releases")
	}
}

func TestAListThatCannotBeReadIsRefused(t *testing.T) {
	good := pinned([]byte("a"))
	if _, err := parsePins("# a comment\n\n" + good); err != nil {
		t.Error(err)
	}
	for name, list := range map[string]string{
		"a short sum":    strings.Replace(good, "envtest-v1.2.3/a.tar.gz ", "envtest-v1.2.3/a.tar.gz 0", 1),
		"no programs":    strings.Replace(good, " etcd kube-apiserver kubectl", "", 1),
		"no version":     strings.Replace(good, "envtest-v1.2.3/", "", 1),
		"another letter": strings.Replace(good, "envtest-v1.2.3/a.tar.gz ", "envtest-v1.2.3/a.tar.gz g", 1),
	} {
		if _, err := parsePins(list); err == nil {
			t.Errorf("%s: %q is read", name, list)
		}
	}
}
