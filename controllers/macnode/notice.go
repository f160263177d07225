package macnode

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// eventLife is how long an API server keeps an Event. What is older than that
// is not told again by a process that meets the Mac for the first time.
const eventLife = time.Hour

// notice is something to tell as an Event. The same id about the same object is
// the same Event, whoever posts it and however often.
type notice struct {
	id              string
	reason, message string
	warning         bool
	now             time.Time
}

// referenceTo is how an Event names a Mac.
func referenceTo(mac *v1alpha1.MacNode) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MacNode", Name: mac.Name, UID: mac.UID}
}

// post creates the Event and says whether it is new. A namespace that ends or
// is gone takes no Events, and nobody is left there to read them.
func (n notice) post(ctx context.Context, c client.Client, mac string, about corev1.ObjectReference) (fresh bool, err error) {
	e := n.event(mac, about)
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

func (n notice) event(mac string, about corev1.ObjectReference) *corev1.Event {
	namespace := about.Namespace
	if namespace == "" {
		// Where Events of cluster-scoped objects go.
		namespace = metav1.NamespaceDefault
	}
	kind := corev1.EventTypeNormal
	if n.warning {
		kind = corev1.EventTypeWarning
	}
	now := metav1.NewTime(n.now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: about.Name + "." + fleet.Digest(mac, n.id)},
		InvolvedObject: about,
		Type:           kind,
		Reason:         n.reason,
		Message:        bounded(n.message),
		Source:         corev1.EventSource{Component: "metalfleet-operator"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// bounded fits a message into an Event.
func bounded(s string) string {
	const most = 1024
	if len(s) <= most {
		return s
	}
	return s[:most-3] + "..."
}
