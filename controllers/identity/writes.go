package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// etcd keeps each version of an object for five to ten minutes, in a database of 2 GiB by default, and when that is full nothing in
// the cluster can be written. No admission policy can count. So the operator counts what each Mac has etcd store, also by conditions
// that the operator writes of it: each stores the whole MacNode again. A Mac that stores far more than an agent on a bad network may
// only read for a while. An agent keeps to 8 MiB and 16 KiB a second, and its failures cause at most 11 KiB a second.
const (
	// mostBytes is what a Mac may store at once, and bytesPerSecond per second in the long run.
	mostBytes, bytesPerSecond = 48 << 20, 28 << 10
	// fewerBytes replaces mostBytes while the fleet stores more than fleetBytes, and fleetPerSecond per second.
	fewerBytes                 = 16 << 20
	fleetBytes, fleetPerSecond = 384 << 20, 512 << 10
	// A Mac is suspended for firstPause, and for twice as long each time, unless it was allowed to write for longestPause.
	firstPause, longestPause = 10 * time.Minute, 24 * time.Hour
)

// What versions take in etcd, at most: those of a MacNode without its status, those of a Lease, and those of a request until it is deleted.
const (
	macNodeBytes = 8 << 10
	leaseBytes   = 6 << 10
	requestBytes = 40 << 10
)

// writeLimits counts what Macs store. The zero value has counted nothing; it is safe for concurrent use.
type writeLimits struct {
	mu sync.Mutex
	// fleet is what all Macs store, and of what each does, by name; both are guarded by mu.
	fleet bucket
	of    map[string]*writer
}

// writer is what is known of one Mac.
type writer struct {
	bucket
	until time.Time     // until then it is, or was, suspended
	pause time.Duration // how long it is, or was
}

// bucket is a number of bytes that falls with time.
type bucket struct {
	bytes float64
	at    time.Time
}

func (b *bucket) add(n int, perSecond float64, now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.bytes, b.at = max(0, b.bytes-perSecond*passed.Seconds()), now
	}
	b.bytes += float64(n)
}

// stored counts what a Mac stored, and reports whether it is suspended from now on.
func (w *writeLimits) stored(mac string, n int, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fleet.add(n, fleetPerSecond, now)
	m := w.writer(mac)
	if now.Before(m.until) { // what it wrote before its rights were withdrawn
		return false
	}
	m.add(n, bytesPerSecond, now)
	most := mostBytes
	if w.fleet.bytes > fleetBytes {
		most = fewerBytes
	}
	if m.bytes <= float64(most) {
		return false
	}
	if now.Sub(m.until) > longestPause {
		m.pause = 0
	}
	m.suspend(now, min(max(firstPause, 2*m.pause), longestPause))
	return true
}

func (m *writer) suspend(now time.Time, pause time.Duration) {
	*m = writer{until: now.Add(pause), pause: pause}
}

func (w *writeLimits) writer(mac string) *writer {
	if w.of == nil {
		w.of = map[string]*writer{}
	}
	if w.of[mac] == nil {
		w.of[mac] = &writer{}
	}
	return w.of[mac]
}

// suspended returns until when a Mac is suspended; zero if it is not. An operator that has just started reads that
// from the MacNode, and not for how long.
func (w *writeLimits) suspended(mac *v1alpha1.MacNode, now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.writer(mac.Name)
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended)
	if m.until.IsZero() && c != nil && c.Status == metav1.ConditionTrue {
		m.suspend(earlier(c.LastTransitionTime.Time, now), firstPause)
	}
	if now.Before(m.until) {
		return m.until
	}
	return time.Time{}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (w *writeLimits) forget(mac string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, mac)
}

// counted counts the versions that Macs store, and triggers the reconciler for those that are suspended. The requests of
// Macs are counted when they are created.
func (r *Macs) counted() handler.EventHandler {
	count := func(o client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		if mac, n := storedBy(o); n > 0 && r.writes.stored(mac, n, r.Issuer.Clock.Now()) {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: mac}})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if request, ok := e.Object.(*certificatesv1.CertificateSigningRequest); ok {
				count(request, queue)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if _, ok := e.ObjectNew.(*certificatesv1.CertificateSigningRequest); !ok && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				count(e.ObjectNew, queue)
			}
		},
	}
}

