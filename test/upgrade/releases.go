package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"

	"metalfleet.dev/metalfleet/test/archive"
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
		{goodVersion, "./cmd/agent", ""}, {"test-exits", "./test/upgrade/broken", "exit"}, {"test-hangs", "./test/upgrade/broken", "hang"},
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
		digest, err := archive.Pack(filepath.Join(dir, b.version+".tar.gz"), map[string]string{"agent": program, "engine": filepath.Join(root, "bin", "engine")})
		if err != nil {
			return nil, err
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
