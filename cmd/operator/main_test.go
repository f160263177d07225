package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func get(url string) (string, error) {
	c := http.Client{Timeout: 10 * time.Second}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, r.Status)
	}
	return string(b), err
}

func eventually(t *testing.T, what string, complaint func() error) {
	t.Helper()
	limit := patience.Of(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := complaint()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

// cluster returns a real API server, until the test ends.
func cluster(t *testing.T) *testenv.Env {
	t.Helper()
	env, err := testenv.Start(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// TestOperator runs the program against a real API server: it creates its namespace, leads,
// serves health and metrics, and stops on request.
func TestOperator(t *testing.T) {
	env := cluster(t)
	c, err := client.New(env.Config(), client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	s := settings{kubeconfig: env.Kubeconfig, namespace: "fleet-system", health: freeAddress(t), metrics: freeAddress(t), leaderElect: true,
		demand: freeAddress(t), keda: freeAddress(t), kedaNamespace: "default",
		certificateLife: controllers.DefaultCertificateLife, authoritySpread: controllers.DefaultAuthoritySpread,
		lease: leaderLease, renew: leaderRenew, retry: leaderRetry}
	pass := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.kedaNamespace, Name: keda.Secret}} // created by the chart
	if err := c.Create(t.Context(), pass); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, logr.Discard(), s) }()
	eventually(t, "healthy and ready", func() error {
		_, err1 := get("http://" + s.health + "/healthz")
		_, err2 := get("http://" + s.health + "/readyz")
		return errors.Join(err1, err2)
	})
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	if err := c.Create(ctx, mac); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Mac has its Secret", func() error {
		return c.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "mac-mac-1"}, &corev1.Secret{})
	})
	eventually(t, "it counts", func() error {
		body, err := get("http://" + s.metrics + "/metrics")
		if err == nil && !strings.Contains(body, `metalfleet_operator_replicas{state="ready"} 0`) {
			err = errors.New("no metalfleet_operator_replicas")
		}
		return err
	})
	eventually(t, "it answers KEDA, by the pass that it made", func() error { return asKEDA(ctx, c, s) })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	refusesToStart(t, env, c, s)
}

// asKEDA asks for a deployment that does not exist, with the certificate in KEDA's Secret.
func asKEDA(ctx context.Context, c client.Client, s settings) error {
	var of corev1.Secret
	if err := c.Get(ctx, client.ObjectKey{Namespace: s.kedaNamespace, Name: keda.Secret}, &of); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(of.Data[corev1.TLSCertKey], of.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(of.Data["ca.crt"])
	conn, err := grpc.NewClient(s.keda, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: keda.ServiceName(s.namespace)})))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = externalscaler.NewExternalScalerClient(conn).IsActive(ctx, &externalscaler.ScaledObjectRef{Name: "object", Namespace: "default", ScalerMetadata: map[string]string{"deployment": "none"}})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "the trigger of ScaledObject object refers to") {
		return fmt.Errorf("answers %w", err)
	}
	return nil
}

func refusesToStart(t *testing.T, env *testenv.Env, c client.Client, s settings) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Of(t))
	defer cancel()
	want := func(s settings, parts ...string) {
		t.Helper()
		err := run(ctx, logr.Discard(), s)
		for _, p := range parts {
			if err == nil || !strings.Contains(err.Error(), p) {
				t.Errorf("got %v, want %q", err, p)
			}
		}
	}
	missing := s
	missing.kubeconfig = t.TempDir() + "/none"
	want(missing, "--kubeconfig", missing.kubeconfig)
	bad := s
	bad.namespace = "Not_A_Name"
	want(bad, "namespace Not_A_Name", "cannot be used")

	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName("macnodes.metalfleet.dev")
	// The Mac's finalizer would keep its CRD.
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	if err := c.Patch(ctx, mac, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, crd); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a fleet without kinds is refused", func() error {
		if err := prepare(ctx, logr.Discard(), env.Config(), s.namespace); err == nil || !strings.Contains(err.Error(), "config/crd") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// asMain in the environment makes the test binary run the program.
const asMain = "OPERATOR_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	logger(false, logs.Text)
	os.Exit(m.Run())
}

