package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
)

// releases are archives behind https, as an administrator publishes them.
type releases struct {
	server *httptest.Server
	// roots is a file with the certificate of the server.
	roots   string
	digests map[string]string
}

// goodVersion is the build that works. None of the versions is a number, so
// that they may be compared with no operator's.
const goodVersion = "test-good"

// newReleases builds the agents and serves their archives.
func newReleases(ctx context.Context, root, scratch string) (*releases, error) {
	dir := filepath.Join(scratch, "releases")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("releases: %w", err)
	}
	r := &releases{digests: map[string]string{}}
	for _, b := range []struct{ version, pkg, mode string }{
		{goodVersion, "./cmd/agent", ""}, {"test-exits", "./hack/upgrade/broken", "exit"}, {"test-hangs", "./hack/upgrade/broken", "hang"},
	} {
		program := filepath.Join(scratch, "agent-"+b.version)
		flags := "-X main.version=" + b.version
		if b.mode != "" {
			flags += " -X main.mode=" + b.mode
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", flags, "-o", program, b.pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", b.version, err, out)
		}
		digest, err := pack(filepath.Join(dir, b.version+".tar.gz"), map[string]string{"agent": program, "engine": filepath.Join(root, "bin", "engine")})
		if err != nil {
			return nil, fmt.Errorf("archive %s: %w", b.version, err)
		}
		r.digests[b.version] = digest
	}
	r.server = httptest.NewTLSServer(http.FileServer(http.Dir(dir)))
	r.roots = filepath.Join(scratch, "roots.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	if err := os.WriteFile(r.roots, cert, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("certificate: %w", err), r.close())
	}
	return r, nil
}

func (r *releases) close() error {
	r.server.Close()
	return nil
}

func (r *releases) url(version string) string { return r.server.URL + "/" + version + ".tar.gz" }

// pack writes programs into an archive, and returns its digest.
func pack(to string, programs map[string]string) (digest string, err error) {
	f, err := os.Create(to)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	z := gzip.NewWriter(io.MultiWriter(f, sum))
	w := tar.NewWriter(z)
	for name, path := range programs {
		if err = add(w, name, path); err != nil {
			break
		}
	}
	err = errors.Join(err, w.Close(), z.Close(), f.Close())
	return hex.EncodeToString(sum.Sum(nil)), err
}

func add(w *tar.Writer, name, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(b))}); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
