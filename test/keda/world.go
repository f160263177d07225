package main

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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
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

// scalerAddress is what triggers say, as in a cluster.
const scalerAddress = "metalfleet-operator-keda." + ownNamespace + ".svc:9443"

// world is the cluster and what runs in it.
type world struct {
	client.Client
	root, scratch string
	env           *testenv.Env
	ports         map[string]int
	proxy         *proxy
	programs      []*process.Program
	keda          *process.Program
	gateway       *gateway
}

// newWorld brings everything up. What it returns with an error is to be stopped.
func newWorld(ctx context.Context, root, scratch string) (*world, error) {
	w := &world{root: root, scratch: scratch, ports: map[string]int{}}
	for _, name := range []string{"demand", "scaler", "health", "kedaHealth", "kedaService", "adapter", "adapterMetrics"} {
		port, err := testenv.FreePort()
		if err != nil {
			return w, err
		}
		w.ports[name] = port
	}
	crds := []string{filepath.Join(root, "config", "crd", "*.yaml"), filepath.Join(root, "bin", "keda", "crds", "*.yaml")}
	var err error
	if w.env, err = testenv.Start(ctx, testenv.Options{CRDs: crds, Controllers: true, Autoscaling: true}); err != nil {
		return w, err
	}
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return w, err
	}
	if w.Client, err = client.New(w.env.Config(), client.Options{Scheme: s}); err != nil {
		return w, err
	}
	if w.proxy, err = newProxy(map[string]string{scalerAddress: w.at("scaler")}); err != nil {
		return w, err
	}
	for _, start := range []func(context.Context) error{w.prepare, w.startOperator, w.startKEDA, w.startGateway} {
		if err := start(ctx); err != nil {
			return w, err
		}
	}
	return w, nil
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
func (w *world) launch(name, path string, env []string, args ...string) (*process.Program, error) {
	p := process.New(name, path, w.scratch, args...)
	p.SetEnv(append([]string{"KUBECONFIG=" + w.env.Kubeconfig}, env...)...)
	if err := p.Start(); err != nil {
		return nil, err
	}
	w.programs = append(w.programs, p)
	return p, nil
}

// startOperator starts our own, for gateways and KEDA.
func (w *world) startOperator(context.Context) error {
	_, err := w.launch("operator", filepath.Join(w.root, "bin", "operator"), nil, "--namespace="+ownNamespace, "--leader-elect=false", "--verbose",
		"--metrics-bind-address=0", "--health-bind-address="+w.at("health"), "--demand-bind-address="+w.at("demand"),
		"--keda-bind-address="+w.at("scaler"), "--keda-namespace="+kedaNamespace)
	return err
}

// startKEDA starts both of its programs. They find the operator's Service by a
// proxy, as a cluster's DNS would have them find it.
func (w *world) startKEDA(context.Context) error {
	certificates := filepath.Join(w.scratch, "keda-certificates")
	_, err := pki.New(certificates, pki.Leaf{Name: "tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, DNS: []string{"localhost"}})
	if err != nil {
		return err
	}
	env := []string{"WATCH_NAMESPACE=", "POD_NAMESPACE=" + kedaNamespace, "KEDA_CLUSTER_OBJECT_NAMESPACE=" + kedaNamespace,
		"HTTPS_PROXY=http://" + w.proxy.address, "NO_PROXY=127.0.0.1,localhost"}
	folder := filepath.Join(w.root, "bin", "keda")
	w.keda, err = w.launch("keda-operator", filepath.Join(folder, "operator"), env, "--metrics-bind-address=0", "--zap-log-level=debug",
		"--health-probe-bind-address="+w.at("kedaHealth"), "--metrics-service-bind-address="+w.at("kedaService"), "--cert-dir="+certificates)
	if err != nil {
		return err
	}
	_, err = w.launch("keda-adapter", filepath.Join(folder, "adapter"), env, "--secure-port="+strconv.Itoa(w.ports["adapter"]), "--bind-address=127.0.0.1",
		"--port="+strconv.Itoa(w.ports["adapterMetrics"]), "--cert-dir="+certificates,
		"--tls-cert-file="+filepath.Join(certificates, "tls.crt"), "--tls-private-key-file="+filepath.Join(certificates, "tls.key"),
		"--authentication-kubeconfig="+w.env.Kubeconfig, "--authorization-kubeconfig="+w.env.Kubeconfig, "--lister-kubeconfig="+w.env.Kubeconfig,
		"--metrics-service-address="+w.at("kedaService"))
	return err
}

// create makes a deployment.
func (w *world) create(ctx context.Context, name string, scalesItself bool) error {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Model.Source = "file://x.gguf"
	d.Spec.Context = v1alpha1.ContextSpec{Tokens: 256, Sequences: 1}
	if scalesItself {
		d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 1}
	}
	return w.Create(ctx, d)
}

// scale makes the ScaledObject that is in docs/how-to/serve.md.
func (w *world) scale(ctx context.Context, name string) error {
	so := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"scaleTargetRef":  map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ModelDeployment", "name": name},
			"minReplicaCount": int64(0), "maxReplicaCount": int64(4), "pollingInterval": int64(30), "cooldownPeriod": int64(5),
			"triggers": []any{map[string]any{"type": "external-push",
				"metadata":          map[string]any{"scalerAddress": scalerAddress, "deployment": name, "target": "4"},
				"authenticationRef": map[string]any{"kind": "ClusterTriggerAuthentication", "name": "metalfleet"}}},
		}}}
	return w.Create(ctx, so)
}

