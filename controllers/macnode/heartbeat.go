package macnode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Heartbeat maintains the conditions Ready and IdentityClash of each Mac.
type Heartbeat struct {
	Client client.Client
	// Live reads past the cache.
	Live client.Reader
	// Namespace of the Leases.
	Namespace string
	Clock     clock.WithTicker
	// Reach returns what gateways found of a Mac; nil if they do not report.
	Reach func(types.UID) demand.Reach

	pulses Pulses
	wake   chan event.GenericEvent
	// limits bound the Events: a Mac can renew and report a clash as it likes.
	limits notice.Limits
	// rewrites bound the writes that change messages only: they name addresses that a Mac chose.
	rewrites notice.Limits
	// suspended bound the writes of Macs that fill etcd: those may still open and close their port.
	suspended notice.Limits
	// named is when the second machine of an identity clash was last written.
	named perMac[time.Time]
	stops perMac[stop]
	// sightings are the reports of fenced agents.
	sightings perMac[sighting]
}

const (
	rewriteBurst = 4
	rewriteEvery = time.Minute

	suspendedBurst = 1
	suspendedEvery = 5 * time.Minute
)

// SetupWithManager starts the reconciler with its watches and its watchdog.
func (h *Heartbeat) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	h.wake = make(chan event.GenericEvent)
	h.rewrites.Burst, h.rewrites.Every = rewriteBurst, rewriteEvery
	h.suspended.Burst, h.suspended.Every = suspendedBurst, suspendedEvery
	byLease := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, lease client.Object) []reconcile.Request {
		mac, ok := strings.CutPrefix(lease.GetName(), v1alpha1.AgentObjectName(""))
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: mac}}}
	})
	err := ctrl.NewControllerManagedBy(mgr).Named("macnode-heartbeat").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(readyChanged())).
		Watches(&coordinationv1.Lease{}, byLease).
		WatchesRawSource(source.Channel(h.wake, &handler.EnqueueRequestForObject{})).
		Complete(h)
	if err != nil {
		return err
	}
	return mgr.Add(&watchdog{heartbeat: h})
}

// readyChanged drops the figures that an agent reports all the time.
func readyChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		ready := func(o client.Object) []metav1.Condition {
			return status.Pick(o.(*v1alpha1.MacNode).Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionAccepting)
		}
		return !status.Equal(ready(e.ObjectOld), ready(e.ObjectNew))
	}}
}

// Reconcile judges one Mac.
func (h *Heartbeat) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := h.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			h.pulses.Forget(req.Name)
			h.named.forget(req.Name)
			h.sightings.forget(req.Name)
			h.stops.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !mac.DeletionTimestamp.IsZero() && !fleet.Leaving(&mac) {
		return reconcile.Result{}, nil
	}
	lease, err := h.observe(ctx, h.Client, mac.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	next := h.judge(&mac, Breaker{})
	if worse(before, next) {
		// Our own watch may be the one that is silent: read past the cache.
		if lease, err = h.observe(ctx, h.Live, mac.Name); err != nil {
			return reconcile.Result{}, err
		}
		next = h.judge(&mac, Breaker{})
	}
	if next.Reason == v1alpha1.ReasonMacGone {
		breaker, err := h.look(ctx)
		if err != nil {
			return reconcile.Result{}, err
		}
		next = h.judge(&mac, breaker)
	}
	twin := clashOf(lease, h.firstSeen(mac.Name, lease), h.Clock.Now())
	after, err := h.report(ctx, &mac, next, twin)
	if err == nil && startsStop(&mac, before, next) {
		last, _ := h.stops.known(mac.Name)
		h.stops.remember(mac.Name, last.next(h.Clock.Now()))
	}
	return reconcile.Result{RequeueAfter: twin.again(after, h.Clock.Now())}, client.IgnoreNotFound(err)
}

// observe reads the Lease of a Mac. A missing one was never renewed.
func (h *Heartbeat) observe(ctx context.Context, from client.Reader, mac string) (*coordinationv1.Lease, error) {
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: h.Namespace, Name: v1alpha1.AgentObjectName(mac)}
	if err := from.Get(ctx, key, &lease); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Lease %s: %w", key, err)
	}
	var renewed time.Time
	if lease.Spec.RenewTime != nil {
		renewed = lease.Spec.RenewTime.Time
	}
	h.pulses.Observe(mac, renewed, h.Clock.Now())
	return &lease, nil
}

func (h *Heartbeat) judge(mac *v1alpha1.MacNode, b Breaker) status.Condition {
	now := h.Clock.Now()
	p, _ := h.pulses.Of(mac.Name, now)
	last, _ := h.stops.known(mac.Name)
	return last.delay(ObservationOf(mac, p, now).Judge(b), now)
}

// look counts all Macs for the circuit breaker.
func (h *Heartbeat) look(ctx context.Context) (Breaker, error) {
	var macs v1alpha1.MacNodeList
	if err := h.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return Breaker{}, fmt.Errorf("list Macs: %w", err)
	}
	return h.breaker(macs.Items), nil
}

func (h *Heartbeat) breaker(macs []v1alpha1.MacNode) Breaker {
	now := h.Clock.Now()
	observations := make([]Observation, 0, len(macs))
	for i := range macs {
		if p, known := h.pulses.Of(macs[i].Name, now); known && macs[i].DeletionTimestamp.IsZero() {
			observations = append(observations, ObservationOf(&macs[i], p, now))
		}
	}
	return Look(observations)
}

