// Package watched makes the cache of a program that may read models in some namespaces only.
//
// It owns what happens when one of these namespaces is deleted, and the program's RoleBinding with
// it: what may no longer be listed there counts as empty, and is listed again until the namespace is
// back. A refusal in a namespace that is in use remains an error, as its models may still run.
//
// It also bounds the memory of lists, for API servers that do not stream them: lists come in pages.
//
// Start reading at NewCache.
package watched

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// NewCache returns a cache whose informers become ready although some of these namespaces do not
// exist, or are being deleted.
func NewCache(config *rest.Config, o cache.Options, watched ...string) (cache.Cache, error) {
	if o.HTTPClient == nil {
		var err error
		if o.HTTPClient, err = rest.HTTPClientFor(config); err != nil {
			return nil, fmt.Errorf("client for the API server: %w", err)
		}
	}
	client, err := core.NewForConfigAndClient(config, o.HTTPClient)
	if err != nil {
		return nil, fmt.Errorf("client for namespaces: %w", err)
	}
	named := *o.HTTPClient
	if named.Transport == nil {
		named.Transport = http.DefaultTransport
	}
	named.Transport = transport{named.Transport}
	o.HTTPClient = &named
	turn := make(chan struct{}, 1)
	o.NewInformer = func(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		all := toolscache.ToListerWatcherWithContext(from)
		l := &lister{pages: pages{all: all, turn: turn}, namespaces: client.Namespaces(), watched: watched, kind: fmt.Sprintf("%T", object)}
		return &informer{toolscache.NewSharedIndexInformer(&toolscache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: all.WatchWithContext}, object, resync, by), l}
	}
	return cache.New(config, o)
}

// lister lists the objects of one kind in one namespace, or in all.
type lister struct {
	pages
	namespaces core.NamespaceInterface
	watched    []string
	kind       string
	skipped    bool // at the last list
}

// list returns no objects of a namespace that is gone. The watch that follows is refused, so that the
// informer lists again after its backoff, of at most a minute.
func (l *lister) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	var namespace string
	out, err := l.pages.list(context.WithValue(ctx, namespaceKey{}, &namespace), o)
	skipped := apierrors.IsForbidden(err) && slices.Contains(l.watched, namespace) && l.gone(ctx, namespace)
	if log := klog.FromContext(ctx).WithValues("namespace", namespace, "kind", l.kind); skipped != l.skipped {
		if skipped {
			log.Info("A watched namespace is skipped: it does not exist, or is being deleted")
		} else {
			log.Info("A watched namespace is read again")
		}
	}
	if l.skipped = skipped; skipped {
		return &metav1.List{}, nil
	}
	return out, err
}

// gone reports whether a namespace does not exist or is being deleted; false if that is not known.
func (l *lister) gone(ctx context.Context, name string) bool {
	namespace, err := l.namespaces.Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && !namespace.DeletionTimestamp.IsZero()
}

type namespaceKey struct{}

// transport notes the namespace of a list in its context, as an informer does not name its own, and
// bounds the answer.
type transport struct{ http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	into, ok := r.Context().Value(namespaceKey{}).(*string)
	if ok {
		_, rest, _ := strings.Cut(r.URL.Path, "/namespaces/")
		*into, _, _ = strings.Cut(rest, "/")
	}
	out, err := t.RoundTripper.RoundTrip(r)
	if ok && err == nil && out.Body != nil {
		out.Body = &page{ReadCloser: out.Body, left: maxPage}
	}
	return out, err
}
