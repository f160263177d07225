package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// slowClock advances by a fixed time each time that it is read.
type slowClock struct {
	step time.Duration

	mu  sync.Mutex // guards now
	now time.Time
}

func (c *slowClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.step)
	return c.now
}

func (c *slowClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// crowd is a cache, and an API server that applies what placement writes.
type crowd struct {
	client.Client
	macs []v1alpha1.MacNode

	mu       sync.Mutex // guards what follows
	replicas []v1alpha1.ModelReplica
	bound    []string
	reported map[string]int
}

func (c *crowd) List(_ context.Context, l client.ObjectList, o ...client.ListOption) error {
	switch l := l.(type) {
	case *v1alpha1.MacNodeList:
		if !(&client.ListOptions{}).ApplyOptions(o).DisableReadYourWritesConsistency {
			return errors.New("the List waits for a write of a MacNode")
		}
		l.Items = c.macs
	case *v1alpha1.ModelReplicaList:
		c.mu.Lock()
		defer c.mu.Unlock()
		l.Items = slices.Clone(c.replicas)
	}
	return nil
}

func (c *crowd) Get(_ context.Context, k client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, k.Name)
}

func (c *crowd) Apply(_ context.Context, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := o.(*ac.ModelReplicaApplyConfiguration)
	for i := range c.replicas {
		if c.replicas[i].Name == *r.Name {
			c.replicas[i].Spec.NodeName = *r.Spec.NodeName
			c.bound = append(c.bound, *r.Name)
		}
	}
	return nil
}

func (c *crowd) Create(context.Context, client.Object, ...client.CreateOption) error { return nil }

func (c *crowd) Status() client.SubResourceWriter { return crowdStatus{c: c} }

type crowdStatus struct {
	client.SubResourceWriter
	c *crowd
}

func (s crowdStatus) Apply(_ context.Context, o runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.reported[*o.(*ac.ModelReplicaApplyConfiguration).Name]++
	return nil
}

func (c *crowd) add(namespace, name string, bytes int64, age time.Duration, priority int32) {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(time.Unix(1_800_000_000, 0).Add(-age))}}
	r.Spec.DeploymentRef.UID, r.Spec.ReservedBytes, r.Spec.Priority.Value = name, bytes, priority
	r.Spec.Model = model.Record{Source: "https://host/m.gguf", Digest: "sha256:d", VouchedBy: []string{"x", "y"}}
	c.replicas = append(c.replicas, r)
}

const gib = int64(1) << 30

// crowded returns a Mac of 64 GiB and 1,000 replicas of one namespace that it cannot hold.
func crowded() *crowd {
	c := &crowd{reported: map[string]int{}}
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes = 64*gib, 1<<40
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	c.macs = append(c.macs, m)
	for i := range 1000 {
		c.add("crowd", fmt.Sprintf("crowd-%d", i), 100*gib, time.Hour, 0)
	}
	return c
}

// TestAttackReplicasThatTakeLongToPlace: each of a thousand decisions takes 10 ms, and other
// namespaces have one replica each, with and without a lower priority.
func TestAttackReplicasThatTakeLongToPlace(t *testing.T) {
	c := crowded()
	c.add("other", "equal", gib, 0, 0)
	c.add("third", "lower", gib, 0, -1)
	clock := &slowClock{now: time.Unix(1_800_000_000, 0), step: 10 * time.Millisecond}
	r := &Reconciler{Client: c, Clock: clock}
	passes, took, pending := 0, 0, true
	for ; pending && passes < 100; passes++ {
		result, err := r.Reconcile(t.Context(), pass)
		if err != nil {
			t.Fatal(err)
		}
		pending = result.RequeueAfter > 0
		if len(c.bound) == 1 {
			took = passes + 2 // the next pass, counted from 1, may place the other
		}
		if passes == 0 && strings.Join(c.bound, " ") != "equal" {
			t.Fatalf("the first pass placed %v, want the replica of the other namespace", c.bound)
		}
	}
	if strings.Join(c.bound, " ") != "equal lower" || took < 5 || took > 7 {
		t.Errorf("%v are placed after %d passes", c.bound, took)
	}
	if len(c.reported) != 1002 || c.reported["crowd-0"] > 2 {
		t.Errorf("the condition of %d replicas is reported, of crowd-0 %d times", len(c.reported), c.reported["crowd-0"])
	}
}

