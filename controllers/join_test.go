package controllers_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity"
	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
)

// joins is the world with Macs that join by a token or by a forged request.
type joins struct{ *world }

// mint creates a join token, as an administrator.
func (w joins) mint(mac string) join.Token {
	w.t.Helper()
	server, ca, err := jointoken.Endpoint(env.Config())
	w.must(err)
	text, _, err := jointoken.Mint(w.ctx, w.c, jointoken.Options{Mac: mac, Namespace: system, Server: server, CA: ca, Again: true})
	w.must(err)
	token, err := join.Parse(text)
	w.must(err)
	return token
}

// asked returns a CertificateSigningRequest as an agent creates it.
func asked(account string, request []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: join.RequestName(account)},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: join.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}},
	}
}

// request returns a key and the request that a Mac's agent creates with it.
func (w joins) request(mac string) (*ecdsa.PrivateKey, []byte) {
	w.t.Helper()
	key, err := join.NewKey()
	w.must(err)
	request, err := join.NewRequest(mac, key)
	w.must(err)
	return key, request
}

// create creates a request; the API server learns of roles by a watch, so that permissions
// take effect within a moment.
func (w joins) create(c client.Client, csr *certificatesv1.CertificateSigningRequest) {
	w.t.Helper()
	w.eventually("request "+csr.Name+" is taken", func() error { return c.Create(w.ctx, csr.DeepCopy()) })
}

// outcome waits until a request is signed (""), or denied for a reason.
func (w joins) outcome(name string) (*certificatesv1.CertificateSigningRequest, string) {
	w.t.Helper()
	csr, reason := &certificatesv1.CertificateSigningRequest{}, ""
	w.eventually("request "+name+" is judged", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKey{Name: name}, csr); err != nil {
			return err
		}
		for _, c := range csr.Status.Conditions {
			if c.Type != certificatesv1.CertificateApproved {
				reason = c.Reason
				return nil
			}
		}
		if len(csr.Status.Certificate) == 0 {
			return errors.New("neither certificate nor refusal")
		}
		return nil
	})
	return csr, reason
}

// joined is what a Mac has after it joined.
type joined struct {
	certificate tls.Certificate
	access      join.Access
}

// joined lets a Mac join, as its agent does.
func (w joins) joined(mac string) joined {
	w.t.Helper()
	return w.joinedWith(w.mint(mac))
}

func (w joins) joinedWith(token join.Token) joined {
	w.t.Helper()
	mac, c := token.Mac, w.as(token.Credential)
	key, request := w.request(mac)
	name := join.RequestName(join.Account(mac))
	w.create(c, asked(join.Account(mac), request))
	csr, reason := w.outcome(name)
	if reason != "" {
		w.t.Fatalf("Mac %s is refused: %s", mac, reason)
	}
	var anchor corev1.Secret
	w.eventually("the Mac may read its Secret", func() error {
		return c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: join.Account(mac)}, &anchor)
	})
	access, err := join.Open(key, string(csr.UID), anchor.Data[join.KeyAccess])
	w.must(err)
	w.must(c.Delete(w.ctx, csr))
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	w.must(err)
	pair, err := tls.X509KeyPair(csr.Status.Certificate, pemKey(raw))
	w.must(err)
	return joined{certificate: pair, access: access}
}

func TestAMacJoinsAndItsTokenBurns(t *testing.T) {
	w := joins{newWorld(t)}
	_, roots, _ := w.secretOf(identity.SecretGateway)
	j := w.joined("new") // no MacNode before
	var mac v1alpha1.MacNode
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "new"}, &mac))
	defer func() {
		w.must(w.c.Delete(w.ctx, &mac))
		w.eventually("the Mac is gone", func() error {
			if err := w.c.Get(w.ctx, client.ObjectKey{Name: "new"}, &mac); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there (%w)", err)
			}
			return nil
		})
	}()

	leaf := j.certificate.Leaf
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: agentapi.MacServerName("new"), CurrentTime: w.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	w.must(err)
	if life := leaf.NotAfter.Sub(w.clock.Now()); life > 24*time.Hour || life < 23*time.Hour {
		t.Errorf("the certificate is good for %s", life)
	}
	if left := j.access.Expires.Sub(w.clock.Now()); left < 6*24*time.Hour || left > 7*24*time.Hour {
		t.Errorf("the API token is good for %s", left)
	}
	w.eventually("the join token is burned", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: "join-new"}, &corev1.Secret{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its Secret is there (%w)", err)
		}
		return nil
	})

	w.eventually("the rights of its join token end with it", func() error { return w.joinRights("new", false) })

	// It continues on its own: with its own account, under another name.
	own := w.as(j.access.Token)
	w.eventually("it reads its MacNode", func() error { return own.Get(w.ctx, client.ObjectKey{Name: "new"}, &mac) })
	_, request := w.request("new")
	again := asked("mac-new", request)
	again.Spec.ExpirationSeconds = ptr.To[int32](600)
	w.create(own, again)
	csr, reason := w.outcome(again.Name)
	if reason != "" {
		t.Fatalf("its renewal is refused: %s", reason)
	}
	pair, err := x509.ParseCertificate(der(t, csr.Status.Certificate))
	w.must(err)
	if life := pair.NotAfter.Sub(w.clock.Now()); life > 10*time.Minute {
		t.Errorf("it asked for 10 minutes and got %s", life)
	}
	w.must(own.Delete(w.ctx, csr))
}

