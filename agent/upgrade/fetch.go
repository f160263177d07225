package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of an archive. An engine with its GPU libraries is some 300 MB.
const (
	maxArchive  = 2 << 30
	maxUnpacked = 4 << 30
	maxFiles    = 4096
)

// askLimit bounds the question for a program's version; a Mac looks at a
// program for some seconds before it runs it for the first time.
const askLimit = 30 * time.Second

// fetch downloads the build of an order into its folder and verifies it.
func (u *Upgrader) fetch(ctx context.Context, o *v1alpha1.AgentOrder) error {
	if err := os.MkdirAll(u.Folder.versions(), 0o700); err != nil {
		return fmt.Errorf("create folder of upgrades: %w", err)
	}
	s, err := u.Folder.Load()
	if err != nil {
		return err
	}
	if s.Current != nil && s.Current.SHA256 == o.SHA256 {
		return fmt.Errorf("that archive is the running one, which has version %s and not %s", s.Current.Version, o.Version)
	}
	if err := errors.Join(older(u.Version, o), u.signed(ctx, o)); err != nil {
		return err
	}
	if err := u.Prune(); err != nil {
		return err
	}
	root, err := os.OpenRoot(u.Folder.dir)
	if err != nil {
		return fmt.Errorf("open folder of upgrades: %w", err)
	}
	defer root.Close()
	bytes, err := u.size(ctx, o.Source)
	if err != nil {
		return err
	}
	t := download.Target{URL: o.Source, Bytes: bytes, SHA256: o.SHA256, Root: root, Name: "archive"}
	err = (&download.Fetcher{Client: u.Client}).Fetch(ctx, t, nil)
	var typed *download.Error
	if errors.As(err, &typed) && typed.Reason == v1alpha1.ReasonDigestMismatch {
		return fmt.Errorf("the archive at that URL does not have the SHA-256 %s", o.SHA256)
	}
	if err != nil {
		return err
	}
	defer root.Remove("archive") //nolint:errcheck // the next one is written over it
	unpacked := u.Folder.of(o.SHA256)
	if err := unpackFile(root, "archive", unpacked); err != nil {
		return errors.Join(err, os.RemoveAll(unpacked))
	}
	if err := verify(ctx, unpacked, o.Version); err != nil {
		return errors.Join(err, os.RemoveAll(unpacked))
	}
	return syncDir(u.Folder.versions())
}

// size returns the length of the archive, which bounds the download.
func (u *Upgrader) size(ctx context.Context, source string) (int64, error) {
	resp, err := u.Client.Get(ctx, source, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n := resp.ContentLength
	if resp.StatusCode == http.StatusPartialContent {
		r, err := download.ParseContentRange(resp.Header.Get("Content-Range"))
		if err != nil {
			return 0, err
		}
		n = r.Total
	}
	if n < 1 || n > maxArchive {
		return 0, fmt.Errorf("the archive has %d bytes, want 1 to %d; its server must report the size", n, int64(maxArchive))
	}
	return n, nil
}

func unpackFile(root *os.Root, name, to string) error {
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}
	defer f.Close()
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove an earlier download: %w", err)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("create folder of a build: %w", err)
	}
	into, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("open folder of a build: %w", err)
	}
	defer into.Close()
	return unpack(f, into)
}

// unpack writes an archive's files into a folder, which os.Root lets no name
// escape. Everything except plain files and folders is refused: links could lead
// outside.
func unpack(archive io.Reader, into *os.Root) error {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("the archive is not a .tar.gz: %w", err)
	}
	left := int64(maxUnpacked)
	files := tar.NewReader(z)
	for n := 0; ; n++ {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := filepath.Clean(h.Name)
		if n >= maxFiles {
			return fmt.Errorf("the archive contains more than %d files", maxFiles)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = into.MkdirAll(name, 0o700)
		case tar.TypeReg:
			if left -= h.Size; left < 0 {
				return fmt.Errorf("the archive contains more than %d bytes", int64(maxUnpacked))
			}
			err = writeFile(into, name, h, files)
		default:
			return fmt.Errorf("the archive contains %.64q, which is not a regular file", h.Name)
		}
		if err != nil {
			return fmt.Errorf("unpack %.64q: %w", h.Name, err)
		}
	}
}

func writeFile(into *os.Root, name string, h *tar.Header, from io.Reader) error {
	mode := os.FileMode(0o600)
	if h.Mode&0o100 != 0 {
		mode = 0o700
	}
	if err := into.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := into.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}

// verify checks a build without running an agent: both programs are for this
// machine, and the agent reports the expected version.
func verify(ctx context.Context, dir, version string) error {
	for _, name := range []string{"agent", "engine"} {
		if err := fits(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "agent"), "--version")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	var out bytes.Buffer
	cmd.Stdout = &limited{to: &out, left: 256}
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("`agent --version` of the archive failed: %w", err)
	}
	if got := strings.TrimSpace(out.String()); got != "agent "+version {
		return fmt.Errorf("the archive contains %.80q, want %q", got, "agent "+version)
	}
	return nil
}

// fits reports whether a program was built for this machine.
func fits(path string) error {
	name := filepath.Base(path)
	if s, err := os.Stat(path); err != nil || !s.Mode().IsRegular() || s.Mode()&0o100 == 0 {
		return fmt.Errorf("the archive has no program %q in its top folder", name)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s in the archive is not a metalfleet program: %w", name, err)
	}
	built := map[string]string{}
	for _, s := range info.Settings {
		built[s.Key] = s.Value
	}
	if built["GOOS"] != runtime.GOOS || built["GOARCH"] != runtime.GOARCH {
		return fmt.Errorf("%s in the archive is for %s/%s, but this machine is %s/%s", name, built["GOOS"], built["GOARCH"], runtime.GOOS, runtime.GOARCH)
	}
	return nil
}

// limited keeps the first bytes and drops the rest.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.to.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
