//go:build stories

package keda_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// Namespaces of KEDA, of our operator, and of the deployments.
const (
	kedaNamespace = "keda"
	ownNamespace  = "metalfleet-system"
	namespace     = "default"
)

// scalerAddress is that of triggers, as in a cluster.
const scalerAddress = "metalfleet-operator-keda." + ownNamespace + ".svc:9443"

// root is the folder of the module, whose bin has the programs.
const root = "../../.."

// world is the cluster and what runs in it.
type world struct {
	client.Client
	env      *testenv.Env
	logs     string
	ports    map[string]int
	programs []*process.Program
	keda     *process.Program
	gateway  *gateway
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "bin", "keda", "stamp")); err != nil {
		t.Fatalf("KEDA is not built, run hack/keda.sh: %v", err)
	}
	w := &world{ports: map[string]int{}, logs: t.TempDir()}
	var err error
	for _, name := range []string{"demand", "scaler", "health", "kedaHealth", "kedaService", "adapter", "adapterMetrics"} {
		if w.ports[name], err = testenv.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	crds := []string{filepath.Join(root, "config", "crd", "*.yaml"), filepath.Join(root, "bin", "keda", "crds", "*.yaml")}
	if w.env, err = testenv.Start(t.Context(), testenv.Options{CRDs: crds, Controllers: true, Autoscaling: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop(t) })
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	if w.Client, err = client.New(w.env.Config(), client.Options{Scheme: s}); err != nil {
		t.Fatal(err)
	}
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.startOperator(t)
	w.startKEDA(t)
	w.startGateway(t)
	return w
}

// stop ends every program and shows the logs of a test that failed.
func (w *world) stop(t *testing.T) {
	err := errors.Join(process.StopTogether(context.Background(), w.programs), w.env.Stop())
	if err != nil {
		t.Error(err)
	}
	for _, p := range w.programs {
		if t.Failed() {
			t.Logf("%s ends:\n%s", p.Log, process.Tail(p.Log))
		}
	}
}

func (w *world) at(name string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(w.ports[name]))
}

// prepare makes what the charts make, ours and KEDA's.
func (w *world) prepare(ctx context.Context) error {
	parameter := func(name, key string) map[string]any {
		return map[string]any{"parameter": name, "name": "metalfleet-keda", "key": key}
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kedaNamespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: kedaNamespace, Name: "metalfleet-keda"}, Type: corev1.SecretTypeOpaque},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": "ClusterTriggerAuthentication",
			"metadata": map[string]any{"name": "metalfleet"},
			"spec":     map[string]any{"secretTargetRef": []any{parameter("caCert", "ca.crt"), parameter("tlsClientCert", "tls.crt"), parameter("tlsClientKey", "tls.key")}}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: kedaNamespace, Name: "keda-metrics-apiserver"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": "v1beta1.external.metrics.k8s.io"},
			"spec": map[string]any{"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
				"service": map[string]any{"namespace": kedaNamespace, "name": "keda-metrics-apiserver", "port": int64(w.ports["adapter"])}}}},
	} {
		if err := w.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return nil
}

// launch starts a program that ends with the test.
func (w *world) launch(t *testing.T, name, path string, env []string, args ...string) *process.Program {
	t.Helper()
	p := process.New(name, path, w.logs, args...)
	p.SetEnv(append([]string{"KUBECONFIG=" + w.env.Kubeconfig}, env...)...)
	if err := p.Start(); err != nil {
		t.Fatalf("%v; make build and hack/keda.sh build it", err)
	}
	w.programs = append(w.programs, p)
	return p
}

// startOperator starts ours, with addresses for gateways and KEDA.
func (w *world) startOperator(t *testing.T) {
	t.Helper()
	w.launch(t, "operator", filepath.Join(root, "bin", "operator"), nil, "--namespace="+ownNamespace, "--leader-elect=false", "--verbose",
		"--metrics-bind-address=0", "--health-bind-address="+w.at("health"), "--demand-bind-address="+w.at("demand"),
		"--keda-bind-address="+w.at("scaler"), "--keda-namespace="+kedaNamespace)
}

