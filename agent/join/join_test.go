package join

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/identity/signertest"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

const namespace = "metalfleet-system"

// cluster is a real API server with a Mac's accounts; a test plays the operator.
type cluster struct {
	*testenv.Env
	client.Client
	t   *testing.T
	ca  *agentapitest.CA
	mac string
}

var env = sync.OnceValues(func() (*testenv.Env, error) {
	return testenv.Start(context.Background(), testenv.Options{CRDs: []string{}})
})

func TestMain(m *testing.M) {
	code := m.Run()
	if e, err := env(); err == nil {
		_ = e.Stop()
	}
	os.Exit(code)
}

func newCluster(t *testing.T, mac string) *cluster {
	t.Helper()
	e, err := env()
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(e.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	k := &cluster{Env: e, Client: c, t: t, ca: agentapitest.NewCA(t), mac: mac}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	k.make(&corev1.Secret{ObjectMeta: k.here("mac-" + mac), Data: map[string][]byte{"ca.crt": k.ca.PEM()}})
	for _, name := range []string{"mac-" + mac, "join-" + mac} {
		k.make(&corev1.ServiceAccount{ObjectMeta: k.here(name)})
		// What these may do exactly is for the operator's tests.
		k.make(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}})
	}
	for _, name := range []string{"mac-" + mac, "join-" + mac} {
		k.awaitRights(name)
	}
	return k
}

// awaitRights waits until the API server knows what an account may do; it
// learns that by a watch.
func (k *cluster) awaitRights(account string) {
	k.t.Helper()
	config := k.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account}
	c, err := client.New(config, client.Options{Scheme: k.Scheme()})
	if err != nil {
		k.t.Fatal(err)
	}
	k.eventually(account+" has its rights", func() error { return c.List(k.t.Context(), &corev1.SecretList{}, client.InNamespace(namespace)) })
}

// awaitBurned waits until the API server takes a token no more: it learns of
// the end of its Secret by a watch, and may remember for 10 s that it was good.
func (k *cluster) awaitBurned(token contract.Token) {
	k.t.Helper()
	config := rest.AnonymousClientConfig(k.Config())
	config.BearerToken = token.Credential
	c, err := client.New(config, client.Options{Scheme: k.Scheme(), Mapper: k.RESTMapper()})
	if err != nil {
		k.t.Fatal(err)
	}
	k.eventually("the token is burned", func() error {
		if err := c.List(k.t.Context(), &corev1.SecretList{}, client.InNamespace(namespace)); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %w, want Unauthorized", err)
		}
		return nil
	})
}

// eventually asks until there is no complaint.
func (k *cluster) eventually(what string, complaint func() error) {
	k.t.Helper()
	for deadline := time.Now().Add(patience.Of(k.t)); ; time.Sleep(20 * time.Millisecond) {
		err := complaint()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: %v", what, err)
		}
	}
}

// fails joins where that cannot succeed, and wants an error that says so. What
// has to happen before takes its time on a busy machine: it is given more until
// there was enough.
func (k *cluster) fails(o Options, want ...string) {
	k.t.Helper()
	for o.SignWithin = 500 * time.Millisecond; ; o.SignWithin *= 2 {
		err := Run(k.t.Context(), o)
		says := err != nil
		for _, w := range want {
			says = says && strings.Contains(err.Error(), w)
		}
		if says {
			return
		}
		if err == nil || o.SignWithin > time.Minute {
			k.t.Fatalf("%v, want %q", err, want)
		}
	}
}

func (k *cluster) here(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func (k *cluster) make(o client.Object) {
	k.t.Helper()
	if err := k.Create(k.t.Context(), o); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = k.Delete(context.Background(), o) })
}

// token makes a join token, and the Secret that it hangs on.
func (k *cluster) token() contract.Token {
	k.t.Helper()
	anchor := &corev1.Secret{ObjectMeta: k.here("join-" + k.mac)}
	_ = k.Delete(k.t.Context(), anchor.DeepCopy())
	k.make(anchor)
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: anchor.Name, UID: anchor.UID}}}
	if err := k.SubResource("token").Create(k.t.Context(), &corev1.ServiceAccount{ObjectMeta: k.here(anchor.Name)}, r); err != nil {
		k.t.Fatal(err)
	}
	return contract.Token{Server: k.URL, CA: k.Config().CAData, Namespace: namespace, Mac: k.mac, Credential: r.Status.Token, Expires: r.Status.ExpirationTimestamp.Time}
}

