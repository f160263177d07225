package keda

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// passed is KEDA's Secret, as the chart makes it, with a pass that is kept.
func passed(t *testing.T) (*Pass, *clocktesting.FakeClock) {
	t.Helper()
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "keda", Name: Secret}, Type: corev1.SecretTypeOpaque}).Build()
	now := clocktesting.NewFakeClock(time.Now())
	authority := []byte("authority")
	p := &Pass{Client: c, Namespace: "keda", Clock: now, Authority: func(context.Context) ([]byte, error) { return authority, nil }}
	if _, err := p.current(t.Context()); err == nil || !strings.Contains(err.Error(), "contains no client certificate yet") {
		t.Fatalf("without a pass: %v", err)
	}
	if err := p.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, now
}

func data(t *testing.T, p *Pass) map[string][]byte {
	t.Helper()
	s, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Data
}

// change writes into KEDA's Secret.
func change(t *testing.T, p *Pass, data map[string][]byte) {
	t.Helper()
	s, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Data = data
	if err := p.Client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// TestAPassIsKept as long as it is good, and made anew when it is not.
func TestAPassIsKept(t *testing.T) {
	p, now := passed(t)
	first := data(t, p)
	if string(first[keyCA]) != "authority" {
		t.Errorf("the Secret holds %q", first[keyCA])
	}
	p.Authority = func(context.Context) ([]byte, error) { return []byte("another"), nil }
	if err := p.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := data(t, p)
	if string(second[keyCA]) != "another" || !bytes.Equal(first[corev1.TLSCertKey], second[corev1.TLSCertKey]) || !bytes.Equal(first[corev1.TLSPrivateKeyKey], second[corev1.TLSPrivateKeyKey]) {
		t.Error("another authority makes another pass, or is not told")
	}
	other, err := newPass(now.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string]map[string][]byte{
		"nothing":     nil,
		"no key":      {corev1.TLSCertKey: first[corev1.TLSCertKey]},
		"another key": {corev1.TLSCertKey: first[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: other[corev1.TLSPrivateKeyKey]},
	} {
		change(t, p, broken)
		if err := p.keep(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		if _, err := parsePass(data(t, p), now.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := data(t, p)
	now.Step(passLife + time.Hour)
	if err := p.keep(t.Context()); err != nil || bytes.Equal(data(t, p)[corev1.TLSCertKey], before[corev1.TLSCertKey]) {
		t.Errorf("a pass that ended is kept: %v", err)
	}
}

func TestWithoutTheChartsSecretTheReasonIsSaid(t *testing.T) {
	p := &Pass{Client: fake.NewClientBuilder().WithScheme(scheme(t)).Build(), Namespace: "keda", Clock: clocktesting.NewFakeClock(time.Now()),
		Authority: func(context.Context) ([]byte, error) { return nil, nil }}
	if err := p.keep(t.Context()); err == nil || !strings.Contains(err.Error(), "which the chart creates (operator.keda)") {
		t.Error(err)
	}
}

// served is a server that listens, for one that dials it.
func served(t *testing.T, p *Pass) (dial func(*tls.Certificate) externalscaler.ExternalScalerClient) {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ca := agentapitest.NewCA(t)
	own, err := ca.Server(ServiceName("metalfleet-system")).Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Scaler: scaler(t), Pass: p, Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Log: logr.Discard(),
		Certificate: func(context.Context) (*tls.Certificate, error) { return own, nil }}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(pass *tls.Certificate) externalscaler.ExternalScalerClient {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Roots(), ServerName: ServiceName("metalfleet-system")}
		if pass != nil {
			config.Certificates = []tls.Certificate{*pass}
		}
		conn, err := grpc.NewClient(s.Address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return externalscaler.NewExternalScalerClient(conn)
	}
}

// pair is a pass as TLS takes it.
func pair(t *testing.T, data map[string][]byte) *tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestKEDAsClientAsks by every call of the protocol, over its own TLS.
func TestKEDAsClientAsks(t *testing.T) {
	p, _ := passed(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	c := served(t, p)(pair(t, data(t, p)))
	ref := asks("ns", keyDeployment, "chat", keyTarget, "4")
	spec, err := c.GetMetricSpec(ctx, ref, grpc.WaitForReady(true))
	if err != nil || spec.MetricSpecs[0].MetricName != external.Requests || spec.MetricSpecs[0].TargetSizeFloat != 4 {
		t.Fatal(spec, err)
	}
	value, err := c.GetMetrics(ctx, &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: external.Requests})
	if err != nil || value.MetricValues[0].MetricValueFloat != 7 {
		t.Fatal(value, err)
	}
	if active, err := c.IsActive(ctx, ref); err != nil || !active.Result {
		t.Fatal(active, err)
	}
	stream, err := c.StreamIsActive(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if active, err := stream.Recv(); err != nil || !active.Result {
		t.Fatal(active, err)
	}
	if _, err := c.GetMetricSpec(ctx, asks("ns", keyDeployment, "none")); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err := c.GetMetricSpec(ctx, asks("ns", keyDeployment, strings.Repeat("x", mostBytes))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("words without end: %v", err)
	}
}

// TestAttackWhoHasNoPassAsksForNothing: no certificate, one of another key, of the
// fleet's own authority, with the pass' name, or the pass of yesterday.
func TestAttackWhoHasNoPassAsksForNothing(t *testing.T) {
	p, now := passed(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	dial := served(t, p)
	ref := asks("ns", keyDeployment, "chat")
	good := pair(t, data(t, p))
	if _, err := dial(good).IsActive(ctx, ref, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	gateway, err := agentapitest.NewCA(t).Gateway().Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	forged, err := newPass(now.Now())
	if err != nil {
		t.Fatal(err)
	}
	stolen := *pair(t, forged)
	stolen.Certificate = good.Certificate // without its key
	for name, c := range map[string]*tls.Certificate{"nothing": nil, "a gateway's": gateway, "a pass of its own": pair(t, forged), "the pass and another key": &stolen} {
		if _, err := dial(c).IsActive(ctx, ref); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	change(t, p, forged)
	now.Step(passEach)
	if _, err := dial(good).IsActive(ctx, ref); status.Code(err) != codes.Unavailable {
		t.Errorf("the pass of yesterday: %v", err)
	}
	if _, err := dial(pair(t, forged)).IsActive(ctx, ref); err != nil {
		t.Errorf("the pass of today: %v", err)
	}
}

// TestThePassIsAClientsAlone: whoever takes it cannot be a server by it.
func TestThePassIsAClientsAlone(t *testing.T) {
	p, _ := passed(t)
	leaf, err := parsePass(data(t, p), p.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if leaf.IsCA || len(leaf.DNSNames) != 0 || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("%v %v", leaf.DNSNames, leaf.ExtKeyUsage)
	}
}

// TestTheLeaderMakesThePass once the Secret is there, and ends when asked to.
func TestTheLeaderMakesThePass(t *testing.T) {
	p, now := passed(t)
	change(t, p, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	k := &Keeper{Pass: p, Log: logr.Discard()}
	go func() { ended <- k.Start(ctx) }()
	for end := time.Now().Add(patience.Of(t)); ; time.Sleep(5 * time.Millisecond) {
		if _, err := parsePass(data(t, p), now.Now()); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-ended; err != nil || !k.NeedLeaderElection() || (&Server{}).NeedLeaderElection() {
		t.Error(err)
	}
}