// judges reports whether a field manager is one of the operator's for MacNodes: it writes what a Mac does or fails to do.
func judges(manager string) bool {
	return slices.Contains([]string{v1alpha1.ManagerOperator, v1alpha1.ManagerUpgrades, v1alpha1.ManagerClasses, v1alpha1.ManagerWrites}, manager)
}

// storedBy returns which Mac caused a version, and about how many bytes it takes; 0 if no Mac did.
func storedBy(o client.Object) (mac string, bytes int) {
	switch o := o.(type) {
	case *v1alpha1.MacNode:
		text, _ := json.Marshal(&o.Status) // a status can be encoded; its field names, half as long at most, are in managedFields too
		switch WrittenBy(o) {
		case "":
			return "", 0
		case v1alpha1.ManagerAgent: // which expects that it counts twice
			return o.Name, macNodeBytes + 2*len(text)
		}
		return o.Name, macNodeBytes + len(text)*3/2
	case *coordinationv1.Lease:
		if mac = o.Labels[v1alpha1.LabelMac]; mac != "" {
			return mac, leaseBytes
		}
	case *certificatesv1.CertificateSigningRequest:
		for _, account := range []string{v1alpha1.AgentObjectName(""), join.Account("")} {
			if mac, ok := strings.CutPrefix(o.Name, join.RequestName(account)); ok {
				return mac, requestBytes
			}
		}
	}
	return "", 0
}

// WrittenBy returns the field manager of the last write of a MacNode if it is the agent's or one of the operator's: the API
// server notes the second of each, and a Mac writes no other's. Of two writes in one second it is the agent's, else the operator's.
func WrittenBy(mac *v1alpha1.MacNode) string {
	compare := func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(secondOf(a).Compare(secondOf(b)), rank(a.Manager)-rank(b.Manager))
	}
	if len(mac.ManagedFields) == 0 {
		return ""
	}
	if last := slices.MaxFunc(mac.ManagedFields, compare).Manager; rank(last) > 0 {
		return last
	}
	return ""
}

func secondOf(e metav1.ManagedFieldsEntry) time.Time {
	if e.Time == nil {
		return time.Time{}
	}
	return e.Time.Time
}

func rank(manager string) int {
	switch {
	case manager == v1alpha1.ManagerAgent:
		return 2
	case judges(manager):
		return 1
	}
	return 0
}

// reportSuspension writes whether a Mac is suspended if that changed. One that never was has no such condition.
func (r *Macs) reportSuspension(ctx context.Context, mac *v1alpha1.MacNode, until time.Time) error {
	before, now := status.Pick(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended), r.Issuer.Clock.Now()
	if until.IsZero() && len(before) == 0 {
		return nil
	}
	next := status.False(v1alpha1.ConditionWritesSuspended, v1alpha1.ReasonWritesAllowed, "the Mac may write again")
	if !until.IsZero() {
		next = status.True(v1alpha1.ConditionWritesSuspended, v1alpha1.ReasonTooManyWrites, fmt.Sprintf(
			"the Mac wrote its MacNode, Lease or certificate requests, or failed and came back, far more often than an agent does, which fills etcd: it may not write until %s. "+
				"It may be stolen: annotate it with %s=true and delete it", until.UTC().Format(time.RFC3339), v1alpha1.AnnotationLost))
	}
	after := status.Merge(before, 0, now, next)
	if status.Equal(before, after) {
		return nil
	}
	if err := status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerWrites,
		ac.MacNode(mac.Name).WithUID(mac.UID).WithStatus(ac.MacNodeStatus().WithConditions(status.Conditions(after)...))); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !until.IsZero() {
		notice.PostAll(ctx, r.Client, now, notice.Notice{About: notice.Of("MacNode", mac), ID: until.UTC().Format(time.RFC3339),
			Reason: next.Reason, Message: next.Message, Warning: true})
	}
	return nil
}