// seal does what the operator does before it signs.
func (k *cluster) seal(r *certificatesv1.CertificateSigningRequest) error {
	key, err := contract.RequestKey(r.Spec.Request)
	if err != nil {
		return err
	}
	token := &authenticationv1.TokenRequest{}
	if err := k.SubResource("token").Create(context.Background(), &corev1.ServiceAccount{ObjectMeta: k.here("mac-" + k.mac)}, token); err != nil {
		return err
	}
	var anchor corev1.Secret
	if err := k.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: "join-" + k.mac}, &anchor); err != nil {
		return err
	}
	sealed, err := contract.Seal(key, string(r.UID), contract.Access{Token: token.Status.Token, Expires: token.Status.ExpirationTimestamp.Time})
	if err != nil {
		return err
	}
	anchor.Data = map[string][]byte{contract.KeyAccess: sealed, contract.KeyRequest: []byte(r.UID)}
	return k.Update(context.Background(), &anchor)
}

func TestAMacJoinsAndGoesOnByItself(t *testing.T) {
	k := newCluster(t, "m1")
	var keys []string
	signertest.Start(t, k, k.ca, func(r *certificatesv1.CertificateSigningRequest) error {
		keys = append(keys, string(r.Spec.Request))
		return k.seal(r)
	})
	dir := t.TempDir()
	if err := Run(t.Context(), Options{Token: k.token(), StateDir: dir, Log: testr.New(t)}); err != nil {
		t.Fatal(err)
	}
	if err := k.Get(t.Context(), client.ObjectKey{Name: "metalfleet-join-m1"}, &certificatesv1.CertificateSigningRequest{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the request is left: %v", err)
	}
	id, err := identity.Open(dir, "m1", testr.New(t))
	if err != nil || !id.Known() {
		t.Errorf("no identity: %v", err)
	}
	own, err := account.Open(dir, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := register.NewClient(own.REST())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "mac-m1"}, &corev1.Secret{}); err != nil {
		t.Errorf("with its own account: %v", err)
	}
	wantPrivate(t, dir, keys)

	// It joins again over the same folder, with a new token: a new key.
	if err := os.WriteFile(filepath.Join(dir, "journal"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Options{Token: k.token(), StateDir: dir, Log: testr.New(t)}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "journal")); err != nil || string(b) != "kept" {
		t.Errorf("what the agent keeps was touched: %q, %v", b, err)
	}
	if len(keys) != 2 || keys[0] == keys[1] {
		t.Errorf("%d requests", len(keys))
	}
}

// wantPrivate: nothing in the folder may be read by others, and no key was sent.
func wantPrivate(t *testing.T, dir string, sent []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
		if e.Name() == keyFile {
			t.Error("the key of the join is left")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, s := range sent {
		if strings.Contains(s, "PRIVATE") {
			t.Error("a private key was sent")
		}
	}
}

// TestAJoinThatBrokeOffIsTakenUp: with the same token, after the certificate was made.
func TestAJoinThatBrokeOffIsTakenUp(t *testing.T) {
	k := newCluster(t, "m2")
	token, dir := k.token(), t.TempDir()
	k.fails(Options{Token: token, StateDir: dir, Log: testr.New(t)}, "check that the operator is running", "same token")
	var first certificatesv1.CertificateSigningRequest
	if err := k.Get(t.Context(), client.ObjectKey{Name: "metalfleet-join-m2"}, &first); err != nil {
		t.Fatal(err)
	}
	s := signertest.Start(t, k, k.ca, func(r *certificatesv1.CertificateSigningRequest) error {
		if r.UID != first.UID {
			t.Errorf("request %s was made in place of %s", r.UID, first.UID)
		}
		return k.seal(r)
	})
	if err := Run(t.Context(), Options{Token: token, StateDir: dir, Log: testr.New(t)}); err != nil {
		t.Fatal(err)
	}
	if s.Signed() != 1 {
		t.Errorf("%d certificates, want the one that was asked for", s.Signed())
	}
}

func TestWhatGoesWrongSaysWhatToDo(t *testing.T) {
	k := newCluster(t, "m3")
	deny := errors.New("")
	signertest.Start(t, k, k.ca, func(*certificatesv1.CertificateSigningRequest) error { return deny })
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	joined := t.TempDir()
	if err := account.Save(joined, account.Credentials{Server: k.URL, Namespace: namespace, Mac: "other", Token: "t"}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		dir    string
		change func(*contract.Token)
		want   []string
	}{
		{name: "a token that ended", dir: "", change: func(o *contract.Token) { o.Credential, o.Expires = "x.y.z", time.Now().Add(-time.Hour) }, want: []string{"expired at", "join-token m3"}},
		{name: "an unknown token", dir: "", change: func(o *contract.Token) { o.Credential = "x.y.z" }, want: []string{"rejected the join token", "join-token m3"}},
		{name: "a burned token", dir: "", change: func(o *contract.Token) {
			if err := k.Delete(t.Context(), &corev1.Secret{ObjectMeta: k.here("join-m3")}); err != nil {
				t.Fatal(err)
			}
			k.awaitBurned(*o)
		}, want: []string{"it was used, replaced", "join-token m3"}},
		{name: "another server", dir: "", change: func(o *contract.Token) { o.Server = stranger.URL }, want: []string{"not the one that the join token was created for"}},
		{name: "another CA", dir: "", change: func(o *contract.Token) { o.CA = k.ca.PEM() }, want: []string{"not the one that the join token was created for"}},
		{name: "a name that the certificate lacks", dir: "", change: func(o *contract.Token) {
			o.Server = strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)
			o.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate().Raw})
		}, want: []string{"certificate is not valid for", "--api-server"}},
		{name: "no server", dir: "", change: func(o *contract.Token) { o.Server = strings.Replace(closed.URL, "http:", "https:", 1) }, want: []string{"cannot reach the API server", "--api-server"}},
		{name: "a folder of another Mac", dir: joined, change: func(*contract.Token) {}, want: []string{"belongs to Mac other", "--state"}},
		{name: "a token that was used", dir: "", change: func(*contract.Token) { deny = errors.New(contract.ReasonTokenUsed) }, want: []string{"denied (TokenUsed)", "join-token m3"}},
		{name: "a request that is refused", dir: "", change: func(*contract.Token) { deny = errors.New(contract.ReasonWrongRequest) }, want: []string{"denied (WrongRequest)", "metalfleet-join-m3"}},
	} {
		token, dir := k.token(), tc.dir
		if dir == "" {
			dir = t.TempDir()
		}
		tc.change(&token)
		err := Run(t.Context(), Options{Token: token, StateDir: dir, Log: logr.Discard()})
		if err == nil {
			t.Errorf("%s: joined", tc.name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tc.name, err, want)
			}
		}
		if strings.Contains(err.Error(), token.Credential) {
			t.Errorf("%s: the error has the token", tc.name)
		}
		if have, err := account.Open(dir, logr.Discard()); err == nil && have.Mac() != "other" {
			t.Errorf("%s: it left an account", tc.name)
		}
	}
}

