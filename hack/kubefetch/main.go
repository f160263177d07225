// Command kubefetch puts released programs of a Kubernetes control plane (etcd,
// kube-apiserver, kubectl) into a folder, so that a first run does not compile
// them for ten minutes:
//
//	kubefetch -out bin/kube etcd kube-apiserver kubectl
//
// The archives are those that the controller-tools project publishes for tests of
// controllers. pins.txt names one for each platform with its SHA-512, as the
// project's envtest-releases.yaml lists it; nothing else is ever unpacked.
// KUBE_MIRROR replaces the address in front of an archive's name, and
// KUBE_MIRROR=none turns fetching off.
//
// It owns fetching, checking and unpacking. What happens where an archive cannot
// be had is its caller's decision: it exits with 1 after one line that names the
// reason, and hack/kube.sh compiles. Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// releases is where the archives are published.
const releases = "https://github.com/kubernetes-sigs/controller-tools/releases/download"

// mirrorVariable replaces releases.
const mirrorVariable = "KUBE_MIRROR"

// marker is a file next to the programs that names the archive they are from.
const marker = "released"

func main() {
	out := flag.String("out", "", "folder of the programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f := fetcher{pins: pins, mirror: os.Getenv(mirrorVariable), platform: runtime.GOOS + "/" + runtime.GOARCH, out: *out, limits: usual, report: func(line string) { fmt.Println("kube: " + line) }}
	if err := f.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

// fetcher fetches for one folder.
type fetcher struct {
	pins     string
	mirror   string // empty for the place of publication
	platform string
	out      string
	limits   limits
	report   func(line string)
}

// run puts the programs into the folder unless they are there. An error leaves
// the folder as it was.
func (f fetcher) run(ctx context.Context, programs []string) error {
	if f.out == "" || len(programs) == 0 {
		return errors.New("usage: kubefetch -out FOLDER PROGRAM [PROGRAM]")
	}
	if f.mirror == "none" {
		return errors.New("KUBE_MIRROR=none: released programs are not fetched")
	}
	pin, err := pinFor(f.pins, f.platform, programs)
	if err != nil {
		return err
	}
	if present(f.out, pin) {
		f.report(pin.version + ", as released, is in " + f.out)
		return nil
	}
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(f.out, ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	began := time.Now()
	base := releases
	if f.mirror != "" {
		base = strings.TrimRight(f.mirror, "/")
	}
	archive := filepath.Join(work, "archive")
	d := download{url: base + "/" + pin.archive, to: archive, limits: f.limits, report: f.report}
	if err := d.run(ctx); err != nil {
		return err
	}
	if err := check(archive, pin.sha512); err != nil {
		return fmt.Errorf("%s: %w; the file is deleted", d.url, err)
	}
	if err := unpack(archive, work, pin.programs); err != nil {
		return fmt.Errorf("%s: %w", d.url, err)
	}
	if err := try(ctx, work, pin.programs); err != nil {
		return err
	}
	if err := install(work, f.out, pin); err != nil {
		return err
	}
	f.report(fmt.Sprintf("%s (%s), as released, in %s after %d s", pin.version, strings.Join(pin.programs, ", "), f.out, int(time.Since(began).Seconds())))
	return nil
}

// present reports whether the folder holds the programs of a pin.
func present(dir string, p pin) bool {
	mark, err := os.ReadFile(filepath.Join(dir, marker))
	return err == nil && strings.TrimSpace(string(mark)) == p.sha512 && !slices.ContainsFunc(p.programs, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || !info.Mode().IsRegular()
	})
}

// install moves the programs to their place. The marker is written last, so that
// an interrupted run starts over.
func install(from, to string, p pin) error {
	if err := os.Remove(filepath.Join(to, marker)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range p.programs {
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, marker), []byte(p.sha512+"\n"), 0o644)
}
