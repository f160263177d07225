//go:build !race

package system

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
)

const (
	// patience bounds each wait: much more than a busy machine needs, because a wait
	// costs nothing where things work.
	patience = 3 * time.Minute
	// slowContext is that of slow.gguf: an answer of full length takes seconds.
	slowContext = 4096
	// heavyBytes make the figures of an engine large compared to its own bookkeeping.
	heavyBytes = 64 << 20
)

// root is the folder of the module, whose bin has the programs.
const root = "../.."

// slow is a model whose answers of full length take seconds.
func slow(seed uint64) tinymodel.Config {
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = "slow", seed, slowContext, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	return c
}

// models are the files in the model root of every fleet.
func models() map[string]tinymodel.Config {
	return map[string]tinymodel.Config{"tiny.gguf": tinymodel.Default(), "slow.gguf": slow(2), "heavy.gguf": tinymodel.Large(heavyBytes)}
}

// world is a running fleet.
type world struct {
	*fleet.Fleet
	scratch, models string
	roots           string // file with the certificate of every server of httptest
}

// start starts a fleet. The end of the test stops it and wants nothing left.
func start(t *testing.T, o fleet.Options, files map[string]tinymodel.Config) *world {
	t.Helper()
	w, err := open(t.Context(), o, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		logs := ""
		if t.Failed() {
			logs = strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + "-failed"
		}
		if err := w.close(logs); err != nil {
			t.Error(err)
		}
	})
	return w
}

// open starts a fleet; the caller closes it.
func open(ctx context.Context, o fleet.Options, files map[string]tinymodel.Config) (*world, error) {
	if !testenv.HasControllers() {
		return nil, errors.New("kube-controller-manager is not built, and namespaces cannot end without it: unset KUBEBUILDER_ASSETS and run `make build kube`")
	}
	scratch, err := os.MkdirTemp("", "mf-") // a short path, as sockets are in it
	if err != nil {
		return nil, err
	}
	w := &world{scratch: scratch, models: filepath.Join(scratch, "models"), roots: filepath.Join(scratch, "roots.pem")}
	if err := w.open(ctx, o, files); err != nil {
		return nil, errors.Join(err, os.RemoveAll(scratch))
	}
	return w, nil
}

func (w *world) open(ctx context.Context, o fleet.Options, files map[string]tinymodel.Config) (err error) {
	if err := os.Mkdir(w.models, 0o755); err != nil {
		return err
	}
	for name, config := range files {
		if err := tinymodel.Write(w.file(name), config); err != nil {
			return err
		}
	}
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(w.roots, certificate, 0o644); err != nil {
		return err
	}
	if o.Root, err = filepath.Abs(root); err != nil {
		return err
	}
	o.Dir, o.ModelRoot = filepath.Join(w.scratch, "run"), w.models
	for i, m := range o.Macs {
		o.Macs[i] = w.trusting(m)
	}
	w.Fleet, err = fleet.Start(ctx, o)
	return err
}

// trusting is a Mac that downloads from the servers of tests.
func (w *world) trusting(m fleet.Mac) fleet.Mac {
	m.Env = append([]string{"SSL_CERT_FILE=" + w.roots}, m.Env...)
	m.Flags = append([]string{"--allow-source-cidr=127.0.0.1/32"}, m.Flags...)
	return m
}