// startKEDA starts both of its programs. They reach the operator's Service
// through a proxy, in place of a cluster's DNS.
func (w *world) startKEDA(t *testing.T) {
	t.Helper()
	certificates := t.TempDir()
	_, err := pki.New(certificates, pki.Leaf{Name: "tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, DNS: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"WATCH_NAMESPACE=", "POD_NAMESPACE=" + kedaNamespace, "KEDA_CLUSTER_OBJECT_NAMESPACE=" + kedaNamespace,
		"HTTPS_PROXY=" + proxy(t, map[string]string{scalerAddress: w.at("scaler")}), "NO_PROXY=127.0.0.1,localhost"}
	folder := filepath.Join(root, "bin", "keda")
	w.keda = w.launch(t, "keda-operator", filepath.Join(folder, "operator"), env, "--metrics-bind-address=0", "--zap-log-level=debug",
		"--health-probe-bind-address="+w.at("kedaHealth"), "--metrics-service-bind-address="+w.at("kedaService"), "--cert-dir="+certificates)
	w.launch(t, "keda-adapter", filepath.Join(folder, "adapter"), env, "--secure-port="+strconv.Itoa(w.ports["adapter"]), "--bind-address=127.0.0.1",
		"--port="+strconv.Itoa(w.ports["adapterMetrics"]), "--cert-dir="+certificates,
		"--tls-cert-file="+filepath.Join(certificates, "tls.crt"), "--tls-private-key-file="+filepath.Join(certificates, "tls.key"),
		"--authentication-kubeconfig="+w.env.Kubeconfig, "--authorization-kubeconfig="+w.env.Kubeconfig, "--lister-kubeconfig="+w.env.Kubeconfig,
		"--metrics-service-address="+w.at("kedaService"))
}

// create makes a deployment.
func (w *world) create(t *testing.T, name string, scalesItself bool) {
	t.Helper()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Model.Source = "file://x.gguf"
	d.Spec.Context = v1alpha1.ContextSpec{MaxTokens: 256, MaxConcurrentRequests: 1}
	if scalesItself {
		d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 1}
	}
	if err := w.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// scale makes the ScaledObject that the documentation shows.
func (w *world) scale(t *testing.T, name string) {
	t.Helper()
	so := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"scaleTargetRef":  map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ModelDeployment", "name": name},
			"minReplicaCount": int64(0), "maxReplicaCount": int64(4), "pollingInterval": int64(30), "cooldownPeriod": int64(5),
			"triggers": []any{map[string]any{"type": "external-push",
				"metadata":          map[string]any{"scalerAddress": scalerAddress, "deployment": name, "target": "4"},
				"authenticationRef": map[string]any{"kind": "ClusterTriggerAuthentication", "name": "metalfleet"}}},
		}}}
	if err := w.Create(t.Context(), so); err != nil {
		t.Fatal(err)
	}
}

// wants is a condition: a deployment's desired number of replicas.
func (w *world) wants(name string, n int32) func(context.Context) error {
	return func(ctx context.Context) error {
		var d v1alpha1.ModelDeployment
		err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &d)
		if have := ptr.Deref(d.Spec.Replicas, 1); err == nil && have != n {
			err = fmt.Errorf("%s has %d replicas, want %d", name, have, n)
		}
		return err
	}
}

// complete is a condition: the operator answers with figures of a deployment,
// asked as KEDA does.
func (w *world) complete(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		var s corev1.Secret
		if err := w.Get(ctx, client.ObjectKey{Namespace: kedaNamespace, Name: "metalfleet-keda"}, &s); err != nil {
			return err
		}
		pair, roots, err := credentialsOf(&s)
		if err != nil {
			return err
		}
		conn, err := grpc.NewClient(w.at("scaler"), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
			Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: strings.TrimSuffix(scalerAddress, ":9443")})))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = externalscaler.NewExternalScalerClient(conn).GetMetrics(ctx, &externalscaler.GetMetricsRequest{MetricName: "metalfleet_requests",
			ScaledObjectRef: &externalscaler.ScaledObjectRef{Name: name, Namespace: namespace, ScalerMetadata: map[string]string{"deployment": name}}})
		return err
	}
}

// incomplete is a condition: the HPA that KEDA made has no figures.
func (w *world) incomplete(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		hpa := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}}
		if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, hpa); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(hpa.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "ScalingActive" && c["status"] == "False" {
				return w.kedaLogs("is incomplete")(ctx)
			}
		}
		return fmt.Errorf("the HPA is active: %v", conditions)
	}
}

// kedaLogs is a condition: the log of KEDA's operator contains some words.
func (w *world) kedaLogs(words string) func(context.Context) error {
	return func(context.Context) error {
		b, err := os.ReadFile(w.keda.Log)
		if err == nil && !strings.Contains(string(b), words) {
			err = fmt.Errorf("KEDA's log lacks %q; it ends:\n%s", words, process.Tail(w.keda.Log))
		}
		return err
	}
}
