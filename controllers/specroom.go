package controllers

import (
	"crypto/rand"
	"runtime"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// specRoom bounds the deployments of each namespace, and of all, in the cache. The first that come
// have the room, also after a restart. A spec leaves it with its object, once that is out of memory.
type specRoom struct {
	// mark is of the objects that slim has seen.
	mark string

	mu    sync.Mutex
	of    map[string]*specsOf // by namespace, guarded by mu
	bytes int                 // of all namespaces, guarded by mu
	// last is the number of the last version that took room, guarded by mu.
	last uint64
}

func newSpecRoom() *specRoom { return &specRoom{mark: rand.Text()} }

// specsOf has the specs of a namespace that take room.
type specsOf struct {
	bytes int
	of    map[types.UID]taken
}

// taken is the room of the latest version of a deployment.
type taken struct {
	bytes   int
	version uint64
}

// version of a deployment in the cache; later ones have greater numbers.
type version struct {
	namespace string
	uid       types.UID
	number    uint64
}

// slim drops what the operator never reads of an object before the cache keeps it: tenants may
// write as much metadata and as long specs as etcd stores, and a revision repeats its spec for
// the plugin. Writes are patches and applies of single fields, so that nothing dropped is removed.
func (r *specRoom) slim(in any) (any, error) {
	switch o := in.(type) {
	case *v1alpha1.ModelDeployment:
		fleet.Compact(o, r.mark, func(bytes int) bool { return r.take(o, bytes) })
	case *appsv1.ControllerRevision:
		o.Annotations, o.Finalizers = nil, nil
	}
	return bare(in)
}

// take replaces what the last version of a deployment takes. It returns false if there is no
// room for this one, which then takes none.
func (r *specRoom) take(d *v1alpha1.ModelDeployment, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs := r.of[d.Namespace]
	if specs == nil {
		specs = &specsOf{of: map[types.UID]taken{}}
	}
	r.give(d.Namespace, d.UID)
	if specs.bytes+bytes > fleet.SpecsRoom.Of(r.bytes-specs.bytes) {
		return false
	}
	if r.of == nil {
		r.of = map[string]*specsOf{}
	}
	r.last++
	now := version{d.Namespace, d.UID, r.last}
	r.of[d.Namespace], specs.of[d.UID] = specs, taken{bytes, now.number}
	specs.bytes += bytes
	r.bytes += bytes
	runtime.AddCleanup(d, r.leave, now)
	return true
}

// leave frees the room of a deployment if that version is its latest.
func (r *specRoom) leave(v version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if specs := r.of[v.namespace]; specs != nil && specs.of[v.uid].version == v.number {
		r.give(v.namespace, v.uid)
	}
}

// give frees what a deployment takes. The room must be locked.
func (r *specRoom) give(namespace string, uid types.UID) {
	specs := r.of[namespace]
	if specs == nil {
		return
	}
	specs.bytes -= specs.of[uid].bytes
	r.bytes -= specs.of[uid].bytes
	if delete(specs.of, uid); len(specs.of) == 0 {
		delete(r.of, namespace)
	}
}
