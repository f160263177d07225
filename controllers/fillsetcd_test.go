//go:build !race

package controllers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// fat is a status with few long texts: 440 KiB in one version, at little cost for the API server.
func fat(version int) v1alpha1.MacNodeStatus {
	s := v1alpha1.MacNodeStatus{AgentVersion: fmt.Sprintf("v0.0.%d", version), BootID: "x"}
	for i := range 3 {
		a := v1alpha1.AssignmentStatus{ReplicaUID: fmt.Sprint("u", i), Epoch: 1}
		for _, stage := range []string{"Downloaded", "Admitted", "Loaded", "Serving", "Released"} {
			a.Conditions = append(a.Conditions, metav1.Condition{Type: stage, Status: metav1.ConditionFalse, Reason: "Reason",
				Message: strings.Repeat("x", 29_500), LastTransitionTime: metav1.NewTime(time.Unix(1_800_000_000, 0))})
		}
		s.Assignments = append(s.Assignments, a)
	}
	return s
}

// TestAttackAMacFillsEtcd: a stolen Mac stores version after version of its MacNode. etcd keeps each for minutes, and when it is
// full nothing in the cluster can be written. Each version has another agentVersion, of which the operator writes its judgement.
func TestAttackAMacFillsEtcd(t *testing.T) {
	w := newWorld(t)
	evil := w.mac("mac-evil", holding(60*gib))
	w.eventually("it reports", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonReporting) })
	evil.Stop()
	write, c := w.writerAs("mac-evil"), w.asMac("mac-evil")
	watching, err := client.NewWithWatch(env.Config(), client.Options{Scheme: w.c.Scheme()})
	w.must(err)
	versions, err := watching.Watch(w.ctx, &v1alpha1.MacNodeList{}, client.MatchingFields{"metadata.name": "mac-evil"})
	w.must(err)
	defer versions.Stop()
	stored := make(chan [2]int, 1)
	go func() { stored <- untilSuspended(versions) }()
	var refused error
	accepted := 0
	for ; refused == nil && accepted < 150; accepted++ {
		refused = write(fat(accepted), v1alpha1.ManagerAgent)
	}
	if !apierrors.IsForbidden(refused) || accepted < 25 || accepted > 100 {
		t.Fatalf("after %d writes: %v, want a refusal after about 50", accepted, refused)
	}
	if all := <-stored; all[0] < accepted || all[0] > accepted+25 || all[1] > 48<<20 {
		t.Errorf("%d versions of %d bytes, want the %d of the Mac, 25 of the operator at most, and 48 MiB", all[0], all[1], accepted)
	}
	w.eventually("an Event", func() error {
		var events corev1.EventList
		err := w.c.List(w.ctx, &events, client.MatchingFields{"reason": v1alpha1.ReasonTooManyWrites})
		if err == nil && len(events.Items) != 1 {
			err = fmt.Errorf("%d Events", len(events.Items))
		}
		return err
	})
	renew := func() error {
		return c.Patch(w.ctx, &coordinationv1.Lease{ObjectMeta: objectOf("mac-evil")}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"holderIdentity":"x"}}`)))
	}
	if err := renew(); !apierrors.IsForbidden(err) {
		t.Errorf("it renews its Lease: %v", err)
	}
	w.must(c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, macNamed("")))
	w.stop()
	w.clock.jump(11 * time.Minute)
	w.startOperator()
	w.eventually("it may write again", func() error {
		return errors.Join(renew(), write(v1alpha1.MacNodeStatus{BootID: "again"}, v1alpha1.ManagerAgent), w.writesCondition(v1alpha1.ReasonWritesAllowed))
	})
}

func (w *world) writesCondition(reason string) error {
	var mac v1alpha1.MacNode
	if err := w.c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac); err != nil {
		return err
	}
	return wantReason(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended, reason)
}

// untilSuspended returns how many versions of a MacNode a watch delivers until one shows its suspension, and their bytes.
func untilSuspended(versions watch.Interface) (n [2]int) {
	for e := range versions.ResultChan() {
		mac, ok := e.Object.(*v1alpha1.MacNode)
		if !ok {
			break
		}
		text, _ := json.Marshal(mac) // a MacNode can be encoded
		n[0], n[1] = n[0]+1, n[1]+len(text)
		if meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended) {
			break
		}
	}
	return n
}
