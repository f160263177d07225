package keda

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
)

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// figures by the name of a deployment; an error means that they are incomplete.
type figures map[string]struct {
	f    demand.Figures
	part string
}

func (f figures) of(_ context.Context, of types.NamespacedName) (demand.Figures, string, error) {
	if of.Namespace != "ns" {
		return demand.Figures{}, "", errors.New("asked for " + of.String())
	}
	return f[of.Name].f, f[of.Name].part, nil
}

// source has some deployments in namespace ns; "own" has spec.autoscaling.
func source(t testing.TB, f figures) *external.Source {
	t.Helper()
	b := fake.NewClientBuilder().WithScheme(scheme(t))
	for _, name := range []string{"chat", "code", "part", "idle", "late", "own", "dims"} {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		d.Spec.Context.MaxConcurrentRequests = 6
		switch name {
		case "own":
			d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
		case "dims":
			d.Spec.Context.MaxConcurrentRequests = 0
		}
		b = b.WithObjects(d)
	}
	return &external.Source{Client: b.Build(), Figures: f.of, Now: time.Now}
}

func scaler(t testing.TB) *Scaler {
	t.Helper()
	return &Scaler{Clock: clock.RealClock{}, Source: source(t, figures{
		"chat": {f: demand.Figures{Running: 3, Waiting: 4, Oldest: 1500 * time.Millisecond}},
		"code": {f: demand.Figures{Running: 9}, part: "1 of 2 gateways have stopped reporting"},
		"part": {part: "1 of 2 gateways have stopped reporting"},
		"late": {f: demand.Figures{Asked: time.Now().Add(-30 * time.Second)}},
		"idle": {f: demand.Figures{Asked: time.Now().Add(-2 * time.Minute)}},
	})}
}

// asks returns a trigger with metadata: alternating keys and values.
func asks(namespace string, words ...string) *externalscaler.ScaledObjectRef {
	ref := &externalscaler.ScaledObjectRef{Name: "object", Namespace: namespace, ScalerMetadata: map[string]string{"scalerAddress": "operator:9443", "enableTLS": "true"}}
	for i := 0; i < len(words); i += 2 {
		ref.ScalerMetadata[words[i]] = words[i+1]
	}
	return ref
}

// The figures equal those of external metrics, to the thousandth.
func TestKEDAGetsTheFiguresOfAnHPA(t *testing.T) {
	s := scaler(t)
	hpa := &external.Handler{Source: *s.Source, Log: logr.Discard(),
		Allow: func(*http.Request) (external.Caller, error) { return external.Caller{}, nil },
		May:   func(context.Context, external.Caller, string, string) error { return nil }}
	for _, metric := range external.Names() {
		w := httptest.NewRecorder()
		hpa.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/"+metric+"?labelSelector=deployment%3Dchat", nil))
		var list metrics.ExternalMetricValueList
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) != 1 {
			t.Fatal(w.Body.String(), err)
		}
		got, err := s.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: asks("ns", keyDeployment, "chat", keyMetric, metric, keyTarget, "1"), MetricName: metric})
		if err != nil || len(got.MetricValues) != 1 {
			t.Fatal(got, err)
		}
		value, want := got.MetricValues[0], list.Items[0].Value
		if want.IsZero() || value.MetricName != metric || value.MetricValueFloat != want.AsApproximateFloat64() || value.MetricValue != want.Value() {
			t.Errorf("KEDA gets %v, an HPA %s", value, want.String())
		}
	}
}

func TestATriggerSaysWhatOneReplicaIsFor(t *testing.T) {
	s := scaler(t)
	for name, c := range map[string]struct {
		words  []string
		metric string
		target float64
		whole  int64
	}{
		"nothing":        {metric: external.Requests, target: 6, whole: 6},
		"a target":       {words: []string{keyTarget, "4"}, metric: external.Requests, target: 4, whole: 4},
		"a part of one":  {words: []string{keyTarget, "2.5"}, metric: external.Requests, target: 2.5, whole: 3},
		"another metric": {words: []string{keyMetric, external.QueueSeconds, keyTarget, "15"}, metric: external.QueueSeconds, target: 15, whole: 15},
	} {
		got, err := s.GetMetricSpec(t.Context(), asks("ns", append(c.words, keyDeployment, "chat")...))
		if err != nil || len(got.MetricSpecs) != 1 {
			t.Fatal(name, got, err)
		}
		if m := got.MetricSpecs[0]; m.MetricName != c.metric || m.TargetSizeFloat != c.target || m.TargetSize != c.whole {
			t.Errorf("%s: %v", name, m)
		}
	}
}

