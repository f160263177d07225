package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

const (
	namespace = "metalfleet-system"
)

// env is one control plane for all tests of this package, which run in sequence; nil until one
// needs it.
var env *testenv.Env

func TestMain(m *testing.M) {
	code := m.Run()
	if env != nil {
		if err := env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// cluster is a real API server with one Mac that serves "m". What a test creates there is deleted
// at its end, except namespaces.
type cluster struct {
	t      *testing.T
	env    *testenv.Env
	client client.Client
	ca     *agentapitest.CA
	mac    *httptest.Server
	hold   chan struct{} // streams end when it is closed
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	var err error
	if env == nil {
		if env, err = testenv.Start(t.Context(), testenv.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, env: env, ca: agentapitest.NewCA(t), hold: make(chan struct{})}
	if c.client, err = client.New(env.Config(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	c.applyRights("gateway.yaml")
	c.startMac("mac-a")
	return c
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	err := c.client.Create(c.t.Context(), o)
	kind, _ := c.client.GroupVersionKindFor(o)
	if kind.Kind == "Namespace" {
		err = client.IgnoreAlreadyExists(err)
	} else if o.GetUID() != "" { // the API server keeps it
		c.t.Cleanup(func() {
			if err := client.IgnoreNotFound(c.client.Delete(context.Background(), o)); err != nil {
				c.t.Error(err)
			}
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) updateStatus(o client.Object) {
	c.t.Helper()
	if err := c.client.Status().Update(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) applyRights(file string) {
	c.t.Helper()
	dir, err := testenv.RBACDir()
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		c.t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			c.t.Fatal(err)
		}
		c.create(o)
	}
}

// startMac runs an agent that streams "one", and "two" once hold is closed.
func (c *cluster) startMac(name string) {
	c.mac = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		out := openai.NewEventWriter(w)
		_ = out.Send("one")
		select {
		case <-c.hold:
			_ = out.Send("two")
			_ = out.Done()
		case <-r.Context().Done():
		}
	}))
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.create(node)
	certificate := c.ca.MacOfUID(name, string(node.UID))
	pair, err := certificate.Pair(c.t)()
	if err != nil {
		c.t.Fatal(err)
	}
	c.mac.EnableHTTP2 = true
	c.mac.TLS = agentapi.ServerTLS(certificate.Pair(c.t), c.ca.Roots())
	c.mac.TLS.Certificates = append(c.mac.TLS.Certificates, *pair)
	c.mac.StartTLS()
	c.t.Cleanup(c.mac.Close)
}

// secret returns the Secret that the operator creates for gateways.
func (c *cluster) secret() *corev1.Secret {
	p := c.ca.Gateway()
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: identity.SecretName},
		Data: map[string][]byte{"tls.crt": p.Certificate, "tls.key": p.Key, "ca.crt": p.CA}}
}

// serve writes what the operator and an agent would have written: "m" is
// served by one replica on the Mac.
func (c *cluster) serve() (*v1alpha1.ModelDeployment, *v1alpha1.ModelReplica) {
	c.t.Helper()
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-a"}}
	if err := c.client.Get(c.t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil {
		c.t.Fatal(err)
	}
	address := c.mac.Listener.Addr().(*net.TCPAddr)
	mac.Status.Address = &v1alpha1.MacAddress{Host: address.IP.String(), Port: int32(address.Port)}
	c.updateStatus(mac)
	md := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"},
		Spec: v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "file://m.gguf"}}}
	c.create(md)
	md.Status.ServedNames = []string{"m", "default/m"}
	c.updateStatus(md)
	mr := c.replica(md)
	c.create(mr)
	c.setReady(mr, metav1.ConditionTrue)
	return md, mr
}

func (c *cluster) replica(md *v1alpha1.ModelDeployment) *v1alpha1.ModelReplica {
	digest := "sha256:" + strings.Repeat("0", 64)
	return &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m-0"}, Spec: v1alpha1.ModelReplicaSpec{
		DeploymentRef: v1alpha1.DeploymentReference{Name: md.Name, UID: string(md.UID)},
		Revision:      "m-1", Epoch: 1, ReservedBytes: 1, Desired: v1alpha1.DesiredRunning, NodeName: "mac-a",
		Context: v1alpha1.ContextLimits{MaxTokens: 16, MaxConcurrentRequests: 1, KVCacheTokens: 32},
		Model: model.Record{Source: "file://m.gguf", Format: "gguf", Digest: digest, Facts: model.Facts{Architecture: "llama"},
			Files: []model.File{{Path: "m.gguf", Bytes: 1, SHA256: strings.Repeat("0", 64)}}},
	}}
}

