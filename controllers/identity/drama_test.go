package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
)

const (
	tick   = 15 * time.Minute
	spread = time.Hour
	down   = 40 * time.Minute // until another operator leads
)

// errCrashed is the error of a crashed operator's client.
var errCrashed = errors.New("the operator has ended")

// drama is a fleet in virtual time: real certificates, an in-memory API server, an operator
// that can crash at each of its writes, and gateways and Macs that read late. After each
// tick all parties that are on must be able to connect to each other.
type drama struct {
	t     *testing.T
	clock *clocktesting.FakePassiveClock
	api   client.WithWatch
	life  time.Duration

	// crashAt is the write after which the operator crashes; 0: never.
	crashAt, writes int
	dead            bool
	back            time.Time // when the next operator runs

	gateways []*party
	macs     []*party
}

// party is a gateway or a Mac, with what it read last.
type party struct {
	name  string
	late  int // it reads once in that many ticks
	off   bool
	trust []byte
	leaf  *x509.Certificate
	key   *ecdsa.PrivateKey
}

func newDrama(t *testing.T) *drama {
	t.Helper()
	scheme := runtime.NewScheme()
	// No other kinds: the in-memory API server maps all kinds again at each write.
	if err := errors.Join(certificatesv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), corev1.AddToScheme(scheme),
		rbacv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	d := &drama{t: t, clock: clocktesting.NewFakePassiveClock(now), life: 6 * time.Hour,
		api: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.MacNode{}).Build()}
	for k, name := range []string{"m1", "m2", "m3"} {
		key, err := join.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		d.macs = append(d.macs, &party{name: name, late: 1 + k, key: key})
		d.must(d.api.Create(t.Context(), &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	for k, name := range []string{"g1", "g2"} {
		d.gateways = append(d.gateways, &party{name: name, late: 1 + 2*k})
	}
	for range 6 { // all parties read and get a certificate
		d.pass()
	}
	return d
}

func (d *drama) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// client returns the operator's client: it crashes at a write.
func (d *drama) client() client.Client {
	write := func(do func() error) error {
		if d.dead {
			return errCrashed
		}
		if d.writes++; d.writes != d.crashAt {
			return do()
		}
		d.dead = true
		d.must(do())
		return errCrashed // the write arrived, but its response did not
	}
	return interceptor.NewClient(d.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, told := o.(*corev1.Event); told { // nothing depends on an Event
				return c.Create(ctx, o, opts...)
			}
			return write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, o, opts...) })
		},
	})
}

func (d *drama) issuer() *Issuer {
	return &Issuer{Client: d.client(), Namespace: "ns", Clock: d.clock, Life: d.life}
}

// pass advances one tick.
func (d *drama) pass() {
	d.t.Helper()
	d.clock.SetTime(d.clock.Now().Add(tick))
	if d.dead && d.clock.Now().After(d.back) {
		d.dead = false
	}
	d.operate()
	n := int(d.clock.Now().Sub(now) / tick)
	for _, g := range d.gateways {
		if n%g.late == 0 {
			d.readGateway(g)
		}
	}
	for _, m := range d.macs {
		d.readMac(m, n)
	}
}

// operate runs the operator's reconcilers once, in an unfavourable order.
func (d *drama) operate() {
	d.t.Helper()
	if d.dead {
		return
	}
	i := d.issuer()
	metrics, err := signal.New(prometheus.NewRegistry(), i.Client)
	d.must(err)
	r := &Rotation{Client: i.Client, Issuer: i, Spread: spread, Metrics: metrics}
	ctx := d.t.Context()
	_, err = r.Reconcile(ctx, reconcile.Request{})
	for _, m := range d.macs {
		err = errors.Join(err, i.publish(ctx, m.name))
	}
	_, keepErr := (&Gateway{Issuer: i}).Reconcile(ctx, reconcile.Request{})
	err = errors.Join(err, keepErr)
	switch {
	case d.dead:
		d.back = d.clock.Now().Add(down)
	case err != nil:
		d.t.Fatal(err)
	}
}

func (d *drama) secret(name string) (*corev1.Secret, bool) {
	d.t.Helper()
	var s corev1.Secret
	err := d.api.Get(d.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &s)
	d.must(client.IgnoreNotFound(err))
	return &s, err == nil
}

func (d *drama) readGateway(g *party) {
	d.t.Helper()
	s, ok := d.secret(SecretGateway)
	if !ok {
		return
	}
	cert, _, err := parse(s.Data)
	d.must(err)
	g.leaf, g.trust = cert, s.Data[keyCA]
}

