package controllers_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// outage holds back watch events of one resource, and then refuses to resume the watch, as an API server
// does that was restarted.
type outage struct {
	http.RoundTripper
	resource string
	mu       sync.Mutex
	held     bool
	closed   chan struct{}
	expired  bool
}

func (o *outage) RoundTrip(r *http.Request) (*http.Response, error) {
	watch := strings.HasSuffix(r.URL.Path, "/"+o.resource) && r.URL.Query().Get("watch") != ""
	if !watch {
		return o.RoundTripper.RoundTrip(r)
	}
	initial := r.URL.Query().Get("sendInitialEvents") != ""
	o.mu.Lock()
	expired := o.expired && !initial
	if expired {
		o.expired = false
	}
	o.mu.Unlock()
	if expired {
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`
		return &http.Response{StatusCode: http.StatusGone, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	}
	resp, err := o.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &heldBody{ReadCloser: resp.Body, o: o}
	}
	return resp, err
}

type heldBody struct {
	io.ReadCloser
	o *outage
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.o.mu.Lock()
	held, closed := b.o.held, b.o.closed
	b.o.mu.Unlock()
	if held {
		<-closed
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestTheOperatorEndsIfItsCacheNeverShowsAWrite: reads of the kind would wait for good.
func TestTheOperatorEndsIfItsCacheNeverShowsAWrite(t *testing.T) {
	cl := newCluster(t)
	o := &outage{resource: "namespacerules", closed: make(chan struct{})}
	config := asOperator()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { o.RoundTripper = rt; return o })
	opts := controllers.ManagerOptions(system)
	opts.Metrics = metricsserver.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(config, opts)
	cl.must(err)
	c := mgr.GetClient()
	cl.must(mgr.Add(&controllers.CatchUp{Client: c, Every: 10 * time.Millisecond, Patience: time.Second}))
	ctx, cancel := context.WithTimeout(cl.ctx, patience.Of(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	rules := &v1alpha1.NamespaceRules{ObjectMeta: metav1.ObjectMeta{Name: "metalfleet"}}
	cl.must(cl.c.Create(cl.ctx, rules))
	cl.must(c.List(ctx, &v1alpha1.NamespaceRulesList{}))
	o.mu.Lock()
	o.held = true
	o.mu.Unlock()
	before := rules.DeepCopy()
	rules.Status.ObservedGeneration = 7
	cl.must(c.Status().Patch(ctx, rules, client.MergeFrom(before)))
	cl.must(cl.c.Delete(cl.ctx, rules))
	o.mu.Lock()
	o.held, o.expired = false, true
	o.mu.Unlock()
	close(o.closed)
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the manager ended with %v (%v), want an error about the cache", err, ctx.Err())
	}
}

// TestEachWrittenKindIsChecked: those that the operator's roles let it write and watch.
func TestEachWrittenKindIsChecked(t *testing.T) {
	cl := newCluster(t)
	var checked []string
	for _, list := range controllers.Written() {
		gvk, err := apiutil.GVKForObject(list, cl.c.Scheme())
		cl.must(err)
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
		mapping, err := cl.c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		cl.must(err)
		checked = append(checked, mapping.Resource.Resource)
	}
	dir, err := testenv.RBACDir()
	cl.must(err)
	raw, err := os.ReadFile(filepath.Join(dir, "role.yaml"))
	cl.must(err)
	for doc := range strings.SplitSeq(string(raw), "\n---\n") {
		var role rbacv1.ClusterRole
		cl.must(yaml.Unmarshal([]byte(doc), &role))
		for _, rule := range role.Rules {
			writes := slices.ContainsFunc(rule.Verbs, func(v string) bool { return v == "create" || v == "patch" || v == "update" || v == "delete" })
			for _, r := range rule.Resources {
				r, sub, _ := strings.Cut(r, "/")
				if (writes && slices.Contains(rule.Verbs, "watch") || sub == "status") && r != "namespaces" && !slices.Contains(checked, r) {
					t.Errorf("%s is not checked", r)
				}
			}
		}
	}
}
