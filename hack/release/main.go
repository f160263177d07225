// Command release builds the files of a release, and checks them.
//
// It owns the contents of each archive, the licences that may be linked into a program, and
// reproducibility: the same commit, version and Go give the same bytes. It rejects a tree
// with changes for a named version, a module with an unknown or incompatible licence, and
// an output folder that holds other files. It publishes nothing.
//
//	go run ./hack/release [-version v0.1.0] [-key KEY] [-out dist]             (make release)
//	go run ./hack/release -check [-helm HELM] [-public-keys KEYS] [-out dist]  (make test-release)
//
// Start reading at release.make and artefacts, then check.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	version := f.String("version", "", "the `version`, such as v0.1.0; without it one is made of the commit")
	out := f.String("out", "dist", "`folder` that gets the files")
	home := f.String("home", "https://metalfleet.dev", "`URL` of the project, for krew")
	archives := f.String("archives", "", "`URL` of the folder where archives will lie, for krew; default: releases/VERSION below -home")
	checking := f.Bool("check", false, "check what lies in -out, and make nothing")
	key := f.String("key", "", "PEM `file` with the ECDSA P-256 private key that signs every file; without it nothing is signed")
	public := f.String("public-keys", "", "with -check: PEM `file` with the public keys of which one has to have signed every file")
	helm := f.String("helm", "", "with -check: Helm's `program`, which lints and renders the chart")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	if *checking {
		return check(ctx, root, *out, *helm, *public)
	}
	r := &release{root: root, key: *key, out: *out, home: *home, archives: *archives, bin: filepath.Join(root, "bin", "release")}
	if err := r.name(ctx, *version); err != nil {
		return err
	}
	return r.make(ctx)
}

// release is one version of all files.
type release struct {
	root, out, bin string
	home, archives string
	key            string // file of the signing key; empty: none
	version        string
	commit         string
	when           time.Time // time of the commit and of every file
}

// versions may also be tags of images and, without the v, versions of a chart.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// name determines commit and version. A tree with changes has no release version.
func (r *release) name(ctx context.Context, version string) error {
	head, err := output(ctx, r.root, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return fmt.Errorf("a release is made of a commit: %w", err)
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(head), " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("time of commit %s: %w", commit, err)
	}
	changes, err := output(ctx, r.root, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	r.commit, r.when = commit, time.Unix(unix, 0).UTC()
	r.version, err = versionOf(version, commit, changes)
	if r.archives == "" {
		r.archives = r.home + "/releases/" + r.version
	}
	return err
}

func versionOf(asked, commit, changes string) (string, error) {
	switch {
	case asked == "" && changes == "":
		return "v0.0.0-dev.g" + commit[:12], nil
	case asked == "":
		return "v0.0.0-dev.g" + commit[:12] + ".changed", nil
	case !versions.MatchString(asked):
		return "", fmt.Errorf("%q is no version of a release; write vX.Y.Z, such as v0.1.0 or v0.2.0-rc.1", asked)
	case changes != "":
		return "", fmt.Errorf("%s would not be what commit %s holds; commit or stash these first:\n%s", asked, commit[:12], changes)
	}
	return asked, nil
}

// output runs a program in a folder, with additional variables, and returns its output.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var fault strings.Builder
	c.Stderr = &fault
	b, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(fault.String()))
	}
	return string(b), nil
}

// clear empties the folder, unless it holds files that are not a release's.
func clear(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(files) == 0 {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, sums)); err != nil {
		return fmt.Errorf("%s holds files and no %s: it is no release, so it is not cleared; name another folder with -out", dir, sums)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