// until asks until the answer is nil.
func (w *world) until(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ask(ctx)
		if died := w.failed(); err == nil || died != nil {
			return died
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *world) replicas(ctx context.Context, name string) (int32, error) {
	var d v1alpha1.ModelDeployment
	err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &d)
	return ptr.Deref(d.Spec.Replicas, 1), err
}

func (w *world) wants(name string, n int32) func(context.Context) error {
	return func(ctx context.Context) error {
		have, err := w.replicas(ctx, name)
		if err == nil && have != n {
			err = fmt.Errorf("%s has %d replicas, want %d", name, have, n)
		}
		return err
	}
}

// whole wants figures of a deployment, and asks as KEDA does.
func (w *world) whole(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		var s corev1.Secret
		if err := w.Get(ctx, client.ObjectKey{Namespace: kedaNamespace, Name: "metalfleet-keda"}, &s); err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		roots, _, err := agentapi.Roots(s.Data["ca.crt"])
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

// byThePush wants that KEDA was told before it looked: what it finds when it looks
// it says in its log.
func (w *world) byThePush() error {
	b, err := os.ReadFile(w.keda.Log)
	if err != nil {
		return err
	}
	before, _, _ := strings.Cut(string(b), "Successfully updated ScaleTarget")
	if strings.Contains(before, `"activity":true`) {
		return errors.New("KEDA looked, and found it active, before the push told it")
	}
	return nil
}

// holds wants a number of replicas at every look.
func (w *world) holds(ctx context.Context, name string, n int32, long time.Duration) error {
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := w.wants(name, n)(ctx); err != nil {
			return err
		}
	}
	return nil
}

// partIsSaid wants the HPA that KEDA made to have no figures.
func (w *world) partIsSaid(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		hpa := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}}
		if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, hpa); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(hpa.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "ScalingActive" && c["status"] == "False" {
				return w.kedaSays("is incomplete")(ctx)
			}
		}
		return fmt.Errorf("the HPA goes on: %v", conditions)
	}
}

// kedaSays wants words in the log of KEDA's operator.
func (w *world) kedaSays(words string) func(context.Context) error {
	return func(context.Context) error {
		b, err := os.ReadFile(w.keda.Log)
		if err == nil && !strings.Contains(string(b), words) {
			err = fmt.Errorf("KEDA's log does not say %q; it ends:\n%s", words, process.Tail(w.keda.Log))
		}
		return err
	}
}

// failed names a program that ended by itself.
func (w *world) failed() error {
	var errs []error
	for _, p := range w.programs {
		errs = append(errs, p.Failed())
	}
	return errors.Join(errs...)
}

// keep copies logs to a folder.
func (w *world) keep(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, p := range w.programs {
		b, err := os.ReadFile(p.Log)
		errs = append(errs, err, os.WriteFile(filepath.Join(folder, filepath.Base(p.Log)), b, 0o644))
	}
	return errors.Join(errs...)
}

// stop ends everything.
func (w *world) stop() error {
	var errs []error
	if w.gateway != nil {
		w.gateway.stop()
	}
	errs = append(errs, process.StopTogether(context.Background(), w.programs))
	if w.proxy != nil {
		errs = append(errs, w.proxy.stop())
	}
	if w.env != nil {
		errs = append(errs, w.env.Stop())
	}
	return errors.Join(errs...)
}
