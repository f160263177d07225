package register

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchSeconds is how long one watch lasts before the server ends it.
const watchSeconds = 300

// settled is how long a watch must last before what failed earlier is forgotten.
const settled = 5 * time.Second

// errWatchEnded is the ordinary end of a watch.
var errWatchEnded = errors.New("watch ended")

// Object is a pointer to a Kubernetes object of type T.
type Object[T any] interface {
	*T
	client.Object
}

// Follow watches one object, by name alone, until ctx ends. each is called with
// every state that was positively read. Errors, a missing object and its
// deletion are logged once and waited out: absence of evidence withdraws
// nothing.
//
// There is neither a list nor a read before the watch. A watch without a
// version begins with the state of now; one from an object's own version would
// be refused for ever by a server that started after that version.
func Follow[T any, P Object[T]](ctx context.Context, c client.WithWatch, list client.ObjectList, key types.NamespacedName, log logr.Logger, each func(P)) error {
	failures := 0
	for {
		began, spoke := time.Now(), false
		err := watchOnce(ctx, c, list, key, func(o P) {
			if failures > 0 && !spoke {
				log.Info("The API server answers again", "failures", failures)
			}
			spoke = true
			each(o)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) >= settled {
			failures = 0
		}
		pause := jitter(retryFirst)
		if !errors.Is(err, errWatchEnded) {
			pause = retryPause(failures)
			if failures++; failures == 1 {
				log.Error(err, "Cannot read the state from the API server; keeping the last known state")
			}
		}
		if !Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// watchOnce follows one watch to its end.
func watchOnce[T any, P Object[T]](ctx context.Context, c client.WithWatch, list client.ObjectList, key types.NamespacedName, each func(P)) error {
	seconds := int64(watchSeconds)
	ctx, cancel := context.WithTimeout(ctx, (watchSeconds+60)*time.Second) // a server that hangs
	defer cancel()
	w, err := c.Watch(ctx, list, &client.ListOptions{
		Namespace: key.Namespace, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name),
		Raw: &metav1.ListOptions{TimeoutSeconds: &seconds},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", key, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified:
			// An answer without identity is no answer.
			if o, ok := event.Object.(P); ok && o.GetName() == key.Name && o.GetUID() != "" {
				each(o)
			}
		case watch.Deleted:
			return fmt.Errorf("watch %s: the object was deleted", key)
		case watch.Error:
			return fmt.Errorf("watch %s: %w", key, apierrors.FromObject(event.Object))
		}
	}
	return errWatchEnded
}
