package keda

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// passed returns the Pass of KEDA's Secret, as the chart creates it, with a certificate.
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

// A valid certificate is kept, and an invalid one replaced.
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
		t.Error("another authority creates another certificate, or is not written")
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

// served starts a server and returns a function to connect to it.
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

// pair returns the certificate for TLS.
func pair(t *testing.T, data map[string][]byte) *tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// The client uses every call of the protocol, over its own TLS.
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

// Rejected are: no certificate, one with another key, one of the fleet's own authority, one
// with the right name, and an old one.
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

// The certificate is not valid for a server.
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

// The certificate is created once the Secret exists, until the context ends.
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

// TestStrangersSendNoRequestsToTheAPIServer: while there is no Secret, handshakes share one
// request a second.
func TestStrangersSendNoRequestsToTheAPIServer(t *testing.T) {
	reads, now := 0, clocktesting.NewFakeClock(time.Now())
	p := &Pass{Namespace: "keda", Clock: now, Client: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme(t)).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			reads++
			if ctx.Err() != nil {
				t.Error("the request ends with the client that left")
			}
			return errors.New("away")
		}})}
	left, leave := context.WithCancel(t.Context())
	leave()
	for range 3 {
		if _, err := p.current(left); err == nil {
			t.Error("there is no pass")
		}
	}
	if now.Step(retryEach); reads != 1 {
		t.Errorf("%d requests for three handshakes", reads)
	}
	if _, err := p.current(left); err == nil || reads != 2 {
		t.Errorf("a second later: %v after %d requests", err, reads)
	}
}
