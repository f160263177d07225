package controllers_test

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// scriptedMacs are the Macs of one test, with agents that follow a script.
type scriptedMacs struct {
	*cluster
	macs []*fleettest.Agent
}

// deleteMac ends an agent and waits until its MacNode is gone. It does not wait until API
// servers have forgotten the tokens of its account.
func (m *scriptedMacs) deleteMac(a *fleettest.Agent) {
	m.t.Helper()
	a.Stop()
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	m.must(client.IgnoreNotFound(m.declareLost(a.Name)))
	m.must(client.IgnoreNotFound(m.c.Delete(m.ctx, mac)))
	own, joins := objectOf(a.Name), metav1.ObjectMeta{Namespace: system, Name: join.Account(a.Name)}
	requests := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: join.RequestName(joins.Name)}}
	m.eventually("the identity of Mac "+a.Name+" is gone", func() error {
		for _, o := range []client.Object{&corev1.ServiceAccount{ObjectMeta: own}, &corev1.Secret{ObjectMeta: own}, &corev1.Secret{ObjectMeta: joins}, requests} {
			if err := m.c.Get(m.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T is there (%w)", o, err)
			}
		}
		if err := m.c.Get(m.ctx, client.ObjectKeyFromObject(mac), mac); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := mac.DeepCopy()
		if !controllerutil.RemoveFinalizer(mac, v1alpha1.FinalizerIdentity) {
			return nil
		}
		return client.IgnoreNotFound(m.c.Patch(m.ctx, mac, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
	m.eventually("Mac "+a.Name+" is gone", func() error {
		if err := m.c.Get(m.ctx, client.ObjectKeyFromObject(mac), mac); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}

// declareLost annotates a Mac that will not come back.
func (m *scriptedMacs) declareLost(mac string) error {
	lost := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"true"}}}`))
	return m.c.Patch(m.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}, lost)
}

// assigned returns what is assigned to a Mac, and confirmed; nothing if nothing is.
func (m *scriptedMacs) assigned(mac string) v1alpha1.MacAssignmentSpec {
	m.t.Helper()
	var a v1alpha1.MacAssignment
	m.must(client.IgnoreNotFound(m.c.Get(m.ctx, client.ObjectKey{Name: mac}, &a)))
	if !a.Confirmed() {
		return v1alpha1.MacAssignmentSpec{}
	}
	return a.Spec
}

// mac creates a MacNode with a scripted agent, and waits until it is Ready.
func (m *scriptedMacs) mac(name string, s fleettest.Script) *fleettest.Agent {
	m.t.Helper()
	m.must(m.c.Create(m.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}))
	if s.Chip == "" {
		s.Chip = "M2Ultra"
	}
	if s.Footprint == 0 {
		s.Footprint = 159744000
	}
	a := fleettest.Start(m.ctx, m.c, system, name, s)
	m.macs = append(m.macs, a)
	m.eventually(name+" is Ready", func() error {
		return m.macCondition(name, v1alpha1.ReasonReporting)
	})
	return a
}

// play changes a Mac's script. The operator writes the same MacNode, so that a report may
// get a conflict and is retried.
func (m *scriptedMacs) play(a *fleettest.Agent, change func(*fleettest.Script)) {
	m.t.Helper()
	m.eventually(a.Name+" plays another script", func() error { return a.Edit(m.ctx, change) })
}

// macCondition returns an error unless the condition Ready of a Mac has a reason.
func (m *scriptedMacs) macCondition(name, reason string) error {
	var mac v1alpha1.MacNode
	if err := m.c.Get(m.ctx, client.ObjectKey{Name: name}, &mac); err != nil {
		return err
	}
	return wantReason(mac.Status.Conditions, v1alpha1.ConditionReady, reason)
}

const gib = int64(1) << 30

// holding returns a script with memory and the small model.
func holding(capacity int64) fleettest.Script {
	return fleettest.Script{Capacity: capacity, Sources: map[string]fleettest.Source{source: {Model: &small}}}
}

// deleteMacNode deletes a MacNode and does not wait for its end.
func (m *scriptedMacs) deleteMacNode(mac string) {
	m.t.Helper()
	m.must(m.c.Delete(m.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}))
}

// macGone waits until a MacNode and its MacAssignment are gone.
func (m *scriptedMacs) macGone(mac string) {
	m.t.Helper()
	m.eventually(mac+" is gone", func() error {
		for _, o := range []client.Object{&v1alpha1.MacNode{}, &v1alpha1.MacAssignment{}} {
			if err := m.c.Get(m.ctx, client.ObjectKey{Name: mac}, o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T is there (%w)", o, err)
			}
		}
		return nil
	})
}
