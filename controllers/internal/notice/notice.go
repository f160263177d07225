// Package notice creates Events about the operator's objects.
//
// It owns their format and their names: the same ID about the same object is the same
// Event, regardless of how often and by which process it is created, until the API server
// drops it after Life. It decides nothing: callers report a change after they stored it.
// Events are hints for people, so PostAll logs an error instead of returning it.
//
// Start reading at Notice.
package notice

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Life is how long an API server keeps an Event.
const Life = time.Hour

// Notice is one Event.
type Notice struct {
	About corev1.ObjectReference
	// ID distinguishes the Event from others about the same object.
	ID              string
	Reason, Message string
	Warning         bool
}

// Of names an object for an Event.
func Of(kind string, o client.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// Post creates the Event and reports whether it is new. A namespace that is gone
// or being deleted accepts no Events, which is no error.
func (n Notice) Post(ctx context.Context, c client.Client, now time.Time) (fresh bool, err error) {
	e := n.event(now)
	err = c.Create(ctx, e, client.DisableReadYourWritesConsistency)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil
	default:
		return false, fmt.Errorf("event %s/%s: %w", e.Namespace, e.Name, err)
	}
}

// PostAll posts notices and logs those that the API server refuses.
func PostAll(ctx context.Context, c client.Client, now time.Time, notices ...Notice) {
	for _, n := range notices {
		if _, err := n.Post(ctx, c, now); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot create an Event", "reason", n.Reason, "message", n.Message)
		}
	}
}

func (n Notice) event(now time.Time) *corev1.Event {
	namespace := n.About.Namespace
	if namespace == "" {
		// The namespace for Events about cluster-scoped objects.
		namespace = metav1.NamespaceDefault
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: n.About.Name + "." + fleet.Digest(string(n.About.UID), n.Reason, n.ID)},
		InvolvedObject: n.About,
		Type:           kind,
		Reason:         n.Reason,
		Message:        status.Shorten(n.Message, 1024), // as Events may have
		Source:         corev1.EventSource{Component: "metalfleet-operator"},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}
