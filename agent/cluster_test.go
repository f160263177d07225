package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/identity/signertest"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/testenv"
)

const namespace = "metalfleet-system"

// cluster is a control plane with one Mac's objects, and no operator.
type cluster struct {
	*testenv.Env
	client.Client
	t *testing.T
}

func newCluster(t *testing.T, ca *agentapitest.CA) *cluster {
	t.Helper()
	env, err := testenv.Start(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(env.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	k := &cluster{Env: env, Client: c, t: t}
	agent := metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentObjectName("m1")}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m1"}},
		&coordinationv1.Lease{ObjectMeta: agent},
		&corev1.Secret{ObjectMeta: agent, Data: map[string][]byte{"ca.crt": ca.PEM()}},
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	signertest.Start(t, c, ca, nil)
	return k
}

// mac reads the MacNode.
func (k *cluster) mac() *v1alpha1.MacNode {
	k.t.Helper()
	m := &v1alpha1.MacNode{}
	if err := k.Get(k.t.Context(), types.NamespacedName{Name: "m1"}, m); err != nil {
		k.t.Fatal(err)
	}
	return m
}

// order writes assignments as the operator does.
func (k *cluster) order(a ...v1alpha1.Assignment) {
	k.t.Helper()
	k.assign(v1alpha1.MacAssignmentSpec{Assignments: a}, true)
}

// assign writes the Mac's MacAssignment, which it creates if needed, and confirms it.
func (k *cluster) assign(spec v1alpha1.MacAssignmentSpec, confirm bool) {
	k.t.Helper()
	o := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
	err := k.Get(k.t.Context(), client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		err = k.Create(k.t.Context(), o)
	}
	o.Spec = spec
	if err = errors.Join(err, k.Update(k.t.Context(), o)); err != nil {
		k.t.Fatal(err)
	}
	if !confirm {
		return
	}
	o.Status.UID, o.Status.ObservedGeneration = string(o.UID), o.Generation
	if err := k.Status().Update(k.t.Context(), o); err != nil {
		k.t.Fatal(err)
	}
}

func (k *cluster) waitFor(kind, want string) *v1alpha1.MacNode {
	k.t.Helper()
	var m *v1alpha1.MacNode
	poll(k.t, func() error {
		m = k.mac()
		if got := condition(m.Status, kind); got != want {
			return fmt.Errorf("%s is %q, want %q: %+v", kind, got, want, m.Status)
		}
		return nil
	})
	return m
}

// join boots the agent with links to the cluster.
func (m *mac) join(k *cluster) {
	m.t.Helper()
	links, err := Connect(Cluster{REST: k.Config(), Name: "m1", Namespace: namespace, StateDir: m.state, BootID: "boot", Log: testr.New(m.t)})
	if err != nil {
		m.t.Fatal(err)
	}
	m.agent, err = New(m.config(testr.New(m.t), links))
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a, ended := m.agent, make(chan error, 1)
	m.stop, m.ended = stop, ended
	go func() { ended <- errors.Join(a.Run(ctx), a.Close()) }()
	m.t.Cleanup(func() { m.halt() })
}

// TestAMacInACluster runs one scenario against a real API server: the Mac joins,
// is assigned a replica, loses the API, is restarted, loses its MacNode, and
// frees the memory.
func TestAMacInACluster(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	k := newCluster(t, m.authority)
	m.join(k)
	poll(t, func() error {
		mac := k.mac()
		if !meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionAccepting) || mac.Status.Memory.CapacityBytes == 0 || mac.Status.Summary.Memory != "192.0 GiB" {
			return fmt.Errorf("joined as %+v", mac.Status)
		}
		lease := &coordinationv1.Lease{}
		if err := k.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "mac-m1"}, lease); err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.HolderIdentity == nil || time.Since(lease.Spec.RenewTime.Time) > time.Minute {
			return fmt.Errorf("lease %+v", lease.Spec)
		}
		return nil
	})

	k.order(m.assignment())
	began := time.Now()
	served := k.waitFor(v1alpha1.ConditionServing, "True/Serving")
	t.Logf("from the order to Serving, as the API shows it: %s", time.Since(began))
	pid := served.Status.Assignments[0].PID
	if !strings.Contains(m.ask(t, "tiny", nil), "finish_reason") {
		t.Error("no answer over the certificate that it asked for")
	}
	for _, f := range served.ManagedFields {
		if f.Manager == v1alpha1.ManagerAgent && (f.Subresource != "status" || f.Operation != metav1.ManagedFieldsOperationApply) {
			t.Errorf("the agent wrote %s of %q", f.Operation, f.Subresource)
		}
	}

	m.outage(k, pid)
	m.lostMacNode(k, pid)
}

// outage: without the API the Mac serves on, also over a restart of its agent.
func (m *mac) outage(k *cluster, pid int64) {
	t := m.t
	if err := k.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	m.ask(t, "tiny", nil)
	m.halt()
	m.join(k)
	poll(t, func() error {
		if e := m.agent.pool.Endpoints(); len(e) != 1 || !e[0].Ready {
			return fmt.Errorf("without the API: %+v", e)
		}
		return nil
	})
	m.ask(t, "tiny", nil) // the identity on disk is good enough
	if err := k.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		s := k.mac().Status
		if s.BootID != m.agent.BootID || condition(s, v1alpha1.ConditionServing) != "True/Serving" || s.Assignments[0].PID != pid || len(s.Reclaims) != 0 {
			return fmt.Errorf("after the outage: %+v", s)
		}
		return nil
	})
}

// lostMacNode: the deletion of its objects withdraws nothing, and neither does an empty
// MacAssignment that the operator has not confirmed; one that it confirmed does.
func (m *mac) lostMacNode(k *cluster, pid int64) {
	t := m.t
	assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
	if err := errors.Join(k.Delete(t.Context(), k.mac()), k.Delete(t.Context(), assigned)); err != nil {
		t.Fatal(err)
	}
	m.ask(t, "tiny", nil)
	k.assign(v1alpha1.MacAssignmentSpec{}, false)
	if err := k.Create(t.Context(), &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}); err != nil {
		t.Fatal(err)
	}
	again := k.waitFor(v1alpha1.ConditionServing, "True/Serving")
	if again.Status.Assignments[0].PID != pid {
		t.Errorf("pid %d, was %d: a deletion or an unconfirmed MacAssignment stopped an engine", again.Status.Assignments[0].PID, pid)
	}
	k.order()
	poll(t, func() error {
		s := k.mac().Status
		if len(s.Assignments) != 0 || len(s.Reclaims) != 1 || s.Reclaims[0].Reason != v1alpha1.ReclaimUnassigned || s.Reclaims[0].FreedBytes == nil {
			return fmt.Errorf("after the order was withdrawn: %+v", s)
		}
		return nil
	})
	if alive(pid) {
		t.Error("the engine lives on")
	}
}
