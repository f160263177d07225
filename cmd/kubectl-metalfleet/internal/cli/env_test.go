package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

var update = flag.Bool("update", false, "write the golden files")

// env is one control plane for all tests of this package; they run in sequence.
var env *testenv.Env

func TestMain(m *testing.M) {
	flag.Parse()
	Quiet()
	os.Exit(func() int {
		e, err := testenv.Start(context.Background(), testenv.Options{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		env = e
		defer func() {
			if err := e.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		return m.Run()
	}())
}

// person is a user of the plugin.
type person struct {
	t *testing.T
	c client.WithWatch
	// now is the plugin's clock; zero is the machine's.
	now time.Time
	// vars are environment variables.
	vars     map[string]string
	in       string
	terminal bool
}

func newPerson(t *testing.T) *person {
	t.Helper()
	c, err := client.NewWithWatch(env.Config(), client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return &person{t: t, c: c, vars: map[string]string{}}
}

// run is one command line; the kubeconfig is added.
func (p *person) run(args ...string) (code int, out, errs string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return p.runIn(ctx, args...)
}

func (p *person) runIn(ctx context.Context, args ...string) (code int, out, errs string) {
	p.t.Helper()
	var o, e lockedBuffer
	code = p.start(ctx, &o, &e, args...)
	return code, o.String(), e.String()
}

func (p *person) start(ctx context.Context, o, e *lockedBuffer, args ...string) int {
	return Main(ctx, append([]string{"--kubeconfig=" + env.Kubeconfig}, args...), p.env(o, e))
}

func (p *person) env(o, e *lockedBuffer) Env {
	return Env{
		In: strings.NewReader(p.in), Out: o, Err: e, Version: "v0.0.0-test", OutTerminal: p.terminal, InTerminal: p.terminal && p.in == "",
		Getenv: func(name string) string { return p.vars[name] },
		Size:   func() (int, int, error) { return 0, 0, errors.New("no terminal") },
		Now: func() time.Time {
			if p.now.IsZero() {
				return time.Now()
			}
			return p.now
		},
	}
}

// wants runs a command line that has to end with a code.
func (p *person) wants(code int, args ...string) (out, errs string) {
	p.t.Helper()
	got, out, errs := p.run(args...)
	if got != code {
		p.t.Fatalf("%q ended with %d, want %d\n%s%s", args, got, code, out, errs)
	}
	return out, errs
}

func (p *person) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// eventually asks until there is no complaint.
func (p *person) eventually(what string, complaint func() error) {
	p.t.Helper()
	limit := patience.Of(p.t)
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := complaint()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			p.t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

// namespace makes one with a name of its own.
func (p *person) namespace(name string) string {
	p.t.Helper()
	p.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return name
}

// make creates an object and deletes it at the end of the test. Namespaces stay:
// no controller deletes their content here.
func (p *person) make(o client.Object) {
	p.t.Helper()
	ctx := context.Background()
	status := o.DeepCopyObject().(client.Object)
	err := p.c.Create(ctx, o)
	if _, is := o.(*corev1.Namespace); is {
		p.must(client.IgnoreAlreadyExists(err))
		return
	}
	p.must(err)
	p.t.Cleanup(func() { p.must(client.IgnoreNotFound(p.c.Delete(ctx, o))) })
	status.SetResourceVersion(o.GetResourceVersion())
	status.SetUID(o.GetUID())
	p.must(p.c.Status().Update(ctx, status))
}

// lockedBuffer may be read while a command writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var stamp = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// golden compares an output with testdata/NAME.golden. Times differ in each run
// and are set to one.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = stamp.ReplaceAllString(got, "2026-11-22T12:00:00Z")
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

var suffix = regexp.MustCompile(`writer-[0-9a-f]{8}`)

// replicaName levels the names of replicas that are made of a new UID.
func replicaName(out string) string {
	names := map[string]string{}
	return suffix.ReplaceAllStringFunc(out, func(name string) string {
		if names[name] == "" {
			names[name] = fmt.Sprintf("writer-%08x", len(names)+1)
		}
		return names[name]
	})
}

func contains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s does not contain %q:\n%s", what, p, got)
		}
	}
}
