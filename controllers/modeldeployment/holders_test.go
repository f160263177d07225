package modeldeployment

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// cacheClient reads from the operator's kind of cache, and cannot write.
type cacheClient struct {
	client.Client
	cache cache.Cache
}

func (c cacheClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.cache.Get(ctx, key, o, opts...)
}

func (c cacheClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.cache.List(ctx, list, opts...)
}

// overCache returns a reconciler that reads deployments and replicas of the namespace n from a
// cache with the operator's indexes.
func overCache(t testing.TB, deployments []v1alpha1.ModelDeployment, replicas ...v1alpha1.ModelReplica) *Reconciler {
	t.Helper()
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		scope := meta.RESTScope(meta.RESTScopeNamespace)
		if kind.Kind == "Namespace" || kind.Kind == "MacNode" || kind.Kind == "NamespaceRules" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	c, err := cache.New(&rest.Config{Host: "http://127.0.0.1:1"}, cache.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: http.DefaultClient,
		NewInformer: func(_ toolscache.ListerWatcher, o kruntime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
			source := cachetesting.NewFakeControllerSource()
			switch o.(type) {
			case *v1alpha1.ModelDeployment:
				for i := range deployments {
					source.Add(&deployments[i])
				}
			case *v1alpha1.ModelReplica:
				for i := range replicas {
					source.Add(&replicas[i])
				}
			case *corev1.Namespace:
				source.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			}
			return toolscache.NewSharedIndexInformer(source, o, resync, by)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.AddIndexes(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !c.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache has no objects")
	}
	return &Reconciler{Client: cacheClient{cache: c}, Clock: clocktesting.NewFakePassiveClock(time.Now())}
}

// claimants returns deployments that claim the same 152 names, which the first holds. Each
// has a placement of a number of values.
func claimants(count, values int) []v1alpha1.ModelDeployment {
	out := make([]v1alpha1.ModelDeployment, count)
	for i := range out {
		d := &out[i]
		d.Namespace, d.Name, d.UID = "n", fmt.Sprintf("d%03d", i), types.UID(fmt.Sprint("uid-", i))
		for j := range 8 {
			d.Spec.ServedNames = append(d.Spec.ServedNames, fmt.Sprint("name-", j))
		}
		for j := range 16 {
			d.Spec.Adapters = append(d.Spec.Adapters, v1alpha1.AdapterSpec{Name: fmt.Sprint("a", j), Source: "hf://org/adapter"})
		}
		for range values {
			d.Spec.Placement.Tolerations = append(d.Spec.Placement.Tolerations, v1alpha1.Toleration{Key: "k", Value: strings.Repeat("v", 8)})
		}
	}
	out[0].Status.ServedNames = append(fleet.Claims(&out[0]), "n/d000")
	return out
}

// allocated returns the bytes that f allocates, and those that are left while its result is
// in use.
func allocated(f func() any) (all, left int64) {
	var before, after, collected runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	result := f()
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&collected)
	runtime.KeepAlive(result)
	return int64(after.TotalAlloc - before.TotalAlloc), int64(collected.HeapAlloc) - int64(before.HeapAlloc)
}

// TestAttackManyDeploymentsClaimTheSameNames: a pass over one neither copies the others for
// each of its names nor keeps them.
func TestAttackManyDeploymentsClaimTheSameNames(t *testing.T) {
	for name, tc := range map[string]struct {
		count, values int
		small         bool // the one that is refused
		reason        string
	}{
		"few with a large placement": {count: 10, values: 2_500, reason: v1alpha1.ReasonSpecTooLarge},
		"a small one among them":     {count: 10, values: 2_500, small: true, reason: v1alpha1.ReasonNameConflict},
		"many small ones":            {count: 200, reason: v1alpha1.ReasonNameConflict},
	} {
		t.Run(name, func(t *testing.T) {
			deployments := claimants(tc.count, tc.values)
			refused := &deployments[tc.count-1]
			if tc.small {
				refused.Spec.Placement = v1alpha1.PlacementSpec{}
			}
			r := overCache(t, deployments)
			var s *scope
			all, left := allocated(func() any {
				var err error
				if s, err = r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(refused)}); err != nil {
					t.Fatal(err)
				}
				return s
			})
			if v := accept(s); v.condition.Reason != tc.reason || len(v.names) != 1 {
				t.Errorf("accepted: %s with the names %v, want %s", v.condition.Reason, v.names, tc.reason)
			}
			if all > 4<<20 || left > 1<<20 {
				t.Errorf("a pass allocates %d KiB and keeps %d KiB", all>>10, left>>10)
			}
			var again []reconcile.Request
			all, left = allocated(func() any { again = r.rivals(t.Context(), deployments[0].UID, namesOf(&deployments[0])); return again })
			if len(again) != tc.count-1 || len(r.rivals(t.Context(), refused.UID, namesOf(refused))) != 0 {
				t.Errorf("a change of the holder concerns %d, want all %d others, each once, and one of a refused deployment none", len(again), tc.count-1)
			}
			if all > 16<<20 || left > 1<<20 {
				t.Errorf("finding the others allocates %d KiB and keeps %d KiB", all>>10, left>>10)
			}
		})
	}
}

// A new spec that is too large takes no name, but what was accepted before still serves.
func TestALargeSpecKeepsTheNamesThatItsRevisionServes(t *testing.T) {
	deployments := claimants(2, 2_500)
	deployments[1].Status.ServedNames = []string{"name-0", "name-1", "n/d001"}
	deployments[0].Status.ServedNames = []string{"name-0", "n/d000"} // both accepted in one moment: the older keeps it
	r := overCache(t, deployments)
	for i, want := range [][]string{{"name-0", "n/d000"}, {"name-1", "n/d001"}} {
		s, err := r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&deployments[i])})
		if err != nil {
			t.Fatal(err)
		}
		s.revisions = []revision{{}}
		if v := accept(s); v.condition.Reason != v1alpha1.ReasonSpecTooLarge || !slices.Equal(v.names, want) {
			t.Errorf("%s: %s with the names %v, want %v", s.deployment.Name, v.condition.Reason, v.names, want)
		}
	}
}