// worse reports whether a Mac that renewed becomes silent, or a silent one gone.
func worse(before *metav1.Condition, next status.Condition) bool {
	return before != nil && before.Reason != next.Reason &&
		(next.Reason == v1alpha1.ReasonMacSilent || next.Reason == v1alpha1.ReasonMacGone)
}

// report writes the conditions of a Mac if they changed, and returns them.
func (h *Heartbeat) report(ctx context.Context, mac *v1alpha1.MacNode, next status.Condition, twin *clash) ([]metav1.Condition, error) {
	now := h.Clock.Now()
	named, _ := h.named.known(mac.Name)
	before := status.Pick(mac.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionReachable, v1alpha1.ConditionIdentityClash)
	all := append([]status.Condition{next}, h.reachable(mac)...)
	after := status.Merge(before, judgedGeneration(mac, next.Status), now, append(all, twin.conditions(before, now, named)...)...)
	if status.Equal(before, after) || !h.mayWrite(mac, next, sameJudgement(before, after)) {
		return after, nil
	}
	notices := append(twin.notices(mac, before), presence(mac, meta.FindStatusCondition(before, v1alpha1.ConditionReady), next)...)
	notices = append(notices, unreachable(mac, before, after)...)
	ctrl.LoggerFrom(ctx).Info("Conditions of a Mac changed", "MacNode", mac.Name, "reason", next.Reason)
	if err := status.ApplyStatus(ctx, h.Client, v1alpha1.ManagerOperator,
		ac.MacNode(mac.Name).WithUID(mac.UID).WithStatus(ac.MacNodeStatus().WithConditions(status.Conditions(after)...))); err != nil {
		return before, err
	}
	if twin != nil && !recent(named, now) {
		h.named.remember(mac.Name, now)
	}
	notice.PostAll(ctx, h.Client, now, h.limits.Within(mac.Name, now, notices)...)
	return after, nil
}

// mayWrite reports whether the conditions of a Mac may be written now: each write stores its whole MacNode again. That a
// suspended Mac is silent or gone is always written: it cannot come back before it may write again.
func (h *Heartbeat) mayWrite(mac *v1alpha1.MacNode, next status.Condition, same bool) bool {
	now := h.Clock.Now()
	switch {
	case suspended(mac):
		return worse(meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady), next) || h.suspended.Allow(mac.Name, now)
	case same:
		return h.rewrites.Allow(mac.Name, now)
	}
	return true
}

func suspended(mac *v1alpha1.MacNode) bool {
	return meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionWritesSuspended)
}

// sameJudgement reports whether conditions differ in their messages only. A later renewal writes those.
func sameJudgement(before, after []metav1.Condition) bool {
	return slices.EqualFunc(before, after, func(a, b metav1.Condition) bool {
		a.Message = b.Message
		return status.Equal(a, b)
	})
}

// judgedGeneration returns the observedGeneration of the condition Ready, which kubectl
// wait compares. A Mac that renews its Lease reports itself how far it has read its spec:
// the condition has none, and status.observedGeneration is used. For others the judgement is
// ours and valid for any spec.
func judgedGeneration(mac *v1alpha1.MacNode, ready metav1.ConditionStatus) int64 {
	if ready == metav1.ConditionTrue {
		return 0
	}
	return mac.Generation
}

// stands reports whether a judgement is written already.
func stands(mac *v1alpha1.MacNode, before *metav1.Condition, next status.Condition) bool {
	return before != nil && before.Reason == next.Reason && before.ObservedGeneration == judgedGeneration(mac, next.Status)
}

// watchdog detects what no watch reports: the absence of changes. It triggers the
// reconciler for each Mac whose judgement changed by the passing of time, or is of an older
// generation, and records when the API server does not respond, because then no Mac can
// renew.
type watchdog struct{ heartbeat *Heartbeat }

const (
	watchdogPeriod = 5 * time.Second
	reachPeriod    = time.Second
	probeTimeout   = 3 * time.Second
)

// Start runs until the context ends.
func (w *watchdog) Start(ctx context.Context) error {
	tick, soon := w.heartbeat.Clock.NewTicker(watchdogPeriod), w.heartbeat.Clock.NewTicker(reachPeriod)
	defer tick.Stop()
	defer soon.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			w.look(ctx)
		case <-soon.C():
			w.lookAtReach(ctx)
		}
	}
}

func (w *watchdog) look(ctx context.Context) {
	h := w.heartbeat
	if err := w.probe(ctx); err != nil {
		h.pulses.Blind(h.Clock.Now())
		return
	}
	h.pulses.Looked(h.Clock.Now())
	var macs v1alpha1.MacNodeList
	if err := h.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return
	}
	breaker := h.breaker(macs.Items)
	for i := range macs.Items {
		mac := &macs.Items[i]
		before := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
		if _, known := h.pulses.Of(mac.Name, h.Clock.Now()); !known || stands(mac, before, h.judge(mac, breaker)) && !h.reachChanged(mac) {
			continue
		}
		select {
		case h.wake <- event.GenericEvent{Object: mac.DeepCopy()}:
		case <-ctx.Done():
			return
		}
	}
}

// probe sends a minimal request to the API server.
func (w *watchdog) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var one coordinationv1.LeaseList
	return w.heartbeat.Live.List(ctx, &one, client.InNamespace(w.heartbeat.Namespace), client.Limit(1))
}
