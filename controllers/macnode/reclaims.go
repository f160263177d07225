package macnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// eventLife is how long an API server keeps an Event. A reclaim older than that
// is not told again by a process that meets the Mac for the first time.
const eventLife = time.Hour

// Reclaims tells each reclaim that a Mac reports as two Events, once.
type Reclaims struct {
	Client  client.Client
	Clock   clock.PassiveClock
	Metrics *signal.Metrics

	mu sync.Mutex
	// told are the reclaims that need no look any more, by Mac and id; guarded by mu.
	told map[string]map[string]bool
}

// SetupWithManager starts the reconciler with its watch.
func (r *Reclaims) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(e.ObjectOld.(*v1alpha1.MacNode).Status.Reclaims, e.ObjectNew.(*v1alpha1.MacNode).Status.Reclaims)
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-reclaims").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(changed)).
		Complete(r)
}

// Reconcile tells what was not told yet. What is told is remembered, and the
// Events have names made from the reclaim, so that a restart repeats nothing.
func (r *Reclaims) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	known, met := r.known(mac.Name)
	next := map[string]bool{}
	for i := range mac.Status.Reclaims {
		reclaim := &mac.Status.Reclaims[i]
		outlived := !met && r.Clock.Since(reclaim.Time.Time) > eventLife
		if !known[reclaim.ID] && !outlived {
			if err := r.tell(ctx, &mac, reclaim); err != nil {
				return reconcile.Result{}, err
			}
		}
		next[reclaim.ID] = true
	}
	r.remember(mac.Name, next)
	return reconcile.Result{}, nil
}

func (r *Reclaims) known(mac string) (map[string]bool, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, met := r.told[mac]
	return known, met
}

func (r *Reclaims) remember(mac string, told map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = map[string]map[string]bool{}
	}
	r.told[mac] = told
}

func (r *Reclaims) forget(mac string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, mac)
}

// tell writes the Event of the Mac and the one of the replica. The first of
// them to be new counts the reclaim in the metrics.
func (r *Reclaims) tell(ctx context.Context, mac *v1alpha1.MacNode, reclaim *v1alpha1.Reclaim) error {
	ofReplica := r.event(mac, reclaim, corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelReplica",
		Namespace: reclaim.Namespace, Name: reclaim.Name, UID: types.UID(reclaim.ReplicaUID)})
	if _, err := r.create(ctx, ofReplica); err != nil {
		return err
	}
	ofMac := r.event(mac, reclaim, corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MacNode",
		Name: mac.Name, UID: mac.UID})
	fresh, err := r.create(ctx, ofMac)
	if err != nil {
		return err
	}
	if fresh {
		r.Metrics.Reclaimed(reclaim)
		ctrl.LoggerFrom(ctx).Info("Engine gone", "MacNode", mac.Name, "reclaim", reclaim.ID, "reason", reclaim.Reason, "freedBytes", ptr.Deref(reclaim.FreedBytes, -1))
	}
	return nil
}

// create says whether the Event is new. A namespace that ends or is gone takes
// no Events, and nobody is left there to read them.
func (r *Reclaims) create(ctx context.Context, e *corev1.Event) (fresh bool, err error) {
	err = r.Client.Create(ctx, e, client.DisableReadYourWritesConsistency)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil
	default:
		return false, fmt.Errorf("event %s/%s: %w", e.Namespace, e.Name, err)
	}
}

func (r *Reclaims) event(mac *v1alpha1.MacNode, reclaim *v1alpha1.Reclaim, about corev1.ObjectReference) *corev1.Event {
	namespace := about.Namespace
	if namespace == "" {
		// Where Events of cluster-scoped objects go.
		namespace = metav1.NamespaceDefault
	}
	kind := corev1.EventTypeNormal
	if reclaim.Reason != v1alpha1.ReclaimDrained && reclaim.Reason != v1alpha1.ReclaimReplaced || reclaim.HostCheck == v1alpha1.HostCheckStranded {
		kind = corev1.EventTypeWarning
	}
	now := metav1.NewTime(r.Clock.Now())
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: about.Name + "." + fleet.Digest(mac.Name, reclaim.ID)},
		InvolvedObject: about,
		Type:           kind,
		Reason:         "Reclaimed",
		Message:        describe(mac.Name, reclaim),
		Source:         corev1.EventSource{Component: "metalfleet-operator"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// describe writes the exact bytes: "freed 159744000 bytes (152.3 MiB) ...".
func describe(mac string, r *v1alpha1.Reclaim) string {
	freed := "freed an unknown number of bytes"
	if r.FreedBytes != nil {
		freed = fmt.Sprintf("freed %d bytes (%s)", *r.FreedBytes, v1alpha1.FormatBytes(*r.FreedBytes))
	}
	return fmt.Sprintf("%s on %s: engine of %s/%s, epoch %d, load %d; reason %s, exit %s, host check %s",
		freed, mac, r.Namespace, r.Name, r.Epoch, r.Load, r.Reason, r.Exit, r.HostCheck)
}