// readMac runs an agent's part: it trusts the roots in its Secret, reports that, and renews
// its certificate.
func (d *drama) readMac(m *party, n int) {
	d.t.Helper()
	if m.off {
		return
	}
	if s, ok := d.secret(v1alpha1.AgentObjectName(m.name)); ok && n%m.late == 0 {
		m.trust = s.Data[keyCA]
	}
	if m.trust == nil {
		return
	}
	roots, fingerprints, err := agentapi.Roots(m.trust)
	d.must(err)
	var mac v1alpha1.MacNode
	d.must(d.api.Get(d.t.Context(), client.ObjectKey{Name: m.name}, &mac))
	mac.Status.TrustedRoots = fingerprints
	mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting, LastTransitionTime: metav1.NewTime(now)}}
	d.must(d.api.Status().Update(d.t.Context(), &mac))
	if m.leaf != nil && verifies(m.leaf, roots, d.clock.Now(), x509.ExtKeyUsageServerAuth) == nil &&
		d.clock.Now().Before(m.leaf.NotAfter.Add(-d.life*30/100)) {
		return
	}
	if d.dead {
		return
	}
	ca, until, err := d.issuer().signer(d.t.Context(), d.clock.Now(), d.life)
	if err != nil && d.dead {
		d.back = d.clock.Now().Add(down)
		return
	}
	d.must(err)
	signed, err := ca.issueMac(&m.key.PublicKey, m.name, "uid", d.clock.Now(), until)
	d.must(err)
	block, _ := pem.Decode(signed)
	leaf, err := x509.ParseCertificate(block.Bytes)
	d.must(err)
	if verifies(leaf, roots, d.clock.Now(), x509.ExtKeyUsageServerAuth) == nil { // an agent refuses it otherwise
		m.leaf = leaf
	}
}

// leave removes a Mac from the operator's view, as after 180 s.
func (d *drama) leave(m *party) {
	d.t.Helper()
	m.off = true
	var mac v1alpha1.MacNode
	d.must(d.api.Get(d.t.Context(), client.ObjectKey{Name: m.name}, &mac))
	mac.Status.Conditions[0].Status, mac.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonMacGone
	d.must(d.api.Status().Update(d.t.Context(), &mac))
}

func verifies(leaf *x509.Certificate, roots *x509.CertPool, at time.Time, usage x509.ExtKeyUsage) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// handshakes returns an error for the parties that cannot connect.
func (d *drama) handshakes() error {
	var errs []error
	for _, g := range d.gateways {
		for _, m := range d.macs {
			if m.off {
				continue
			}
			ofGateway, _, err := agentapi.Roots(g.trust)
			d.must(err)
			ofMac, _, err := agentapi.Roots(m.trust)
			d.must(err)
			if err := verifies(m.leaf, ofGateway, d.clock.Now(), x509.ExtKeyUsageServerAuth); err != nil {
				errs = append(errs, fmt.Errorf("%s refuses %s: %w", g.name, m.name, err))
			}
			if err := verifies(g.leaf, ofMac, d.clock.Now(), x509.ExtKeyUsageClientAuth); err != nil {
				errs = append(errs, fmt.Errorf("%s refuses %s: %w", m.name, g.name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (d *drama) authority() *authority {
	d.t.Helper()
	s, _ := d.secret(SecretCA)
	a, err := parseAuthority(s, d.clock.Now())
	d.must(err)
	return a
}

func (d *drama) annotate(key, value string) {
	d.t.Helper()
	s, _ := d.secret(SecretCA)
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
	d.must(d.api.Update(d.t.Context(), s))
}

// rotate requests a rotation and completes it. It fails if a handshake would.
func (d *drama) rotate(each func(rotation.Stage)) {
	d.t.Helper()
	first := d.authority().state.Signing.Fingerprint
	d.annotate(AnnotationRotate, first)
	for range 60 * 4 { // 60 hours
		d.pass()
		if err := d.handshakes(); err != nil {
			d.t.Fatalf("%s, after write %d: %v", d.authority().state.Stage(), d.writes, err)
		}
		stage := d.authority().state.Stage()
		if each != nil {
			each(stage)
		}
		if stage == rotation.Settled && d.authority().state.Signing.Fingerprint != first {
			return
		}
	}
	d.t.Fatalf("the rotation does not end: %s", d.authority().state.Stage())
}
