package identity

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAnAgentIsNeverSuspended: agent/report keeps to 8 MiB and 16 KiB a second, with its own estimate of each version, and its
// Lease adds a version every ten seconds. Other Macs fill etcd at the same time.
func TestAnAgentIsNeverSuspended(t *testing.T) {
	var w writeLimits
	w.stored("stolen", 1<<30, now)
	for k, n := range []int{8 << 20, 0} {
		mac := fmt.Sprint("m", k)
		if w.stored(mac, n, now) {
			t.Fatalf("%s is suspended at once", mac)
		}
		for s := range 6 * 3600 {
			at := now.Add(time.Duration(s) * time.Second)
			w.fleet.bytes = 1 << 30
			if w.stored(mac, 16<<10, at) || s%10 == 0 && w.stored(mac, leaseBytes, at) {
				t.Fatalf("%s is suspended after %d s", mac, s)
			}
		}
	}
}

// judged returns how many bytes count when the operator writes a condition of a Mac whose status takes as many as given.
func judged(status int) int {
	_, n := storedBy(&v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: v1alpha1.ManagerOperator}}},
		Status: v1alpha1.MacNodeStatus{BootID: strings.Repeat("x", status)}})
	return n
}

// TestAnAgentOnABadNetworkIsNeverSuspended: all day it is silent for 30 s and back for 5 s, each with Ready and Reachable in
// versions of their own, or gateways reach it 2 s of 20. Its agent writes what it may, which it could not while it is silent.
func TestAnAgentOnABadNetworkIsNeverSuspended(t *testing.T) {
	for _, size := range []int{20 << 10, 60 << 10} {
		for name, tc := range map[string]struct{ versions, period int }{"silent and back": {4, 35}, "unreachable and back": {2, 20}} {
			var w writeLimits
			w.stored("m", 8<<20, now)
			for s := range 24 * 3600 {
				at := now.Add(time.Duration(s) * time.Second)
				w.fleet.bytes = 1 << 30
				n := 16 << 10
				if s%10 == 0 {
					n += leaseBytes
				}
				if s%tc.period < tc.versions {
					n += judged(size)
				}
				if w.stored("m", n, at) {
					t.Fatalf("%s, with %d KiB: suspended after %d s", name, size>>10, s)
				}
			}
		}
	}
}

// TestManyMacsThatFlapStoreLessThanEtcdHolds: 50 machines with the largest status cause writes of the operator, which they do
// not write themselves, as fast as they can: two while they are silent and back, two of their clashes, ten of their ports in a minute.
func TestManyMacsThatFlapStoreLessThanEtcdHolds(t *testing.T) {
	var w writeLimits
	n := judged(880 << 10)
	total, ended := 0, map[string]bool{}
	for s := range 600 {
		for k := range 50 {
			if mac := fmt.Sprint("m", k); !ended[mac] && s%5 == 0 {
				total += n
				ended[mac] = w.stored(mac, n, now.Add(time.Duration(s)*time.Second))
			}
		}
	}
	if len(ended) != 50 || total > 1200<<20 {
		t.Errorf("the operator stored %d MiB of %d Macs, want at most 1200 of 50", total>>20, len(ended))
	}
	for mac, end := range ended {
		if !end {
			t.Errorf("%s is not suspended", mac)
		}
	}
}

// TestAMacThatStoresTooMuchIsSuspendedEverLonger, and as briefly as at first after a day without.
func TestAMacThatStoresTooMuchIsSuspendedEverLonger(t *testing.T) {
	var w writeLimits
	at, mac := now, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	var pauses []time.Duration
	for k := range 11 {
		stored := 0
		for !w.stored(mac.Name, 1<<20, at) {
			at, stored = at.Add(time.Second), stored+1
		}
		if stored < 48 || stored > 50 {
			t.Errorf("suspended after %d MiB, want 48", stored)
		}
		until := w.suspended(mac, at)
		pauses = append(pauses, until.Sub(at))
		if w.stored(mac.Name, 64<<20, at.Add(time.Second)) {
			t.Error("it is suspended twice at once")
		}
		at = until
		if u := w.suspended(mac, at); !u.IsZero() {
			t.Errorf("it is suspended at %s until %s", at, u)
		}
		if k == 9 {
			at = at.Add(longestPause)
		}
	}
	m := time.Minute
	if want := []time.Duration{10 * m, 20 * m, 40 * m, 80 * m, 160 * m, 320 * m, 640 * m, 1280 * m, 1440 * m, 1440 * m, 10 * m}; !slices.Equal(pauses, want) {
		t.Errorf("suspended for %v, want %v", pauses, want)
	}
}

// TestManyMacsStoreLessThanEtcdHolds: 50 machines that used one enrolment token store as fast as they can.
func TestManyMacsStoreLessThanEtcdHolds(t *testing.T) {
	var w writeLimits
	total, ended := 0, map[string]bool{}
	for step := range 6000 {
		for k := range 50 {
			if mac := fmt.Sprint("m", k); !ended[mac] {
				total += 256 << 10
				ended[mac] = w.stored(mac, 256<<10, now.Add(time.Duration(step)*100*time.Millisecond))
			}
		}
	}
	if len(ended) != 50 || total > 900<<20 {
		t.Errorf("%d Macs stored %d MiB, want 50 and at most 900", len(ended), total>>20)
	}
}

