package macnode

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Reclaims emits two Events, once, for each reclaim that a Mac reports.
type Reclaims struct {
	Client  client.Client
	Clock   clock.PassiveClock
	Metrics *signal.Metrics

	// told are the ids of the reclaims of each Mac: true once reported, false while an Event has
	// to be tried again.
	told perMac[map[string]bool]
	// holders are the replicas that Macs hold or held.
	holders holders
	// limits bound the Events about the reclaims of each Mac.
	limits notice.Limits
}

// SetupWithManager starts the reconciler with its watch.
func (r *Reclaims) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(e.ObjectOld.(*v1alpha1.MacNode).Status.Reclaims, e.ObjectNew.(*v1alpha1.MacNode).Status.Reclaims)
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-reclaims").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(changed)).
		Watches(&v1alpha1.ModelReplica{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			r.holders.bound(o.(*v1alpha1.ModelReplica))
			return nil
		})).
		Complete(r)
}

// Reconcile emits the missing Events. Reported reclaims are remembered, and the Events have
// names derived from the reclaim, so that a restart repeats nothing.
func (r *Reclaims) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			r.told.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	known, met := r.told.known(mac.Name)
	next := map[string]bool{}
	var failures []error // an Event that one namespace does not accept must not keep the others back
	for i := range mac.Status.Reclaims {
		reclaim := &mac.Status.Reclaims[i]
		outlived := !met && r.Clock.Since(reclaim.Time.Time) > notice.Life
		next[reclaim.ID] = true
		reported, tried := known[reclaim.ID]
		if reported || outlived || !tried && !r.limits.Allow(mac.Name, r.Clock.Now()) {
			continue
		}
		if err := r.emit(ctx, &mac, reclaim); err != nil {
			failures = append(failures, err)
			next[reclaim.ID] = false
		}
	}
	r.told.remember(mac.Name, next)
	return reconcile.Result{}, errors.Join(failures...)
}

// emit creates the Events about the replica, if the Mac held it, and about the Mac. If the
// latter is new, it also counts the reclaim in the metrics. A namespace that refuses the Event
// about its replica, by its quota for example, loses it: it would refuse it again.
func (r *Reclaims) emit(ctx context.Context, mac *v1alpha1.MacNode, reclaim *v1alpha1.Reclaim) error {
	n := notice.Notice{
		ID: reclaim.ID, Reason: "Reclaimed", Message: describe(mac.Name, "engine of "+reclaim.Namespace+"/"+reclaim.Name, reclaim),
		Warning: alarming(reclaim.Reason) || reclaim.HostCheck == v1alpha1.HostCheckStranded,
	}
	var failed error
	if r.holders.held(mac.Name, reclaim) {
		n.About = corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelReplica",
			Namespace: reclaim.Namespace, Name: reclaim.Name, UID: types.UID(reclaim.ReplicaUID)}
		if _, failed = n.Post(ctx, r.Client, r.Clock.Now()); apierrors.IsForbidden(failed) {
			ctrl.LoggerFrom(ctx).Error(failed, "Cannot create an Event", "MacNode", mac.Name, "reclaim", reclaim.ID)
			failed = nil
		}
	}
	n.About, n.Message = notice.Of("MacNode", mac), describe(mac.Name, "engine of replica "+reclaim.ReplicaUID, reclaim) // tenants may read it
	fresh, err := n.Post(ctx, r.Client, r.Clock.Now())
	if fresh {
		r.Metrics.Reclaimed(reclaim)
		ctrl.LoggerFrom(ctx).Info("Engine ended", "MacNode", mac.Name, "reclaim", reclaim.ID, "reason", reclaim.Reason, "freedBytes", ptr.Deref(reclaim.FreedBytes, -1))
	}
	return errors.Join(failed, err)
}

// alarming reports whether a person may have to look into a reason; the others are ordered,
// or models that were loaded and unloaded on demand.
func alarming(r v1alpha1.ReclaimReason) bool {
	switch r {
	case v1alpha1.ReclaimDrained, v1alpha1.ReclaimReplaced, v1alpha1.ReclaimIdle, v1alpha1.ReclaimMadeRoom,
		v1alpha1.ReclaimHeadroom, v1alpha1.ReclaimSoftPressure:
		return false
	}
	return true
}

// describe formats the exact bytes: "freed 159744000 bytes (152.3 MiB) ...", of what, and the
// next step if there is one.
func describe(mac, what string, r *v1alpha1.Reclaim) string {
	freed := "freed an unknown number of bytes"
	if r.FreedBytes != nil {
		freed = fmt.Sprintf("freed %d bytes (%s)", *r.FreedBytes, v1alpha1.FormatBytes(*r.FreedBytes))
	}
	out := fmt.Sprintf("%s on %s: %s, epoch %d, load %d; reason %s, exit %s, host check %s",
		freed, mac, what, r.Epoch, r.Load, r.Reason, r.Exit, r.HostCheck)
	if next := nextStep(r.Reason); next != "" {
		out += "; " + next
	}
	if r.HostCheck == v1alpha1.HostCheckStranded {
		out += "; memory on " + mac + " stays in use that no process owns: see its condition WiredStranded, and reboot the Mac to free it"
	}
	return out
}

// nextStep returns what happens next, or what a person may do; empty: nothing is to be
// done.
func nextStep(reason v1alpha1.ReclaimReason) string {
	switch reason {
	case v1alpha1.ReclaimCrashed:
		return "it restarts after a back-off; see its log in STATE/logs on that Mac"
	case v1alpha1.ReclaimLoadFailed:
		return "see the replica's condition Loaded for the cause"
	case v1alpha1.ReclaimIdle, v1alpha1.ReclaimMadeRoom, v1alpha1.ReclaimHeadroom:
		return "the next request loads it again"
	case v1alpha1.ReclaimSoftPressure, v1alpha1.ReclaimHardPressure:
		return "the next request loads it again once there is room; status.memory of the Mac shows the memory in use"
	case v1alpha1.ReclaimLoadCancelled:
		return "it is loaded again once the memory pressure has ended"
	case v1alpha1.ReclaimEmergency:
		return "check foreignBytes in status.memory of the Mac for the memory of other processes, or lower spec.memory.ceiling"
	case v1alpha1.ReclaimOverLimit:
		return "it used more memory than estimated: raise memory.limit of its deployment, or lower its context"
	}
	return ""
}