func (c *cluster) setReady(mr *v1alpha1.ModelReplica, status metav1.ConditionStatus) {
	c.t.Helper()
	mr.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: "Test", LastTransitionTime: metav1.Now()}}
	c.updateStatus(mr)
}

// front is a running gateway.
type front struct {
	t           *testing.T
	url, health string
	stop        context.CancelFunc
	ended       chan error
}

// start runs a gateway with the permissions of its ServiceAccount.
func (c *cluster) start(drain time.Duration, change ...func(*gateway.Options)) *front {
	c.t.Helper()
	config := c.env.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":metalfleet-gateway",
		Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	var listeners [3]net.Listener
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			c.t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &front{t: c.t, url: "http://" + listeners[0].Addr().String(), health: "http://" + listeners[1].Addr().String(),
		stop: stop, ended: make(chan error, 1)}
	go func() {
		o := gateway.Options{REST: config, Namespace: namespace, Front: listeners[0], Health: listeners[1], Metrics: listeners[2], Drain: drain, Log: testr.New(c.t)}
		for _, f := range change {
			f(&o)
		}
		f.ended <- gateway.Run(ctx, o)
		close(f.ended)
	}()
	c.t.Cleanup(func() {
		stop()
		for range f.ended {
		}
	})
	return f
}

// ask requests a stream from the model.
func (f *front) ask(name string) (int, *openai.EventReader) {
	f.t.Helper()
	resp, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"`+name+`","prompt":"x","stream":true}`))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode, openai.NewEventReader(resp.Body)
}

func (f *front) status(name string) int {
	status, _ := f.ask(name)
	return status
}

func (f *front) readyz() int {
	resp, err := http.Get(f.health + "/readyz")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func (c *cluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.NewTimer(patience.Of(c.t))
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			c.t.Fatalf("never came true: %s", what)
		case <-tick.C:
		}
	}
}

func TestGatewayFollowsTheCluster(t *testing.T) {
	c := newCluster(t)
	f := c.start(time.Second)
	md, mr := c.serve()
	if got := f.readyz(); got == http.StatusOK {
		t.Error("ready without an identity")
	}
	c.create(c.secret())
	c.eventually("the gateway is ready and serves", func() bool { return f.readyz() == 200 && f.status("m") == 200 })
	if got := f.status("unknown"); got != 404 {
		t.Errorf("unknown model: %d", got)
	}

	t.Run("API server away", func(t *testing.T) {
		if err := c.env.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if got := f.status("default/m"); got != 200 {
				t.Fatalf("status %d while the API server is away", got)
			}
		}
		if got := f.readyz(); got != 200 {
			t.Errorf("readyz %d while the API server is away", got)
		}
		if err := c.env.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	c.setReady(mr, metav1.ConditionFalse)
	c.eventually("no endpoint", func() bool { return f.status("m") == 503 })
	c.setReady(mr, metav1.ConditionTrue)
	c.eventually("served again", func() bool { return f.status("m") == 200 })
	if err := c.client.Delete(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	c.eventually("the name is gone", func() bool { return f.status("m") == 404 })
}

func TestStopLetsRunningAnswersEndWithinABound(t *testing.T) {
	c := newCluster(t)
	c.create(c.secret())
	c.serve()

	patient := c.start(patience.Most)
	c.eventually("served", func() bool { return patient.readyz() == 200 && patient.status("m") == 200 })
	_, running := patient.ask("m")
	if _, err := running.Next(); err != nil {
		t.Fatal(err)
	}
	hasty := c.start(10 * time.Millisecond)
	c.eventually("served", func() bool { return hasty.readyz() == 200 && hasty.status("m") == 200 })
	_, cut := hasty.ask("m")
	if _, err := cut.Next(); err != nil {
		t.Fatal(err)
	}

	hasty.stop()
	_, err := cut.Next()
	var told *openai.Error
	if !errors.As(err, &told) {
		t.Errorf("end of the answer that outlived the drain: %v, want an error event", err)
	}
	if err := <-hasty.ended; err != nil {
		t.Error(err)
	}

	patient.stop()
	c.eventually("not ready while it drains", func() bool { return patient.readyz() == 503 })
	close(c.hold)
	if _, err := running.Next(); err != nil {
		t.Errorf("the running answer was cut: %v", err)
	}
	if _, err := running.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("end of the answer: %v", err)
	}
	if err := <-patient.ended; err != nil {
		t.Error(err)
	}
}
