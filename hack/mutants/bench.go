package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// testTimeout bounds one run of a test; a change that makes it hang is
	// noticed all the same.
	testTimeout = "120s"
	// killAfter is for test binaries that ignore their own limit.
	killAfter = 150 * time.Second
	// crdFolder, rbacFolder and macosFolder hold files that no compiler sees.
	crdFolder   = "config/crd"
	rbacFolder  = "config/rbac"
	macosFolder = "config/macos"
	// crdVariable and rbacVariable are what hack/testenv reads to take them from
	// elsewhere: a glob, and a folder; macosVariable, a folder, hack/macos reads.
	crdVariable   = "TESTENV_CRDS"
	rbacVariable  = "TESTENV_RBAC"
	macosVariable = "MACOS_CONFIG"
)

var (
	errSurvived    = errors.New("the test stays green with the guard broken")
	errNotCompiled = errors.New("does not compile with the change: a compiler's error proves nothing")
	errBaseline    = errors.New("the test is not green without the change")
)

// bench compiles and runs tests, with and without a change.
type bench struct {
	root    string
	scratch string
	count   atomic.Int64

	mu        sync.Mutex            // guards baselines
	baselines map[string]*baselined // by test
}

type baselined struct {
	once sync.Once
	err  error
}

func newBench(root, scratch string) *bench {
	return &bench{root: root, scratch: scratch, baselines: map[string]*baselined{}}
}

// try breaks one guard. nil: its test went red, and is green without.
func (b *bench) try(ctx context.Context, e entry) error {
	if err := b.baseline(ctx, e); err != nil {
		return err
	}
	dir := filepath.Join(b.scratch, fmt.Sprint(b.count.Add(1)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, env, err := b.change(dir, e)
	if err != nil {
		return err
	}
	binary, err := b.compile(ctx, dir, e.pkg, overlay)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotCompiled, err)
	}
	r, err := b.run(ctx, binary, e, env)
	switch {
	case err != nil:
		return err
	case !r.failed:
		return errSurvived
	}
	return nil
}

// baseline runs the entry's test on the tree as it is, once for each test.
func (b *bench) baseline(ctx context.Context, e entry) error {
	b.mu.Lock()
	known := b.baselines[e.test()]
	if known == nil {
		known = &baselined{}
		b.baselines[e.test()] = known
	}
	b.mu.Unlock()
	known.once.Do(func() { known.err = b.runBaseline(ctx, e) })
	return known.err
}

func (b *bench) runBaseline(ctx context.Context, e entry) error {
	dir := filepath.Join(b.scratch, fmt.Sprint(b.count.Add(1)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := b.compile(ctx, dir, e.pkg, "")
	if err != nil {
		return fmt.Errorf("%w: %w", errBaseline, err)
	}
	r, err := b.run(ctx, binary, e, nil)
	switch {
	case err != nil:
		return err
	case r.failed:
		return fmt.Errorf("%w: %s", errBaseline, r.output)
	case !r.ran:
		return fmt.Errorf("%w: no test ran and passed for %s: %s", errBaseline, e.test(), r.output)
	}
	return nil
}

// change writes the changed file into dir, and says how a compiler (overlay)
// or a test (environment) gets to see it.
func (b *bench) change(dir string, e entry) (overlay string, env []string, err error) {
	text, err := e.mutated(b.root)
	if err != nil {
		return "", nil, err
	}
	switch filepath.ToSlash(filepath.Dir(e.file)) {
	case crdFolder:
		copied, err := b.changeManifest(dir, e, text)
		return "", []string{crdVariable + "=" + filepath.Join(copied, "*.yaml")}, err
	case rbacFolder:
		copied, err := b.changeManifest(dir, e, text)
		return "", []string{rbacVariable + "=" + copied}, err
	case macosFolder:
		copied, err := b.changeManifest(dir, e, text)
		return "", []string{macosVariable + "=" + copied}, err
	}
	changed := filepath.Join(dir, "changed"+filepath.Ext(e.file))
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	replace := map[string]map[string]string{"Replace": {filepath.Join(b.root, e.file): changed}}
	j, err := json.Marshal(replace)
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	// Also for programs that a test builds, such as the engine of the agent's.
	env = []string{strings.TrimSpace("GOFLAGS=" + os.Getenv("GOFLAGS") + " -overlay=" + overlay)}
	return overlay, env, os.WriteFile(overlay, j, 0o600)
}

// changeManifest copies the folder of a manifest or script with that one
// changed: tests read it when they run.
func (b *bench) changeManifest(dir string, e entry, text string) (string, error) {
	copied := filepath.Join(dir, "manifests")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(b.root, filepath.Dir(e.file)))); err != nil {
		return "", err
	}
	return copied, os.WriteFile(filepath.Join(copied, filepath.Base(e.file)), []byte(text), 0o600)
}

func (b *bench) compile(ctx context.Context, dir, pkg, overlay string) (string, error) {
	binary := filepath.Join(dir, "test")
	args := []string{"test", "-c", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = filepath.Join(b.root, pkg) // where it lies: hack has modules of their own
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c %s: %w\n%s", pkg, err, out)
	}
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("go test -c %s: the package has no test", pkg)
	}
	return binary, nil
}

// result is what one run of a test binary showed.
type result struct {
	failed bool
	ran    bool // at least one test passed or failed
	output string
}

func (b *bench) run(ctx context.Context, binary string, e entry, env []string) (result, error) {
	limited, cancel := context.WithTimeout(ctx, killAfter)
	defer cancel()
	args := []string{"-test.v", "-test.timeout=" + testTimeout}
	for _, a := range e.args {
		args = append(args, testFlag(a))
	}
	cmd := exec.CommandContext(limited, binary, args...)
	cmd.Dir = filepath.Join(b.root, e.pkg) // as go test does
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	r := result{output: tail(out.String()), ran: ended().MatchString(out.String())}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil: // we were stopped: that says nothing of the guard
		return r, ctx.Err()
	case err == nil:
		return r, nil
	case errors.As(err, &exit) && exit.ExitCode() != 126 && exit.ExitCode() != 127:
		r.failed = true
		return r, nil
	}
	return r, fmt.Errorf("run the test of %s: %w", e.pkg, err)
}

// ended finds a test that came to its end and was not skipped.
func ended() *regexp.Regexp { return regexp.MustCompile(`(?m)^--- (PASS|FAIL): `) }

// testFlag gives a flag of go test its name in the test binary.
func testFlag(a string) string {
	if name, ok := strings.CutPrefix(a, "-"); ok && !strings.HasPrefix(name, "test.") {
		return "-test." + name
	}
	return a
}

func tail(s string) string {
	const most = 2000
	return s[max(0, len(s)-most):]
}