// close stops the fleet, keeps the logs in a folder of that name, if it has one,
// and wants nothing left.
func (w *world) close(logs string) error {
	var errs []error
	if logs != "" {
		folder := filepath.Join(root, ".run", logs)
		errs = append(errs, w.KeepLogs(folder), fmt.Errorf("the logs are in %s", folder))
	}
	errs = append(errs, w.Stop(context.Background()))
	if left, err := fleet.Engines(w.Dir()); err != nil || len(left) > 0 {
		errs = append(errs, fmt.Errorf("engines that are left: %v (%w)", left, err))
	}
	if _, err := os.Stat(w.Dir()); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("the run directory is left: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(w.scratch))...)
}

func (w *world) file(name string) string { return filepath.Join(w.models, name) }

// eventually waits until ask returns nil.
func eventually(t *testing.T, what string, ask func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	if err := fleet.Poll(ctx, 20*time.Millisecond, what, ask); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// must fails the test with an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// deploy creates a deployment, of the tiny model if none is named.
func (w *world) deploy(t *testing.T, m fleet.Model, change ...func(*v1alpha1.ModelDeploymentSpec)) *v1alpha1.ModelDeployment {
	t.Helper()
	if m.File == "" {
		m.File = "tiny.gguf"
	}
	if m.DrainSeconds == 0 {
		m.DrainSeconds = 1
	}
	md := m.Deployment()
	for _, c := range change {
		c(&md.Spec)
	}
	must(t, w.Client.Create(t.Context(), md))
	return md
}

func replicas(n int32) func(*v1alpha1.ModelDeploymentSpec) {
	return func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = &n }
}

// remove deletes an object and waits until it is gone.
func (w *world) remove(t *testing.T, o client.Object) {
	t.Helper()
	must(t, w.Client.Delete(t.Context(), o))
	w.waitGone(t, o)
}

func (w *world) waitGone(t *testing.T, o client.Object) time.Duration {
	t.Helper()
	key := client.ObjectKeyFromObject(o)
	return eventually(t, key.String()+" is gone", func(ctx context.Context) error { return w.gone(ctx, o) })
}

// gone is nil once an object does not exist.
func (w *world) gone(ctx context.Context, o client.Object) error {
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("finalizers %v", o.GetFinalizers())
	}
	return err
}

// read reads the deployment again.
func (w *world) read(ctx context.Context, md *v1alpha1.ModelDeployment) (*v1alpha1.ModelDeployment, error) {
	now := &v1alpha1.ModelDeployment{}
	return now, w.Client.Get(ctx, client.ObjectKeyFromObject(md), now)
}

// waitReady waits until that many replicas answer.
func (w *world) waitReady(t *testing.T, md *v1alpha1.ModelDeployment, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas of %s are ready", want, md.Name), func(ctx context.Context) error {
		now, err := w.read(ctx, md)
		if err == nil && (now.Status.ReadyReplicas != want || !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionReady)) {
			err = fmt.Errorf("%d ready; %s", now.Status.ReadyReplicas, sentences(now.Status.Conditions))
		}
		return err
	})
}

// wantCondition waits for a condition with that status and reason and returns
// its message.
func (w *world) wantCondition(t *testing.T, md *v1alpha1.ModelDeployment, kind string, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var message string
	eventually(t, fmt.Sprintf("%s has %s=%s %s", md.Name, kind, status, reason), func(ctx context.Context) error {
		now, err := w.read(ctx, md)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(now.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("conditions: %s", sentences(now.Status.Conditions))
		}
		message = c.Message
		return nil
	})
	return message
}

func sentences(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(out, "; ")
}

// wantWords wants each word in a message that a person reads.
func wantWords(t *testing.T, message string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(message, w) {
			t.Errorf("the message lacks %q: %s", w, message)
		}
	}
}

// wantEvent waits for an Event about an object that has some words.
func (w *world) wantEvent(t *testing.T, kind, name string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("an Event about %s has the words %q", name, words), func(ctx context.Context) error {
		var events corev1.EventList
		if err := w.Client.List(ctx, &events); err != nil {
			return err
		}
		var messages []string
		for _, e := range events.Items {
			if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
				continue
			}
			text, missing := e.Reason+": "+e.Message, 0
			for _, word := range words {
				if !strings.Contains(text, word) {
					missing++
				}
			}
			if missing == 0 {
				return nil
			}
			messages = append(messages, text)
		}
		return fmt.Errorf("they are %q", messages)
	})
}

