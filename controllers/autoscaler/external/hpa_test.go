package external

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// scaled is a cluster with Kubernetes' HPA controller, and a deployment.
type scaled struct {
	t      *testing.T
	client client.Client

	mu   sync.Mutex // guards the figures
	f    demand.Figures
	part string
}

func (s *scaled) figures(context.Context, types.NamespacedName) (demand.Figures, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f, s.part, nil
}

func (s *scaled) ask(requests int, part string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.f, s.part = demand.Figures{Running: requests}, part
}

func newScaled(t *testing.T) *scaled {
	t.Helper()
	if !testenv.HasControllers() {
		t.Fatal("this test needs kube-controller-manager among the assets: run `make kube`")
	}
	env, err := testenv.Start(t.Context(), testenv.Options{Controllers: true, Autoscaling: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &scaled{t: t}
	if s.client, err = client.New(env.Config(), client.Options{Scheme: scheme(t)}); err != nil {
		t.Fatal(err)
	}
	s.serve()
	return s
}

// serve runs the server, registered at the API server.
func (s *scaled) serve() {
	port, err := testenv.FreePort()
	if err != nil {
		s.t.Fatal(err)
	}
	objects := []client.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": "v1beta1.external.metrics.k8s.io"},
			"spec": map[string]any{"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
				"service": map[string]any{"namespace": "default", "name": service, "port": int64(port)}}}},
	}
	for _, o := range objects {
		if err := s.client.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
	ca := agentapitest.NewCA(s.t)
	pair, err := ca.Server(ServiceName("default")).Pair(s.t)()
	if err != nil {
		s.t.Fatal(err)
	}
	v := &Vouched{Live: s.client, Now: time.Now}
	server := &Server{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Vouched: v, Client: s.client, Log: logr.Discard(),
		Handler:     &Handler{Source: Source{Client: s.client, Figures: s.figures, Now: time.Now}, Allow: v.Caller, May: Reviewed(s.client), Log: logr.Discard()},
		Certificate: func(context.Context) (*tls.Certificate, error) { return pair, nil },
		Authority:   func(context.Context) ([]byte, error) { return ca.PEM(), nil }}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
}

func (s *scaled) eventually(what string, ask func() error) {
	s.t.Helper()
	var err error
	for end := time.Now().Add(patience.Of(s.t)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = ask(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: %v", what, err)
}

// create creates a deployment, with the status of an operator, and its HPA.
func (s *scaled) create(name string, spec v1alpha1.ModelDeploymentSpec) client.ObjectKey {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec}
	for _, o := range []client.Object{d, hpa(name)} {
		if err := s.client.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
	return client.ObjectKeyFromObject(d)
}

// follow writes the operator's status, and returns the desired number.
func (s *scaled) follow(key client.ObjectKey) (int32, error) {
	var d v1alpha1.ModelDeployment
	if err := s.client.Get(s.t.Context(), key, &d); err != nil {
		return 0, err
	}
	n := ptr.Deref(d.Spec.Replicas, 1)
	before := d.DeepCopy()
	d.Status.Replicas, d.Status.Selector = n, v1alpha1.LabelDeployment+"="+d.Name
	return n, s.client.Status().Patch(s.t.Context(), &d, client.MergeFrom(before))
}

func (s *scaled) want(key client.ObjectKey, replicas int32) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d replicas are wanted", replicas), func() error {
		n, err := s.follow(key)
		if err == nil && n != replicas {
			err = fmt.Errorf("%d are; %s", n, s.says(key))
		}
		return err
	})
}

// says returns the message of the HPA about its metric.
func (s *scaled) says(key client.ObjectKey) string {
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := s.client.Get(s.t.Context(), key, &h); err != nil {
		return err.Error()
	}
	var out []string
	for _, c := range h.Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(out, "; ")
}

func hpa(name string) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelDeployment", Name: name},
			MaxReplicas:    5,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: Requests, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{label: name}}},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(4, resource.DecimalSI)},
			}}}}}
}

// It scales through the scale subresource by the figures of gateways, keeps the number
// while they are incomplete, and reports why it must not scale a deployment with
// spec.autoscaling.
func TestKubernetesOwnHPAScalesADeployment(t *testing.T) {
	s := newScaled(t)
	s.ask(10, "")
	spec := v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "file://x.gguf"}, Context: v1alpha1.ContextSpec{MaxTokens: 256, MaxConcurrentRequests: 1}}
	key := s.create("chat", spec)
	s.want(key, 3)
	s.ask(0, "1 of 2 gateways have stopped reporting")
	s.wantSaid(key, "is incomplete")
	if n, err := s.follow(key); err != nil || n != 3 {
		t.Errorf("by a part of the figures %d replicas are wanted, want 3; %v", n, err)
	}
	s.ask(2, "")
	s.want(key, 1)

	spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	own := s.create("own", spec)
	s.ask(10, "")
	s.wantSaid(own, "remove spec.autoscaling")
	if n, err := s.follow(own); err != nil || n != 1 {
		t.Errorf("of one that scales itself %d replicas are wanted; %v", n, err)
	}
}

// wantSaid waits until an HPA reports a message about its metric.
func (s *scaled) wantSaid(key client.ObjectKey, want string) {
	s.t.Helper()
	s.eventually("the HPA says "+want, func() error {
		if _, err := s.follow(key); err != nil {
			return err
		}
		if said := s.says(key); !strings.Contains(said, want) {
			return errors.New(said)
		}
		return nil
	})
}