// TestAttackAStreamOfReplicas: a tenant creates another replica that fits before each pass, so that
// each binds one, and leaves the conditions of the others to the next.
func TestAttackAStreamOfReplicas(t *testing.T) {
	c := crowded()
	c.replicas = nil
	c.add("other", "large", 100*gib, time.Hour, 0)
	clock := &slowClock{now: time.Unix(1_800_000_000, 0), step: 10 * time.Millisecond}
	r := &Reconciler{Client: c, Clock: clock}
	began := clock.Now()
	for n := 0; c.reported["large"] == 0; n++ {
		c.add("stream", fmt.Sprint("small-", n), gib/64, 0, 0)
		if _, err := r.Reconcile(t.Context(), pass); err != nil {
			t.Fatal(err)
		}
		if len(c.bound) != n+1 {
			t.Fatalf("%d passes bound %d replicas", n+1, len(c.bound))
		}
		if waited := clock.Since(began); waited > 3*sayAfter {
			t.Fatalf("after %s and %d passes the condition of another replica is not written", waited, n+1)
		}
	}
}

// A change during a round of several passes is decided for in the next round.
func TestAChangeDuringARoundIsNotLost(t *testing.T) {
	c := crowded()
	for i := range c.replicas[1:] {
		c.replicas[i+1].Spec.ReservedBytes = 200 * gib
	}
	r := &Reconciler{Client: c, Clock: &slowClock{now: time.Unix(1_800_000_000, 0), step: 10 * time.Millisecond}}
	for i := range 100 {
		result, err := r.Reconcile(t.Context(), pass)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // after the first replica was decided for
			c.macs[0].Status.Memory.CapacityBytes = 128 * gib
			r.round.changed.Store(true)
		}
		if result.RequeueAfter == 0 {
			break
		}
	}
	if strings.Join(c.bound, " ") != "crowd-0" {
		t.Errorf("%v are placed, want the first", c.bound)
	}
}

// TestAttackPrefetchesThatTakeLong: each of a thousand decisions for weights that are kept already
// takes 10 ms, and a replica of another namespace is created meanwhile.
func TestAttackPrefetchesThatTakeLong(t *testing.T) {
	c := crowded()
	for i := range c.replicas {
		c.replicas[i].Spec.Desired, c.replicas[i].Spec.PrefetchNodeName = v1alpha1.DesiredDownloaded, "m"
		c.replicas[i].Spec.ReservedBytes = gib
	}
	clock := &slowClock{now: time.Unix(1_800_000_000, 0), step: 10 * time.Millisecond}
	r := &Reconciler{Client: c, Clock: clock}
	for passes := 0; ; passes++ {
		began := clock.Now()
		result, err := r.Reconcile(t.Context(), pass)
		if err != nil {
			t.Fatal(err)
		}
		if took := clock.Since(began); took > 4*passBudget { // the clock is read three times for a decision
			t.Errorf("pass %d takes %v", passes, took)
		}
		switch passes {
		case 0:
			if result.RequeueAfter == 0 {
				t.Fatal("the first pass decides for all")
			}
			c.add("other", "urgent", gib, 0, 0)
		case 1:
			if strings.Join(c.bound, " ") != "urgent" {
				t.Fatalf("the second pass placed %v, want the replica of the other namespace", c.bound)
			}
		case 100:
			t.Fatal("the round does not end")
		}
		if !r.round.left {
			break
		}
	}
	if c.reported["crowd-0"] == 0 || c.reported["crowd-999"] == 0 || c.reported["crowd-0"] > 2 {
		t.Errorf("the first is reported %d times, the last %d times", c.reported["crowd-0"], c.reported["crowd-999"])
	}
}

// TestAttackReplicasThatAllClaimRoom: a pass decides for a few hundred of thousands of replicas that
// claim room for a swap, and the round still comes to each, and to the replica after them.
func TestAttackReplicasThatAllClaimRoom(t *testing.T) {
	const took = 10 * time.Millisecond
	replicas := make([]v1alpha1.ModelReplica, 3000)
	for i := range replicas {
		replicas[i].UID = types.UID(fmt.Sprint(i))
	}
	var r round
	decided := map[types.UID]int{}
	for passes, again := 0, true; again; passes++ {
		if passes == 100 {
			t.Fatalf("the round has not ended after %d passes, with decisions for %d replicas", passes, len(decided))
		}
		r.begin()
		n := 0
		for i := range replicas {
			if r.skips(&replicas[i]) {
				continue
			}
			n++
			decided[replicas[i].UID]++
			if d := (plan.Decision{Awaits: "m"}); i < len(replicas)-1 {
				r.note(&replicas[i], d, took)
			} else {
				r.note(&replicas[i], plan.Decision{}, took)
			}
		}
		if longest := 2*int(passBudget/took) + 1; n > longest {
			t.Fatalf("a pass decides for %d replicas, want at most %d", n, longest)
		}
		again = r.end(false)
	}
	if len(decided) != len(replicas) || decided["2999"] != 1 || decided["0"] < 2 {
		t.Errorf("decisions for %d of %d replicas, for the first %d times and for the last %d times", len(decided), len(replicas), decided["0"], decided["2999"])
	}
}