// replicasOf lists the replicas of a deployment.
func (w *world) replicasOf(ctx context.Context, md *v1alpha1.ModelDeployment) ([]v1alpha1.ModelReplica, error) {
	var list v1alpha1.ModelReplicaList
	err := w.Client.List(ctx, &list, client.InNamespace(md.Namespace), client.MatchingLabels{v1alpha1.LabelDeployment: md.Name})
	return list.Items, err
}

// replicas lists the replicas of a deployment, and wants that many.
func (w *world) replicas(t *testing.T, md *v1alpha1.ModelDeployment, want int) []v1alpha1.ModelReplica {
	t.Helper()
	all, err := w.replicasOf(t.Context(), md)
	if err != nil || len(all) != want {
		t.Fatalf("%d replicas of %s, want %d: %v", len(all), md.Name, want, err)
	}
	return all
}

func (w *world) node(t *testing.T, name string) *v1alpha1.MacNode {
	t.Helper()
	node, err := w.Mac(t.Context(), name)
	must(t, err)
	return node
}

// engineOf is the living engine of a replica, by the pid that its Mac reports.
func (w *world) engineOf(t *testing.T, r v1alpha1.ModelReplica) fleet.Engine {
	t.Helper()
	resident, err := w.ResidentOf(t.Context(), r)
	must(t, err)
	return resident.Engine
}

// footprint is our own reading of an engine's memory.
func footprint(t *testing.T, e fleet.Engine) int64 {
	t.Helper()
	n, err := fleet.Footprint(e.PID)
	must(t, err)
	return n
}

// pids are the engines of a Mac.
func (w *world) pids(t *testing.T, mac string) (out []int) {
	t.Helper()
	engines, err := w.Agent(mac).Engines()
	must(t, err)
	for _, e := range engines {
		out = append(out, e.PID)
	}
	return out
}

// stream begins a long answer and returns once its first text has arrived.
func (w *world) stream(t *testing.T, model string, tokens int) *fleet.Stream {
	t.Helper()
	s, err := w.StartStream(t.Context(), fleet.Question{Model: model, Text: "Write a long story", MaxTokens: tokens})
	must(t, err)
	t.Cleanup(func() { s.Leave(); <-s.Ended })
	return s
}

// end waits for the end of a stream.
func end(t *testing.T, s *fleet.Stream) (fleet.Answer, error) {
	t.Helper()
	select {
	case <-s.Ended:
	case <-time.After(patience):
		t.Fatalf("the stream does not end within %s", patience)
	}
	return s.Answer, s.Err
}

// namespace makes one.
func (w *world) namespace(t *testing.T, name string) *corev1.Namespace {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(t, w.Client.Create(t.Context(), ns))
	return ns
}

// history has every state of the replicas of a namespace that a watch saw.
type history struct {
	mu   sync.Mutex
	seen []v1alpha1.ModelReplica
}

// record watches the replicas of a namespace until the test ends.
func (w *world) record(t *testing.T, namespace string) *history {
	t.Helper()
	watch, err := w.Client.Watch(t.Context(), &v1alpha1.ModelReplicaList{}, client.InNamespace(namespace))
	must(t, err)
	h := &history{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range watch.ResultChan() {
			if r, ok := e.Object.(*v1alpha1.ModelReplica); ok {
				h.mu.Lock()
				h.seen = append(h.seen, *r)
				h.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		watch.Stop()
		wg.Wait()
	})
	return h
}

// want waits until a replica was seen in a state: the watch may be later than what
// the test has read already.
func (h *history) want(t *testing.T, name, what string, state func(v1alpha1.ModelReplica) bool) {
	t.Helper()
	eventually(t, "replica "+name+" was seen "+what, func(context.Context) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, r := range h.seen {
			if r.Name == name && state(r) {
				return nil
			}
		}
		return errors.New("it was not")
	})
}