// TestVersionsOfAMacCount, and no others.
func TestVersionsOfAMacCount(t *testing.T) {
	entry := func(manager string, second int64) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &metav1.Time{Time: time.Unix(second, 0)}}
	}
	mac := func(entries ...metav1.ManagedFieldsEntry) *v1alpha1.MacNode {
		return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", ManagedFields: entries},
			Status: v1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Message: strings.Repeat("x", 100<<10)}}}}
	}
	agent, operator := v1alpha1.ManagerAgent, v1alpha1.ManagerOperator
	request := func(name string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for name, tc := range map[string]struct {
		o         client.Object
		mac       string
		min, most int
	}{
		"its status":                    {mac(entry(operator, 1), entry(agent, 2)), "m", 200 << 10, 220 << 10},
		"its status, in the cache":      {mac(metav1.ManagedFieldsEntry{Manager: agent}), "m", 200 << 10, 220 << 10},
		"in the second of the operator": {mac(entry(agent, 2), entry(operator, 2)), "m", 200 << 10, 220 << 10},
		"one of the operator":           {mac(entry(operator, 3), entry(agent, 2)), "m", 150 << 10, 160 << 10},
		"its agent's judgement":         {mac(entry(agent, 2), entry(v1alpha1.ManagerUpgrades, 3)), "m", 150 << 10, 160 << 10},
		"its class, in the cache":       {mac(metav1.ManagedFieldsEntry{Manager: v1alpha1.ManagerClasses}), "m", 150 << 10, 160 << 10},
		"one of a person":               {mac(entry(agent, 2), entry(operator, 3), entry("kubectl-edit", 4)), "", 0, 0},
		"one of a person, in the cache": {mac(metav1.ManagedFieldsEntry{Manager: "kubectl-edit"}), "", 0, 0},
		"in the second of a person":     {mac(entry("kubectl-edit", 3), entry(operator, 3)), "m", 150 << 10, 160 << 10},
		"without managedFields":         {mac(), "", 0, 0},
		"its Lease":                     {&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "mac-m", Labels: labels("m")}}, "m", 6 << 10, 6 << 10},
		"the leader's Lease":            {&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "mac-leader"}}, "", 0, 0},
		"its request":                   {request("metalfleet-mac-m"), "m", 40 << 10, 40 << 10},
		"the request of its token":      {request("metalfleet-join-m"), "m", 40 << 10, 40 << 10},
		"a request of an enrolment":     {request("metalfleet-enrol-m.01"), "", 0, 0},
	} {
		if mac, n := storedBy(tc.o); mac != tc.mac || n < tc.min || n > tc.most {
			t.Errorf("%s: %q stored %d bytes, want %q and %d to %d", name, mac, n, tc.mac, tc.min, tc.most)
		}
	}
}

// TestASuspendedMacReadsOnly, also while it is drained and by the next operator, until its time is over.
func TestASuspendedMacReadsOnly(t *testing.T) {
	for name, finalizers := range map[string][]string{"present": {v1alpha1.FinalizerIdentity}, "drained": {v1alpha1.FinalizerDrain, v1alpha1.FinalizerIdentity}} {
		t.Run(name, func(t *testing.T) {
			d := newDrama(t)
			clock, issuer, now := d.clock, d.issuer(), d.clock.Now()
			mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: finalizers}}
			if err := d.api.Create(t.Context(), mac); err != nil {
				t.Fatal(err)
			}
			look := func(r *Macs, may bool) {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(mac)}); err != nil {
					t.Fatal(err)
				}
				var everywhere rbacv1.ClusterRole
				var here rbacv1.Role
				if err := d.api.Get(t.Context(), client.ObjectKey{Name: "metalfleet-mac-m"}, &everywhere); err != nil {
					t.Fatal(err)
				}
				if err := d.api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "mac-m"}, &here); err != nil {
					t.Fatal(err)
				}
				if got := writes(append(everywhere.Rules, here.Rules...)); got != may {
					t.Errorf("it may write: %v, want %v", got, may)
				}
				if err := d.api.Get(t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil {
					t.Fatal(err)
				}
				if got := meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended); got == may {
					t.Errorf("WritesSuspended is %v, want %v", got, !may)
				}
			}
			r := &Macs{Client: d.api, Issuer: issuer}
			look(r, true)
			if name == "drained" {
				if err := d.api.Delete(t.Context(), mac); err != nil {
					t.Fatal(err)
				}
			}
			r.writes.stored("m", mostBytes+1, now)
			look(r, false)
			var events corev1.EventList
			if err := d.api.List(t.Context(), &events); err != nil || len(events.Items) != 1 || events.Items[0].Reason != v1alpha1.ReasonTooManyWrites {
				t.Errorf("events %+v (%v)", events.Items, err)
			}
			next := &Macs{Client: d.api, Issuer: issuer}
			clock.SetTime(now.Add(firstPause - time.Second))
			look(next, false)
			clock.SetTime(now.Add(firstPause))
			look(next, true)
			look(r, true)
		})
	}
}

// writes reports whether rules allow to write anything that is stored.
func writes(rules []rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return !slices.Equal(r.Resources, []string{"serviceaccounts/token"}) && slices.ContainsFunc(r.Verbs, func(v string) bool { return v != "get" && v != "list" && v != "watch" })
	})
}
