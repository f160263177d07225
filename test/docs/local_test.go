//go:build !race

package docs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	pages "metalfleet.dev/metalfleet/docs"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// gateway is where pages find it.
const gateway = "127.0.0.1:8080"

// weights is the file that pages serve; here a small random model has its name.
const weights = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

// foreign kinds are of programs that are not installed here.
var foreign = []string{"ScaledObject"}

// world is what pages run against.
type world struct {
	fleet        *fleet.Fleet
	root, models string
	kubectl      string
	env          []string
}

// TestPages runs every page.
func TestPages(t *testing.T) {
	w := start(t)
	for _, d := range documents(t) {
		t.Run(strings.ReplaceAll(d.path, "/", "_"), func(t *testing.T) { w.play(t, d) })
	}
}

func start(t *testing.T) *world {
	t.Helper()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{root: abs, models: filepath.Join(t.TempDir(), "models")}
	file := filepath.Join(w.models, weights)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	c := tinymodel.Default()
	c.Context, c.Endless = 8192, true
	if err := tinymodel.Write(file, c); err != nil {
		t.Fatal(err)
	}
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	w.kubectl = filepath.Join(assets, "kubectl")
	w.fleet, err = fleet.Start(t.Context(), fleet.Options{
		Root: abs, Dir: filepath.Join(t.TempDir(), "fleet"), ModelRoot: w.models,
		Macs: []fleet.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}, {Name: "macbook", Chip: "M4Max", Memory: "64Gi"}, {Name: "mini", Chip: "M4", Memory: "24Gi"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			err = errors.Join(err, w.fleet.KeepLogs(filepath.Join(abs, ".run", "docs-failed")))
		}
		if err := errors.Join(err, w.fleet.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
	home := t.TempDir()
	w.env = append(os.Environ(), "PATH="+filepath.Join(abs, "bin")+":"+assets+":"+os.Getenv("PATH"), "KUBECONFIG="+w.fleet.Kubeconfig(),
		"KUBECACHEDIR="+filepath.Join(home, "kube"), "HOME="+home)
	return w
}

// play runs the blocks of one page, in a folder of its own.
func (w *world) play(t *testing.T, d document) {
	dir := w.folder(t)
	said := ""
	for _, b := range d.blocks {
		switch _, background := b.Marks["background"]; {
		case b.Language == "yaml":
			w.manifest(t, d, b, dir)
		case b.Language == "text":
			if _, output := b.Marks["output"]; output {
				compare(t, d, b, said)
			}
		case b.Language != "sh" || b.Marks["test"] != "local":
		case background:
			w.background(t, b, dir)
		default:
			var err error
			if said, err = w.run(t, b.Text, dir); err != nil {
				t.Errorf("%s:%d: %v\n%s", d.path, b.Line, err, said)
				return // what follows depends on it
			}
		}
	}
}

// folder is as a checkout in which the quickstart ran.
func (w *world) folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"config": filepath.Join(w.root, "config"), "charts": filepath.Join(w.root, "charts"), "bin": filepath.Join(w.root, "bin"), ".cache/models": w.models} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// command is a block as a user runs it, but for the gateway's port.
func (w *world) command(ctx context.Context, text, dir string) *exec.Cmd {
	text = strings.ReplaceAll(text, gateway, strings.TrimPrefix(w.fleet.URL, "http://"))
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = dir, w.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (w *world) run(t *testing.T, text, dir string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*patience.Of(t), errors.New("it takes too long"))
	defer cancel()
	out, err := w.command(ctx, text, dir).CombinedOutput()
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return string(out), err
}

// background runs a block until its page ends; engines of an agent outlive it.
func (w *world) background(t *testing.T, b pages.Block, dir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := w.command(ctx, b.Text, dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was asked to end
		if err := fleet.Sweep(context.Background(), dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("in the background:\n%s", out.String())
		}
	})
}

// manifest has the API server judge the objects of a block, and keeps the file
// that later blocks name.
func (w *world) manifest(t *testing.T, d document, b pages.Block, dir string) {
	t.Helper()
	if name := b.Marks["file"]; name != "" {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.Text), 0o644); err != nil {
			t.Fatal(err)
		}
		if name == "values.yaml" {
			return // of the chart: TestFieldsAndValuesExist
		}
	}
	var object struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(b.Text), &object); err != nil || object.APIVersion == "" || object.Kind == "" {
		t.Errorf("%s:%d: a YAML block that is no object of Kubernetes: %v", d.path, b.Line, err)
		return
	}
	if slices.Contains(foreign, object.Kind) {
		return
	}
	cmd := exec.CommandContext(t.Context(), w.kubectl, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
	cmd.Env, cmd.Stdin = w.env, strings.NewReader(b.Text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s:%d: the API server refuses it: %v: %s", d.path, b.Line, err, out)
	}
}

// compare wants the first line of shown output, and every line of column titles,
// among what the block before it printed, but for the spacing.
func compare(t *testing.T, d document, b pages.Block, said string) {
	t.Helper()
	printed := map[string]bool{}
	for line := range strings.Lines(said) {
		printed[strings.Join(strings.Fields(line), " ")] = true
	}
	n := 0
	for line := range strings.Lines(b.Text) {
		line = strings.Join(strings.Fields(line), " ")
		n++
		if title := line != "" && line == strings.ToUpper(line); (n == 1 || title) && !printed[line] {
			t.Errorf("%s:%d: the page shows %q, which the command did not print:\n%s", d.path, b.Line, line, said)
		}
	}
}

// TestABlockThatFailsIsFound: exit codes count, also in the middle.
func TestABlockThatFailsIsFound(t *testing.T) {
	w := &world{fleet: &fleet.Fleet{URL: "http://127.0.0.1:9"}, env: os.Environ()}
	for text, want := range map[string]bool{"true": true, "false\ntrue": false, "false | true": false, "echo $undefined": false, "echo " + gateway + " | grep -q :9": true} {
		out, err := w.run(t, text, t.TempDir())
		if (err == nil) != want {
			t.Errorf("%q: %v %s", text, err, out)
		}
	}
}