// TestAMacJoinsWhileTheAuthorityRotates: a token says nothing of roots, and a
// root that the Secret names a moment later than it signed is waited for.
func TestAMacJoinsWhileTheAuthorityRotates(t *testing.T) {
	k := newCluster(t, "m5")
	token, next := k.token(), agentapitest.NewCA(t) // the token was made before
	signertest.Start(t, k, next, func(r *certificatesv1.CertificateSigningRequest) error { return k.seal(r) })
	dir := t.TempDir()
	k.fails(Options{Token: token, StateDir: dir, Log: testr.New(t)}, "any of the authority's roots", "join-token m5")
	var r certificatesv1.CertificateSigningRequest
	if err := k.Get(t.Context(), client.ObjectKey{Name: "metalfleet-join-m5"}, &r); err != nil {
		t.Fatal(err)
	}
	first := r.UID
	// Another key, as after a look at the folder: the first request is replaced.
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	again := k.token()
	go func() { joined <- Run(t.Context(), Options{Token: again, StateDir: dir, Log: testr.New(t)}) }()
	for deadline := time.Now().Add(patience.Of(t)); ; {
		var r certificatesv1.CertificateSigningRequest
		if err := k.Get(t.Context(), client.ObjectKey{Name: "metalfleet-join-m5"}, &r); err == nil && r.UID != first && len(r.Status.Certificate) > 0 {
			break // signed by a root that no Secret names yet
		}
		select {
		case err := <-joined:
			t.Fatalf("it ended before its root was named: %v", err)
		case <-time.After(time.Until(deadline)):
			t.Fatal("the request is not signed")
		case <-time.After(10 * time.Millisecond):
		}
	}
	var s corev1.Secret
	if err := k.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "mac-m5"}, &s); err != nil {
		t.Fatal(err)
	}
	s.Data["ca.crt"] = append(k.ca.PEM(), next.PEM()...)
	if err := k.Update(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	id, err := identity.Open(dir, "m5", testr.New(t))
	if err != nil || !id.Known() || len(id.TrustedRoots()) != 2 {
		t.Errorf("it trusts %v, %v", id.TrustedRoots(), err)
	}
}

// TestAnUnknownServerIsToldNothing: the credential goes to the right one alone.
func TestAnUnknownServerIsToldNothing(t *testing.T) {
	k := newCluster(t, "m4")
	contacted := make(chan string, 1)
	thief := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { contacted <- r.Header.Get("Authorization") }))
	leaf := k.ca.Mac("thief")
	pair, err := tls.X509KeyPair(leaf.Certificate, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	thief.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	thief.StartTLS()
	defer thief.Close()
	token := k.token()
	token.Server = thief.URL
	err = Run(t.Context(), Options{Token: token, StateDir: t.TempDir(), Log: logr.Discard()})
	select {
	case word := <-contacted:
		t.Errorf("a stranger received %q", word)
	default:
	}
	if err == nil {
		t.Error("it joined a stranger")
	}
}