// TestLostLeadershipStartsOver stops the API server for longer than the renew deadline: the
// same process leads again afterwards.
func TestLostLeadershipStartsOver(t *testing.T) {
	env := cluster(t)
	c, err := client.New(env.Config(), client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	p := exec.Command(os.Args[0], "--kubeconfig", env.Kubeconfig, "--health-bind-address", freeAddress(t), "--metrics-bind-address", "0", "--demand-bind-address", "0",
		"--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s", "--leader-elect-retry-period", "500ms")
	p.Env = append(os.Environ(), asMain+"=1")
	p.Stderr = &out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = p.Process.Kill()
			t.Log(out.String())
		}
	})
	leads := func(mac string) {
		t.Helper()
		eventually(t, "the operator looks after "+mac, func() error {
			err := c.Create(t.Context(), &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}})
			if client.IgnoreAlreadyExists(err) != nil {
				return err
			}
			return c.Get(t.Context(), client.ObjectKey{Namespace: controllers.DefaultNamespace, Name: "mac-" + mac}, &corev1.Secret{})
		})
	}
	leads("one")
	if err := env.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it starts over and waits", func() error {
		if !strings.Contains(out.String(), "operator: restarting") || !strings.Contains(out.String(), "Waiting for the API server") {
			return errors.New("not yet")
		}
		return nil
	})
	if err := env.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	leads("two")
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
	var lease coordinationv1.Lease
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: controllers.DefaultNamespace, Name: leaderElector}, &lease); err != nil {
		t.Fatal(err)
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != "" {
		t.Errorf("after it was asked to end %q holds the Lease: its successor must not wait for it", holder)
	}
}

// Even after an operator that was killed and did not release its Lease.
func TestASuccessorLeadsBeforeAMacIsCalledSilent(t *testing.T) {
	s, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	// It checks every 1 to 2.2 times the retry period, and has to see the Lease unchanged
	// for its duration.
	if most := s.lease + 2*s.retry*22/10; most >= v1alpha1.MacSilentSeconds*time.Second {
		t.Errorf("a successor leads after up to %s", most)
	}
	if s.renew >= s.lease || 3*s.retry > s.renew {
		t.Errorf("lease %s, renewal %s, retry %s: a leader has to give up before another one leads, and after a few tries", s.lease, s.renew, s.retry)
	}
}

// lockedBuffer collects what a process writes while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFlags(t *testing.T) {
	if _, err := parse([]string{"--no-such-flag"}, io.Discard); err == nil {
		t.Error("an unknown flag is taken")
	}
	if _, err := parse([]string{"stray"}, io.Discard); err == nil {
		t.Error("a stray argument is taken")
	}
	for _, life := range []string{"9m", "2161h", "-1h"} {
		if _, err := parse([]string{"--certificate-life=" + life}, io.Discard); err == nil {
			t.Errorf("certificates that are good for %s", life)
		}
	}
	for _, spread := range []string{"9s", "25h", "-1h"} {
		if _, err := parse([]string{"--authority-spread=" + spread}, io.Discard); err == nil {
			t.Errorf("gateways get %s to read a root", spread)
		}
	}
	s, err := parse([]string{"--certificate-life=10m", "--authority-spread=10s"}, os.Stderr)
	if err != nil || s.certificateLife != 10*time.Minute || s.authoritySpread != 10*time.Second {
		t.Errorf("the shortest: %+v, %v", s, err)
	}
	s, err = parse(nil, os.Stderr)
	if err != nil || s.namespace != "metalfleet-system" || !s.leaderElect || s.certificateLife != 24*time.Hour || s.authoritySpread != time.Hour {
		t.Errorf("defaults: %+v, %v", s, err)
	}
}

// KEDA's namespace must exist.
func TestFiguresThatNobodyHearsOfAreNotTold(t *testing.T) {
	for _, args := range [][]string{
		{"--demand-bind-address=0", "--keda-bind-address=:9443"},
		{"--demand-bind-address=", "--metrics-api-bind-address=:6443"},
		{"--keda-bind-address=:9443", "--keda-namespace="},
	} {
		var said strings.Builder
		if _, err := parse(args, &said); err == nil || !strings.Contains(said.String(), "--keda-") {
			t.Errorf("%v is taken, or refused without a reason: %q", args, said.String())
		}
	}
	for _, args := range [][]string{{"--demand-bind-address=0"}, {"--keda-bind-address=:9443"}, {"--demand-bind-address=0", "--keda-namespace="}} {
		if _, err := parse(args, io.Discard); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}
