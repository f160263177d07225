package controllers_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/identity"
)

// asAgent is a client with a token of a Mac's ServiceAccount.
func (w *world) asAgent(mac string) client.WithWatch {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: v1alpha1.AgentObjectName(mac)}}
	token := &authenticationv1.TokenRequest{}
	w.must(w.c.SubResource("token").Create(w.ctx, account, token))
	config := rest.AnonymousClientConfig(env.Config())
	config.BearerToken = token.Status.Token
	c, err := client.NewWithWatch(config, client.Options{Scheme: controllers.Scheme(), Mapper: w.c.RESTMapper()})
	w.must(err)
	return c
}

func TestAgentSeesItsOwnWorldAlone(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	replica := w.replicas("small")[0]
	a := w.asAgent("mac-1")
	own := func(name string) client.ObjectKey {
		return client.ObjectKey{Namespace: system, Name: v1alpha1.AgentObjectName(name)}
	}
	mac := func(name string) *v1alpha1.MacNode {
		return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	account := func(name string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: v1alpha1.AgentObjectName(name)}}
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"agentVersion":"x"}}`))
	specPatch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
	renew := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"holderIdentity":"x"}}`))
	lease := func(name string) *coordinationv1.Lease {
		k := own(name)
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	}
	type attempt struct {
		allowed bool
		do      func() error
	}
	attempts := map[string]attempt{
		"read its MacNode": {true, func() error { return a.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, mac("")) }},
		"list its MacNode by name": {true, func() error {
			return a.List(w.ctx, &v1alpha1.MacNodeList{}, client.MatchingFields{"metadata.name": "mac-1"})
		}},
		"write its MacNode's status": {true, func() error { return a.Status().Patch(w.ctx, mac("mac-1"), patch, client.DryRunAll) }},
		"read its Secret":            {true, func() error { return a.Get(w.ctx, own("mac-1"), &corev1.Secret{}) }},
		"renew its Lease":            {true, func() error { return a.Patch(w.ctx, lease("mac-1"), renew) }},
		"make a token of its own": {true, func() error {
			return a.SubResource("token").Create(w.ctx, account("mac-1"), &authenticationv1.TokenRequest{})
		}},
		"read another MacNode":           {false, func() error { return a.Get(w.ctx, client.ObjectKey{Name: "mac-2"}, mac("")) }},
		"list all MacNodes":              {false, func() error { return a.List(w.ctx, &v1alpha1.MacNodeList{}) }},
		"write another MacNode's status": {false, func() error { return a.Status().Patch(w.ctx, mac("mac-2"), patch) }},
		"write its own spec":             {false, func() error { return a.Patch(w.ctx, mac("mac-1"), specPatch) }},
		"make a MacNode":                 {false, func() error { return a.Create(w.ctx, mac("mac-9")) }},
		"delete its MacNode":             {false, func() error { return a.Delete(w.ctx, mac("mac-1")) }},
		"read another Mac's Secret":      {false, func() error { return a.Get(w.ctx, own("mac-2"), &corev1.Secret{}) }},
		"read the authority": {false, func() error {
			return a.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretCA}, &corev1.Secret{})
		}},
		"read the gateways' key": {false, func() error {
			return a.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretGateway}, &corev1.Secret{})
		}},
		"list Secrets":              {false, func() error { return a.List(w.ctx, &corev1.SecretList{}, client.InNamespace(system)) }},
		"renew another Mac's Lease": {false, func() error { return a.Patch(w.ctx, lease("mac-2"), renew) }},
		"read another Mac's Lease":  {false, func() error { return a.Get(w.ctx, own("mac-2"), &coordinationv1.Lease{}) }},
		"make a token of another Mac": {false, func() error {
			return a.SubResource("token").Create(w.ctx, account("mac-2"), &authenticationv1.TokenRequest{})
		}},
		"read the replica it holds": {false, func() error { return a.Get(w.ctx, client.ObjectKeyFromObject(&replica), &v1alpha1.ModelReplica{}) }},
		"list replicas":             {false, func() error { return a.List(w.ctx, &v1alpha1.ModelReplicaList{}) }},
		"read a deployment": {false, func() error {
			return a.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: "small"}, &v1alpha1.ModelDeployment{})
		}},
		"give itself a role": {false, func() error {
			return a.Get(w.ctx, client.ObjectKey{Name: "metalfleet-mac-mac-1"}, &rbacv1.ClusterRole{})
		}},
	}
	// The API server learns of roles by a watch: what is allowed becomes so
	// within a moment, and only then does a refusal say anything.
	for what, try := range attempts {
		if try.allowed {
			w.eventually("the agent may "+what, try.do)
		}
	}
	for what, try := range attempts {
		if try.allowed {
			continue
		}
		if err := try.do(); !apierrors.IsForbidden(err) {
			t.Errorf("the agent could %s: %v, want Forbidden", what, err)
		}
	}
}

