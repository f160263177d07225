package watched

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// standing is what the API server has of the namespace "b".
type standing int32

const (
	missing standing = iota
	terminating
	unbound // it is in use, but the program may list nothing in it
	bound
)

// apiServer has one deployment in each of the namespaces "a" and "b", and answers no watch.
func apiServer(t *testing.T, b *atomic.Int32) *rest.Config {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var out any
		refuse := func(code int32, reason metav1.StatusReason) {
			w.WriteHeader(int(code))
			out = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: r.URL.Path}
		}
		w.Header().Set("Content-Type", "application/json")
		now := standing(b.Load())
		switch _, path, _ := strings.Cut(r.URL.Path, "/namespaces/"); {
		case path == "b" && now == missing:
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		case path == "b":
			ns := corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "b"}}
			if now == terminating {
				ns.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			}
			out = ns
		case strings.HasPrefix(path, "b/") && now != bound:
			refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
		case r.URL.Query().Get("watch") != "":
			refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
		default:
			out = v1alpha1.ModelDeploymentList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelDeploymentList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
				Items: []v1alpha1.ModelDeployment{{ObjectMeta: metav1.ObjectMeta{Namespace: path[:1], Name: "d"}}}}
		}
		if err := json.NewEncoder(w).Encode(out); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, QPS: -1}
}

// namesIn returns the deployments in the cache, or why it has none.
func namesIn(t *testing.T, c cache.Cache) string {
	var list v1alpha1.ModelDeploymentList
	if err := c.List(t.Context(), &list); err != nil {
		return err.Error()
	}
	namespaces := map[string]bool{}
	for _, d := range list.Items {
		namespaces[d.Namespace] = true
	}
	return fmt.Sprint(namespaces)
}

func TestANamespaceThatIsGoneIsSkippedUntilItIsBack(t *testing.T) {
	for name, tc := range map[string]struct {
		is   standing
		want bool
	}{
		"it does not exist":  {missing, true},
		"it terminates":      {terminating, true},
		"it is in use":       {unbound, false},
		"it is in use again": {bound, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // informers pause between their attempts
			var b atomic.Int32
			b.Store(int32(tc.is))
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
			for _, kind := range []string{"ModelDeployment", "ModelDeploymentList"} {
				mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
			}
			c, err := NewCache(apiServer(t, &b), cache.Options{Scheme: scheme, Mapper: mapper, ByObject: map[client.Object]cache.ByObject{
				&v1alpha1.ModelDeployment{}: {Namespaces: map[string]cache.Config{"a": {}, "b": {}}},
			}}, "a", "b")
			if err != nil {
				t.Fatal(err)
			}
			informer, err := c.GetInformer(t.Context(), &v1alpha1.ModelDeployment{}, cache.BlockUntilSynced(false))
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = c.Start(t.Context()) }()
			if !tc.want {
				within(t, 3*time.Second, false, "ready", informer.HasSynced)
				return
			}
			within(t, 2*time.Minute, true, "ready", informer.HasSynced)
			b.Store(int32(bound))
			within(t, 2*time.Minute, true, "read", func() bool { return namesIn(t, c) == "map[a:true b:true]" })
			b.Store(int32(missing))
			within(t, 2*time.Minute, true, "skipped again", func() bool { return namesIn(t, c) == "map[a:true]" })
		})
	}
}

// within requires that something becomes true in time, or that it does not.
func within(t *testing.T, limit time.Duration, want bool, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if is() {
			if !want {
				t.Errorf("it is %s", what)
			}
			return
		}
	}
	if want {
		t.Fatalf("it is not %s within %v", what, limit)
	}
}
