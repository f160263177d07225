package system

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// option changes a deployment before it is created.
type option func(*v1alpha1.ModelDeployment)

func source(file string) option {
	return func(md *v1alpha1.ModelDeployment) { md.Spec.Model.Source = "file://" + file }
}

func replicas(n int32) option {
	return func(md *v1alpha1.ModelDeployment) { md.Spec.Replicas = &n }
}

func tokens(n int64) option {
	return func(md *v1alpha1.ModelDeployment) { md.Spec.Context.Tokens = n }
}

func chips(names ...string) option {
	return func(md *v1alpha1.ModelDeployment) { md.Spec.Placement.Chips = names }
}

// deploy creates a deployment of the tiny model, or of what the options say.
func (s *suite) deploy(t *testing.T, namespace, name string, options ...option) *v1alpha1.ModelDeployment {
	t.Helper()
	drain := int32(1)
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ModelDeploymentSpec{
			Model:   v1alpha1.ModelSource{Source: "file://tiny.gguf"},
			Context: v1alpha1.ContextSpec{Tokens: 256, Sequences: 2},
			Rollout: v1alpha1.RolloutSpec{DrainSeconds: &drain},
		},
	}
	for _, o := range options {
		o(md)
	}
	if err := s.Client.Create(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	return md
}

// remove deletes a deployment and waits until it is gone.
func (s *suite) remove(t *testing.T, md *v1alpha1.ModelDeployment) {
	t.Helper()
	if err := s.Client.Delete(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	s.waitGone(t, md)
}

func (s *suite) waitGone(t *testing.T, o client.Object) {
	t.Helper()
	key := client.ObjectKeyFromObject(o)
	eventually(t, key.String()+" is gone", patience, func(ctx context.Context) error {
		err := s.Client.Get(ctx, key, o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("finalizers %v", o.GetFinalizers())
		}
		return err
	})
}

func (s *suite) get(ctx context.Context, namespace, name string) (*v1alpha1.ModelDeployment, error) {
	md := &v1alpha1.ModelDeployment{}
	return md, s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, md)
}

// waitReady waits until so many replicas answer.
func (s *suite) waitReady(t *testing.T, namespace, name string, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas of %s are ready", want, name), patience, func(ctx context.Context) error {
		md, err := s.get(ctx, namespace, name)
		if err != nil {
			return err
		}
		if md.Status.ReadyReplicas != want || !meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("%d ready; %s", md.Status.ReadyReplicas, sentences(md.Status.Conditions))
		}
		return nil
	})
}

// wantCondition waits for a condition with that status and reason and returns
// its message.
func (s *suite) wantCondition(t *testing.T, md *v1alpha1.ModelDeployment, kind string, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var message string
	eventually(t, fmt.Sprintf("%s has %s=%s %s", md.Name, kind, status, reason), patience, func(ctx context.Context) error {
		now, err := s.get(ctx, md.Namespace, md.Name)
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
			t.Errorf("the message does not say %q: %s", w, message)
		}
	}
}

// replicasOf lists the replicas of a deployment.
func (s *suite) replicasOf(t *testing.T, namespace, name string) []v1alpha1.ModelReplica {
	t.Helper()
	var list v1alpha1.ModelReplicaList
	err := s.Client.List(t.Context(), &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelDeployment: name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (s *suite) mac(t *testing.T, name string) *v1alpha1.MacNode {
	t.Helper()
	mac := &v1alpha1.MacNode{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: name}, mac); err != nil {
		t.Fatal(err)
	}
	return mac
}

// engineOf is the living engine of a replica, by the pid that its Mac reports.
func (s *suite) engineOf(t *testing.T, r v1alpha1.ModelReplica) fleet.Engine {
	t.Helper()
	engines, err := s.MacEngines(r.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range s.mac(t, r.Spec.NodeName).Status.Assignments {
		for _, e := range engines {
			if a.ReplicaUID == string(r.UID) && a.PID == int64(e.PID) {
				return e
			}
		}
	}
	t.Fatalf("Mac %s reports no living engine for %s (engines %v)", r.Spec.NodeName, r.Name, engines)
	return fleet.Engine{}
}

// history is every state of the replicas of a namespace, as a watch saw them.
type history struct {
	mu   sync.Mutex
	seen []v1alpha1.ModelReplica
}

// record begins to watch the replicas of a namespace until the test ends.
func (s *suite) record(t *testing.T, namespace string) *history {
	t.Helper()
	w, err := s.Client.Watch(t.Context(), &v1alpha1.ModelReplicaList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	h := &history{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range w.ResultChan() {
			if r, ok := e.Object.(*v1alpha1.ModelReplica); ok {
				h.mu.Lock()
				h.seen = append(h.seen, *r)
				h.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		w.Stop()
		wg.Wait()
	})
	return h
}

// any says whether the replica of that name was ever seen so.
func (h *history) any(name string, so func(v1alpha1.ModelReplica) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.seen {
		if r.Name == name && so(r) {
			return true
		}
	}
	return false
}

// wait wants the replica of that name to have been seen so. The watch may be a
// moment behind what the test has read already.
func (h *history) wait(t *testing.T, name, what string, so func(v1alpha1.ModelReplica) bool) {
	t.Helper()
	eventually(t, "replica "+name+" was seen "+what, patience, func(context.Context) error {
		if !h.any(name, so) {
			return errors.New("it was not")
		}
		return nil
	})
}

// namespace makes one for a test.
func (s *suite) namespace(t *testing.T, name string) *corev1.Namespace {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := s.Client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns
}