// joinRights requires all or none of the permissions of a Mac's join account. The account
// itself stays: tokens are requested for it.
func (w joins) joinRights(mac string, want bool) error {
	here := client.ObjectKey{Namespace: system, Name: "join-" + mac}
	everywhere := client.ObjectKey{Name: "metalfleet-join-" + mac}
	for o, key := range map[client.Object]client.ObjectKey{&rbacv1.Role{}: here, &rbacv1.RoleBinding{}: here,
		&rbacv1.ClusterRole{}: everywhere, &rbacv1.ClusterRoleBinding{}: everywhere} {
		if err := w.c.Get(w.ctx, key, o); client.IgnoreNotFound(err) != nil || (err == nil) != want {
			return fmt.Errorf("%T %s is there: %t, want %t (%w)", o, key.Name, err == nil, want, err)
		}
	}
	return w.c.Get(w.ctx, here, &corev1.ServiceAccount{})
}

// The token is invalidated after the time to collect.
func TestAMacThatNeverSaysSoHasItsTokenBurned(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-1", holding(gib))
	c := w.as(w.mint("mac-1").Credential)
	_, request := w.request("mac-1")
	w.create(c, asked("join-mac-1", request))
	csr, reason := w.outcome("metalfleet-join-mac-1")
	if reason != "" {
		t.Fatal(reason)
	}
	key := client.ObjectKey{Namespace: system, Name: "join-mac-1"}
	var anchor corev1.Secret
	w.must(w.c.Get(w.ctx, key, &anchor))
	if string(anchor.Data[join.KeyRequest]) != string(csr.UID) {
		t.Errorf("used by %q, want %q", anchor.Data[join.KeyRequest], csr.UID)
	}
	w.clock.jump(3 * time.Minute)
	w.wake(&anchor)
	w.eventually("the join token is burned", func() error {
		if err := w.c.Get(w.ctx, key, &anchor); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its Secret is there (%w)", err)
		}
		return nil
	})
}

// If the API server's clock is slow, the token must not be invalidated before the Mac has
// collected everything.
func TestAMacHasItsTimeToCollectByTheOperatorsClock(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-1", holding(gib))
	w.clock.jump(10 * time.Minute)
	c := w.as(w.mint("mac-1").Credential)
	_, request := w.request("mac-1")
	w.create(c, asked("join-mac-1", request))
	csr, reason := w.outcome("metalfleet-join-mac-1")
	if reason != "" {
		t.Fatal(reason)
	}
	for _, condition := range csr.Status.Conditions {
		if ago := w.clock.Now().Sub(condition.LastUpdateTime.Time); ago > 5*time.Minute {
			t.Errorf("%s since %s, when it was asked for just now", condition.Type, ago)
		}
	}
	w.eventually("the Mac reads its Secret", func() error {
		return c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: "join-mac-1"}, &corev1.Secret{})
	})
}

func TestMintSaysWhatIsWrong(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-1", holding(gib))
	server, ca, err := jointoken.Endpoint(env.Config())
	w.must(err)
	good := jointoken.Options{Mac: "mac-1", Namespace: system, Server: server, CA: ca, Again: true}
	for want, change := range map[string]func(*jointoken.Options){
		"is already joined and alive":         func(o *jointoken.Options) { o.Again = false },
		"is not a valid MacNode name":         func(o *jointoken.Options) { o.Mac = "Mac_1" },
		"can be valid for 10m0s to 24h0m0s":   func(o *jointoken.Options) { o.Life = time.Minute },
		"is not the URL of an API server":     func(o *jointoken.Options) { o.Server = "10.0.0.1:6443" },
		"contains something other than certi": func(o *jointoken.Options) { o.CA = []byte("x") },
	} {
		o := good
		change(&o)
		if _, _, err := jointoken.Mint(w.ctx, w.c, o); err == nil || !says(err, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	insecure := env.Config()
	insecure.Insecure, insecure.CAData = true, nil
	if _, _, err := jointoken.Endpoint(insecure); err == nil || !says(err, "does not verify the certificate") {
		t.Errorf("an API server without verification: %v", err)
	}
	var none corev1.Secret
	if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: "join-mac-1"}, &none); !apierrors.IsNotFound(err) {
		t.Errorf("a refused token left a Secret: %v", err)
	}
}
