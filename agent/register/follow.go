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

// watchSeconds is how long one watch lasts before the object is read again.
const watchSeconds = 300

// readLimit bounds one read.
const readLimit = 10 * time.Second

// errWatchEnded is the ordinary end of a watch.
var errWatchEnded = errors.New("watch ended")

// Object is a pointer to a Kubernetes object of type T.
type Object[T any] interface {
	*T
	client.Object
}

// Follow reads one object and then watches it, by name alone, until ctx ends.
// each is called with every state that was positively read. Errors, a missing
// object and its deletion are logged once and waited out: absence of evidence
// withdraws nothing.
func Follow[T any, P Object[T]](ctx context.Context, c client.WithWatch, list client.ObjectList, key types.NamespacedName, log logr.Logger, each func(P)) error {
	failures := 0
	for {
		err := followOnce(ctx, c, list, key, func(o P) {
			if failures > 0 {
				log.Info("API answers again", "failures", failures)
			}
			failures = 0
			each(o)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := jitter(retryFirst)
		if !errors.Is(err, errWatchEnded) {
			pause = retryPause(failures)
			if failures++; failures == 1 {
				log.Error(err, "What the API says is not known; the last known state holds")
			}
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func followOnce[T any, P Object[T]](ctx context.Context, c client.WithWatch, list client.ObjectList, key types.NamespacedName, each func(P)) error {
	version, err := read(ctx, c, key, each)
	if err != nil {
		return err
	}
	seconds := int64(watchSeconds)
	w, err := c.Watch(ctx, list, &client.ListOptions{
		Namespace: key.Namespace, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name),
		Raw: &metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: &seconds, AllowWatchBookmarks: true},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", key, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified:
			if o, ok := event.Object.(P); ok && o.GetName() == key.Name && o.GetUID() != "" {
				each(o)
			}
		case watch.Deleted:
			return fmt.Errorf("watch %s: it was deleted", key)
		case watch.Error:
			return fmt.Errorf("watch %s: %w", key, apierrors.FromObject(event.Object))
		}
	}
	return errWatchEnded
}

// read gets the object; an answer without identity is no answer.
func read[T any, P Object[T]](ctx context.Context, c client.Client, key types.NamespacedName, each func(P)) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	o := P(new(T))
	if err := c.Get(ctx, key, o); err != nil {
		return "", fmt.Errorf("read %s: %w", key, err)
	}
	if o.GetName() != key.Name || o.GetUID() == "" {
		return "", fmt.Errorf("read %s: the answer has name %q and UID %q", key, o.GetName(), o.GetUID())
	}
	each(o)
	return o.GetResourceVersion(), nil
}
