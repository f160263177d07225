package watched

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// lists is an API server that streams no lists. Each of its namespaces has deployments with 1.3 MB
// of made-up managedFields. As the real one it ignores the limit at resource version 0.
type lists struct {
	*testing.T
	objects     int
	transformed atomic.Int64 // by the cache

	open, mostOpen, most, kept atomic.Int64 // bytes of answers
}

func (l *lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	if q.Get("watch") != "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	number := func(of string) int {
		n, err := strconv.Atoi(q.Get(of))
		if q.Get(of) != "" && err != nil {
			l.Error(err)
		}
		return n
	}
	from, limit := number("continue"), number("limit")
	if limit == 0 || q.Get("resourceVersion") == "0" {
		limit = l.objects
	}
	if now := l.transformed.Load(); now < int64(from) {
		l.kept.Store(int64(from) - now)
	}
	out := v1alpha1.ModelDeploymentList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelDeploymentList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	fields := metav1.NewFieldsV1(`{"f:` + strings.Repeat("x", 1_300_000) + `":{}}`)
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
	for i := from; i < min(from+limit, l.objects); i++ {
		out.Items = append(out.Items, v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: path[:1], Name: fmt.Sprint("d", i), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: fields}}}})
	}
	if from+limit < l.objects {
		out.Continue = strconv.Itoa(from + limit)
	}
	_ = json.NewEncoder(w).Encode(out) // the client may have enough
}

// count is of the bytes that the client has of an answer.
func (l *lists) count(by http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		out, err := by.RoundTrip(r)
		if err == nil {
			out.Body = &counted{ReadCloser: out.Body, of: l}
		}
		return out, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type counted struct {
	io.ReadCloser
	of *lists
	n  int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n += int64(n)
	c.of.most.Store(max(c.of.most.Load(), c.n))
	c.of.mostOpen.Store(max(c.of.mostOpen.Load(), c.of.open.Add(int64(n))))
	return n, err
}

func (c *counted) Close() error {
	c.of.open.Add(-c.n)
	c.n = 0
	return c.ReadCloser.Close()
}

// TestAListIsReadInPages: managedFields of any size are in memory for a page at a time, however many
// objects have them. A gateway that lists them at once would end at its limit of memory at each start.
func TestAListIsReadInPages(t *testing.T) {
	t.Parallel() // informers pause between their attempts
	l := &lists{T: t, objects: 14}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	for _, kind := range []string{"ModelDeployment", "ModelDeploymentList"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	transform := func(in any) (any, error) {
		if d := in.(*v1alpha1.ModelDeployment); d.ManagedFields != nil {
			d.ManagedFields = nil
			l.transformed.Add(1)
		}
		return in, nil
	}
	c, err := NewCache(&rest.Config{Host: server.URL, QPS: -1, WrapTransport: l.count}, cache.Options{Scheme: scheme, Mapper: mapper, ByObject: map[client.Object]cache.ByObject{
		&v1alpha1.ModelDeployment{}: {Namespaces: map[string]cache.Config{"a": {}, "b": {}}, Transform: transform},
	}})
	if err != nil {
		t.Fatal(err)
	}
	informer, err := c.GetInformer(t.Context(), &v1alpha1.ModelDeployment{}, cache.BlockUntilSynced(false))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Start(t.Context()) }()
	within(t, 2*time.Minute, true, "ready", informer.HasSynced)
	var have v1alpha1.ModelDeploymentList
	if err := c.List(t.Context(), &have); err != nil || len(have.Items) != 2*l.objects {
		t.Errorf("the cache has %d objects of %d (%v)", len(have.Items), 2*l.objects, err)
	}
	const bound = maxPage + 1
	if most, open := l.most.Load(), l.mostOpen.Load(); most > bound || open > bound {
		t.Errorf("an answer has %d bytes, and those of the cache together %d; want at most %d", most, open, bound)
	}
	if n := l.kept.Load(); n > 0 {
		t.Errorf("%d objects of earlier pages were not transformed when the next was read", n)
	}
	t.Logf("an answer has at most %d bytes, those of the cache together %d", l.most.Load(), l.mostOpen.Load())
}
