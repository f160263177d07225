//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/docs"
	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/sandbox"
)

// settle has TestRolling wait until the old root of the authority is trusted no
// more, which is when the last of its certificates has expired: ten minutes.
var settle = flag.Bool("settle", false, "wait until the rotation of the authority has settled")

const (
	namespace = "metalfleet-system"
	team      = "apps" // where the user works
	model     = "assistant"
	baseURL   = "http://metalfleet-gateway." + namespace + ".svc/v1"
)

// w is the cluster of all tests.
var w *world

// world is a cluster with a hub and Macs.
type world struct {
	root, dir string
	cluster   *cluster.Cluster
	hub       *hub
	macs      []*mac
	pods      int // so far
}

// TestMain runs the program again inside a sandbox, and there starts the cluster.
func TestMain(m *testing.M) {
	sandbox.Init()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	w = &world{root: root, dir: filepath.Join(root, ".cache", "e2e", "run")}
	if !sandbox.Inside() {
		if err := w.outside(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
		return
	}
	code := 1
	if err = w.start(ctx); err == nil {
		if code = m.Run(); code != 0 {
			w.evidence()
		}
	}
	if err = errors.Join(err, w.end()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// outside writes the images and another build of the agent, and enters the sandbox.
func (w *world) outside(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: namespaces, mounts and control groups of its own")
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return err
	}
	if err := w.writeImages(ctx); err != nil {
		return err
	}
	next := exec.CommandContext(ctx, "go", "build", "-ldflags", "-X main.version="+nextVersion, "-o", w.nextAgent(), "./cmd/agent")
	next.Dir = w.root
	if out, err := next.CombinedOutput(); err != nil {
		return fmt.Errorf("build another agent: %w: %s", err, out)
	}
	return cluster.Sandbox(ctx, w.dir, os.Stdout)
}

func (w *world) start(ctx context.Context) error {
	began := time.Now()
	var err error
	w.cluster, err = cluster.Start(ctx, cluster.Options{
		Bin: filepath.Join(w.root, "bin", "kube"), Dir: filepath.Join(w.dir, "kube"), Images: w.archives(),
		Say: func(step string) { fmt.Printf("%6.1f s  %s\n", time.Since(began).Seconds(), step) },
	})
	if err != nil {
		return err
	}
	w.hub, err = w.openHub()
	return err
}

// end stops Macs and cluster.
func (w *world) end() error {
	var errs []error
	for _, m := range w.macs {
		errs = append(errs, m.end())
	}
	if w.hub != nil {
		errs = append(errs, w.hub.server.Close())
	}
	if w.cluster != nil {
		errs = append(errs, w.cluster.Stop())
	}
	return errors.Join(errs...)
}

// evidence is what to look at after a failure.
func (w *world) evidence() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "pods,mdep,mr,mac", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"}, {"-n", namespace, "logs", "-l", "app.kubernetes.io/name=metalfleet", "--tail=30", "--prefix"}} {
		out, err := w.cluster.Kubectl(ctx, args...)
		fmt.Printf("--- kubectl %s (%v)\n%s\n", strings.Join(args, " "), err, out)
	}
	fmt.Println("the logs are in", w.dir)
}

// must fails the test with an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// step is a part of a story that begins where the one before ended.
type step struct {
	name string
	do   func(*testing.T)
}

// sequence runs steps as subtests, to the first that fails.
func sequence(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		if !t.Run(s.name, s.do) {
			t.FailNow()
		}
	}
}

// until waits until ask returns nil.
func until(t *testing.T, most time.Duration, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), most, fmt.Errorf("not within %s", most))
	defer cancel()
	must(t, fleet.Poll(ctx, 200*time.Millisecond, what, ask))
}

// kubectl runs it as an administrator and returns what it printed.
func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

// apply applies a manifest.
func (w *world) apply(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(w.dir, name)
	must(t, os.WriteFile(file, []byte(text), 0o644))
	w.kubectl(t, "apply", "-f", file)
}

// helm runs Helm, and returns what it printed.
func (w *world) helm(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(w.root, "bin", "kube", "helm"), append(args, "--namespace", namespace, "--kubeconfig", w.cluster.Kubeconfig)...)
	home := filepath.Join(w.dir, "helm")
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	b, err := cmd.CombinedOutput()
	if err != nil {
		return string(b), fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(string(b)))
	}
	return string(b), nil
}

// documented runs a block of commands of a page as a user who copies it: in a folder
// with the chart and a file values.yaml, with the images of this build. verbose adds a
// value of each program, so that an upgrade replaces both.
//
// The lifetimes are the shortest that the operator accepts: TestRolling waits for them.
func (w *world) documented(t *testing.T, page, id string, verbose bool) string {
	t.Helper()
	script, err := docs.Script(page, id)
	must(t, err)
	dir := filepath.Join(w.dir, "documented")
	must(t, os.MkdirAll(dir, 0o755))
	if err := os.Symlink(filepath.Join(w.root, "charts"), filepath.Join(dir, "charts")); !errors.Is(err, os.ErrExist) {
		must(t, err)
	}
	values, err := json.Marshal(map[string]any{
		"image":    map[string]any{"pullPolicy": "Never"},
		"gateway":  map[string]any{"drainSeconds": 30, "verbose": verbose},
		"tenants":  map[string]any{"namespaces": map[string]any{team: map[string]any{"names": []string{model}}}},
		"operator": map[string]any{"certificateLife": "10m", "authoritySpread": "10s", "verbose": verbose},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "values.yaml"), values, 0o644))
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	bin, home := filepath.Join(w.root, "bin"), filepath.Join(w.dir, "helm")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(bin, "kube")+":"+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+w.cluster.Kubeconfig,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "REGISTRY="+registry, "TAG="+tag)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the block %s of docs/%s: %v: %s", id, page, err, out)
	}
	return string(out)
}

// plugin runs the kubectl plugin, and returns what it printed.
func (w *world) plugin(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(w.root, "bin", "kubectl-metalfleet"), append(args, "--kubeconfig="+w.cluster.Kubeconfig)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl metalfleet %s: %w: %s", args[0], err, complaint.String())
	}
	return string(out), nil
}
