package watched

import (
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
)

const (
	// maxPage is how many bytes of a list the cache has in memory before it is decoded and transformed.
	// An object has at most about 1.5 MB.
	maxPage = 16 << 20
	// maxObjects of a page, fewer where they are large.
	maxObjects = 500
)

var errLargePage = errors.New("a page of a list has more than 16 MiB; it is listed again with fewer objects")

// pages list the objects of one kind, of which tenants may make up metadata as large as etcd stores.
// Each page is transformed before the next is read, and one page is read at a time.
type pages struct {
	all       toolscache.ListerWatcherWithContext
	turn      chan struct{} // of all informers of a cache
	transform toolscache.TransformFunc
}

// list returns all objects. The API server ignores the limit of lists at resource version 0.
func (p *pages) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", maxObjects
	all := pager.ListPager{PageFn: func(ctx context.Context, next metav1.ListOptions) (runtime.Object, error) {
		next.Limit = o.Limit
		out, err := p.page(ctx, &next)
		o.Limit = next.Limit
		return out, err
	}}
	out, _, err := all.List(ctx, o)
	return out, err
}

// page lowers the limit until a page is small enough.
func (p *pages) page(ctx context.Context, o *metav1.ListOptions) (runtime.Object, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out, err := p.all.ListWithContext(ctx, *o)
	for errors.Is(err, errLargePage) && o.Limit > 1 {
		o.Limit /= 2
		out, err = p.all.ListWithContext(ctx, *o)
	}
	if err != nil || p.transform == nil {
		return out, err
	}
	return out, meta.EachListItem(out, func(in runtime.Object) error {
		_, err := p.transform(in) // in place, as that of all caches here
		return err
	})
}

// informer transforms the pages of its lists.
type informer struct {
	toolscache.SharedIndexInformer
	list *lister
}

func (i *informer) SetTransform(f toolscache.TransformFunc) error {
	i.list.transform = f
	return i.SharedIndexInformer.SetTransform(f)
}

// page is the body of an answer.
type page struct {
	io.ReadCloser
	left int
}

func (p *page) Read(b []byte) (int, error) {
	if p.left < 0 {
		return 0, errLargePage
	}
	n, err := p.ReadCloser.Read(b[:min(len(b), p.left+1)])
	if p.left -= n; p.left < 0 {
		return 0, errLargePage
	}
	return n, err
}