// secretOf reads the TLS material of a Secret.
func (w *world) secretOf(name string) (tls.Certificate, *x509.CertPool, *corev1.Secret) {
	w.t.Helper()
	var s corev1.Secret
	w.eventually("Secret "+name, func() error { return w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: name}, &s) })
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	w.must(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.Data["ca.crt"]) {
		w.t.Fatalf("Secret %s holds no ca.crt", name)
	}
	return pair, roots, &s
}

func TestCertificatesSpeakForTheirNameAlone(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(gib))
	w.mac("mac-2", holding(gib))
	server, roots, _ := w.secretOf("mac-mac-1")
	gateway, _, _ := w.secretOf(identity.SecretGateway)
	other, _, _ := w.secretOf("mac-mac-2")

	listener, err := tls.Listen("tcp", "127.0.0.1:0", agentapi.ServerTLS(func() (*tls.Certificate, error) { return &server, nil }, roots))
	w.must(err)
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "here") }), ErrorLog: quiet()}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })

	for what, tc := range map[string]struct {
		with tls.Certificate
		mac  string
		ok   bool
	}{
		"a gateway reaches the Mac it means":        {gateway, "mac-1", true},
		"a gateway that means another Mac does not": {gateway, "mac-2", false},
		"a Mac is no gateway":                       {other, "mac-1", false},
	} {
		config := agentapi.ClientTLS(func() (*tls.Certificate, error) { return &tc.with, nil }, roots, tc.mac)
		config.NextProtos = nil
		err := ask(config, listener.Addr())
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func ask(config *tls.Config, addr net.Addr) error {
	c := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := c.Get("https://" + addr.String() + "/")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && string(b) != "here" {
		err = fmt.Errorf("answer %q", b)
	}
	return err
}

func TestIdentityIsKeptAndTakenBack(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(gib))
	key := client.ObjectKey{Namespace: system, Name: "mac-mac-1"}
	_, _, before := w.secretOf(key.Name)

	// Deleted, it is made again; widened, a Role is narrowed again.
	w.must(w.c.Delete(w.ctx, before))
	w.eventually("the Secret is made again", func() error {
		var s corev1.Secret
		if err := w.c.Get(w.ctx, key, &s); err != nil {
			return err
		}
		if bytes.Equal(s.Data[corev1.TLSCertKey], before.Data[corev1.TLSCertKey]) {
			return errors.New("it is the old one")
		}
		return nil
	})
	var role rbacv1.Role
	w.must(w.c.Get(w.ctx, key, &role))
	role.Rules[1].ResourceNames = nil
	w.must(w.c.Update(w.ctx, &role))
	w.eventually("the Role is narrow again", func() error {
		w.must(w.c.Get(w.ctx, key, &role))
		if len(role.Rules[1].ResourceNames) != 1 {
			return errors.New("it is wide")
		}
		return nil
	})

	w.deleteMac(mac)
	w.macs = nil
	for _, o := range []client.Object{&corev1.Secret{}, &corev1.ServiceAccount{}, &coordinationv1.Lease{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}} {
		if err := w.c.Get(w.ctx, key, o); !apierrors.IsNotFound(err) {
			t.Errorf("%T is left: %v", o, err)
		}
	}
	for _, o := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
		if err := w.c.Get(w.ctx, client.ObjectKey{Name: "metalfleet-mac-mac-1"}, o); !apierrors.IsNotFound(err) {
			t.Errorf("%T is left: %v", o, err)
		}
	}
}