// Invalid or forbidden triggers are rejected with a message in KEDA's log.
func TestInvalidTriggersAreRejected(t *testing.T) {
	s := scaler(t)
	for name, c := range map[string]struct {
		ref  *externalscaler.ScaledObjectRef
		code codes.Code
		says string
	}{
		"no deployment":     {ref: asks("ns"), code: codes.InvalidArgument, says: "has no deployment"},
		"no namespace":      {ref: asks("", keyDeployment, "chat"), code: codes.InvalidArgument, says: "no namespace"},
		"nothing at all":    {code: codes.InvalidArgument, says: "no namespace"},
		"a misspelt name":   {ref: asks("ns", keyDeployment, "chta"), code: codes.NotFound, says: `no ModelDeployment "chta"`},
		"another namespace": {ref: asks("other", keyDeployment, "chat"), code: codes.NotFound, says: "namespace other"},
		"a misspelt word":   {ref: asks("ns", keyDeployment, "chat", "tagret", "4"), code: codes.InvalidArgument, says: "unknown key tagret"},
		"no such metric":    {ref: asks("ns", keyDeployment, "chat", keyMetric, "requests"), code: codes.InvalidArgument, says: external.QueueSeconds},
		"no number":         {ref: asks("ns", keyDeployment, "chat", keyTarget, "four"), code: codes.InvalidArgument, says: "want a number"},
		"no real number":    {ref: asks("ns", keyDeployment, "chat", keyTarget, "NaN"), code: codes.InvalidArgument, says: "want a number"},
		"nothing for one":   {ref: asks("ns", keyDeployment, "chat", keyTarget, "0"), code: codes.InvalidArgument, says: "want a number"},
		"no end for one":    {ref: asks("ns", keyDeployment, "chat", keyTarget, "Inf"), code: codes.InvalidArgument, says: "want a number"},
		"no target of time": {ref: asks("ns", keyDeployment, "chat", keyMetric, external.QueueSeconds), code: codes.InvalidArgument, says: "set it to the target of"},
		"no sequences":      {ref: asks("ns", keyDeployment, "dims"), code: codes.InvalidArgument, says: "set it to the target of"},
	} {
		_, err := s.GetMetricSpec(t.Context(), c.ref)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s that says %q", name, err, c.code, c.says)
		}
	}
}

// No incomplete figures, none for spec.autoscaling, no other metric than the trigger's.
func TestFiguresForKEDAAreWholeOrRefused(t *testing.T) {
	s := scaler(t)
	for name, c := range map[string]struct {
		deployment, metric string
		code               codes.Code
		says               string
	}{
		"a part":         {deployment: "code", metric: external.Requests, code: codes.Unavailable, says: "1 of 2 gateways have stopped reporting"},
		"scales itself":  {deployment: "own", metric: external.Requests, code: codes.FailedPrecondition, says: "remove spec.autoscaling"},
		"another metric": {deployment: "chat", metric: external.QueueSeconds, code: codes.InvalidArgument, says: "the trigger of ScaledObject ns/object has metric"},
	} {
		_, err := s.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: asks("ns", keyDeployment, c.deployment), MetricName: c.metric})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s that says %q", name, err, c.code, c.says)
		}
	}
}

// A deployment is active while requests run, wait or arrived recently; incomplete figures
// can make it active, but never inactive.
func TestADeploymentIsActive(t *testing.T) {
	s := scaler(t)
	for deployment, want := range map[string]bool{"chat": true, "code": true, "late": true, "idle": false} {
		if got, err := s.IsActive(t.Context(), asks("ns", keyDeployment, deployment)); err != nil || got.Result != want {
			t.Errorf("%s is active: %v, %v", deployment, got, err)
		}
	}
	for deployment, code := range map[string]codes.Code{"part": codes.Unavailable, "own": codes.FailedPrecondition, "none": codes.NotFound} {
		if _, err := s.IsActive(t.Context(), asks("ns", keyDeployment, deployment)); status.Code(err) != code {
			t.Errorf("%s: %v, want %s", deployment, err, code)
		}
	}
}

// received is the client's end of a stream.
type received struct {
	grpc.ServerStream
	ctx context.Context

	mu   sync.Mutex // guards the messages
	said []bool
}

func (h *received) Context() context.Context { return h.ctx }

func (h *received) Send(r *externalscaler.IsActiveResponse) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, r.Result)
	return nil
}

func (h *received) all() []bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.said)
}

// changing has figures of the one deployment that may change.
type changing struct {
	mu   sync.Mutex // guards the fields after it
	f    demand.Figures
	part string
}

func (o *changing) of(context.Context, types.NamespacedName) (demand.Figures, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.f, o.part, nil
}

func (o *changing) set(running int, part string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.f, o.part = demand.Figures{Running: running}, part
}

// A change is sent at once and then repeated; nothing is sent while the figures are
// incomplete; the stream ends if there is nothing to scale.
func TestAStreamReportsChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var f changing
		s := &Scaler{Clock: clock.RealClock{}, Source: source(t, nil)}
		s.Source.Figures = f.of
		h, ended := &received{ctx: ctx}, make(chan error, 1)
		go func() { ended <- s.StreamIsActive(asks("ns", keyDeployment, "chat"), h) }()
		want := func(after time.Duration, said ...bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := h.all(); !slices.Equal(got, said) {
				t.Fatalf("KEDA received %v, want %v", got, said)
			}
		}
		want(0, false)
		want(time.Minute, false) // nothing new
		f.set(1, "")
		want(look, false, true) // at once
		want(repeat, false, true, true)
		f.set(0, "1 of 2 gateways have stopped reporting")
		want(time.Minute, false, true, true)
		f.set(0, "")
		want(look, false, true, true, false)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := s.StreamIsActive(asks("ns", keyDeployment, "chat"), &received{ctx: t.Context()}); err != nil {
			t.Errorf("a stream does not end well: %v", err)
		}
		if err := s.StreamIsActive(asks("ns", keyDeployment, "own"), &received{ctx: t.Context()}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("of one that scales itself: %v", err)
		}
	})
}
