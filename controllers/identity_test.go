package controllers_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity"
	"metalfleet.dev/metalfleet/test/patience"
)

func TestAttackAnAgentLooksAround(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	l := looking{a: w.asAgent("mac-1"), ctx: w.ctx}
	// The API server learns of roles by a watch: permissions take effect within a moment,
	// and only then does a refusal prove anything.
	for what, try := range l.itsOwn() {
		w.eventually("the agent may "+what, try)
	}
	for _, forbidden := range []map[string]func() error{l.otherMacs(), l.authority(), l.models(w.ns, w.replicas("small")[0])} {
		for what, try := range forbidden {
			if err := try(); !apierrors.IsForbidden(err) {
				t.Errorf("the agent could %s: %v, want Forbidden", what, err)
			}
		}
	}
}

// looking holds the calls that the agent of mac-1 tries.
type looking struct {
	a   client.WithWatch
	ctx context.Context
}

var (
	statusPatch = client.RawPatch(types.ApplyPatchType, []byte(`{"apiVersion":"metalfleet.dev/v1alpha1","kind":"MacNode","status":{"agentVersion":"x"}}`))
	specPatch   = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
	leasePatch  = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"holderIdentity":"x"}}`))
)

func macNamed(name string) *v1alpha1.MacNode {
	return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// objectOf returns the metadata of a Mac's objects in the operator's namespace: its
// ServiceAccount, its Secret, its Lease.
func objectOf(mac string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: system, Name: v1alpha1.AgentObjectName(mac)}
}

func keyOf(m metav1.ObjectMeta) client.ObjectKey {
	return client.ObjectKey{Namespace: m.Namespace, Name: m.Name}
}

func (l looking) itsOwn() map[string]func() error {
	return map[string]func() error{
		"read its MacNode": func() error { return l.a.Get(l.ctx, client.ObjectKey{Name: "mac-1"}, macNamed("")) },
		"list its MacNode by name": func() error {
			return l.a.List(l.ctx, &v1alpha1.MacNodeList{}, client.MatchingFields{"metadata.name": "mac-1"})
		},
		"write its MacNode's status": func() error {
			return l.a.Status().Patch(l.ctx, macNamed("mac-1"), statusPatch, client.DryRunAll, client.ForceOwnership, client.FieldOwner(v1alpha1.ManagerAgent))
		},
		"read its Secret": func() error { return l.a.Get(l.ctx, keyOf(objectOf("mac-1")), &corev1.Secret{}) },
		"renew its Lease": func() error {
			return l.a.Patch(l.ctx, &coordinationv1.Lease{ObjectMeta: objectOf("mac-1")}, leasePatch)
		},
		"make a token of its own": func() error { return l.tokenOf("mac-1") },
	}
}

func (l looking) otherMacs() map[string]func() error {
	return map[string]func() error{
		"read another MacNode": func() error { return l.a.Get(l.ctx, client.ObjectKey{Name: "mac-2"}, macNamed("")) },
		"list all MacNodes":    func() error { return l.a.List(l.ctx, &v1alpha1.MacNodeList{}) },
		"write another MacNode's status": func() error {
			return l.a.Status().Patch(l.ctx, macNamed("mac-2"), statusPatch, client.ForceOwnership, client.FieldOwner(v1alpha1.ManagerAgent))
		},
		"read another Mac's Secret": func() error { return l.a.Get(l.ctx, keyOf(objectOf("mac-2")), &corev1.Secret{}) },
		"renew another Mac's Lease": func() error {
			return l.a.Patch(l.ctx, &coordinationv1.Lease{ObjectMeta: objectOf("mac-2")}, leasePatch)
		},
		"read another Mac's Lease":    func() error { return l.a.Get(l.ctx, keyOf(objectOf("mac-2")), &coordinationv1.Lease{}) },
		"make a token of another Mac": func() error { return l.tokenOf("mac-2") },
		"read another Mac's request": func() error {
			return l.a.Get(l.ctx, client.ObjectKey{Name: "metalfleet-mac-mac-2"}, &certificatesv1.CertificateSigningRequest{})
		},
	}
}

func (l looking) tokenOf(mac string) error {
	return l.a.SubResource("token").Create(l.ctx, &corev1.ServiceAccount{ObjectMeta: objectOf(mac)}, &authenticationv1.TokenRequest{})
}

// authority returns calls that would escalate the agent's permissions.
func (l looking) authority() map[string]func() error {
	secret := func(name string) func() error {
		return func() error {
			return l.a.Get(l.ctx, client.ObjectKey{Namespace: system, Name: name}, &corev1.Secret{})
		}
	}
	role := metav1.ObjectMeta{Name: "metalfleet-mac-mac-1"}
	everything := []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
	return map[string]func() error{
		"read what its join token hung on": secret("join-mac-1"),
		"read the authority":               secret(identity.SecretCA),
		"read the gateways' key":           secret(identity.SecretGateway),
		"list Secrets":                     func() error { return l.a.List(l.ctx, &corev1.SecretList{}, client.InNamespace(system)) },
		"list requests for certificates":   func() error { return l.a.List(l.ctx, &certificatesv1.CertificateSigningRequestList{}) },
		"approve its own request": func() error {
			return l.a.SubResource("approval").Update(l.ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: role})
		},
		"read its role": func() error { return l.a.Get(l.ctx, client.ObjectKey{Name: role.Name}, &rbacv1.ClusterRole{}) },
		"widen its role": func() error {
			return l.a.Patch(l.ctx, &rbacv1.ClusterRole{ObjectMeta: role}, client.RawPatch(types.MergePatchType, []byte(`{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)))
		},
		"make a role": func() error {
			return l.a.Create(l.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Rules: everything})
		},
		"bind itself to a role": func() error {
			return l.a.Create(l.ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "mine"},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: system, Name: v1alpha1.AgentObjectName("mac-1")}},
			})
		},
	}
}

// models returns calls on objects of users and the operator.
func (l looking) models(ns string, replica v1alpha1.ModelReplica) map[string]func() error {
	return map[string]func() error{
		"write its own spec":        func() error { return l.a.Patch(l.ctx, macNamed("mac-1"), specPatch) },
		"make a MacNode":            func() error { return l.a.Create(l.ctx, macNamed("mac-9")) },
		"delete its MacNode":        func() error { return l.a.Delete(l.ctx, macNamed("mac-1")) },
		"write its replica":         func() error { return l.a.Patch(l.ctx, replica.DeepCopy(), specPatch) },
		"read the replica it holds": func() error { return l.a.Get(l.ctx, client.ObjectKeyFromObject(&replica), &v1alpha1.ModelReplica{}) },
		"list replicas":             func() error { return l.a.List(l.ctx, &v1alpha1.ModelReplicaList{}) },
		"read a deployment": func() error {
			return l.a.Get(l.ctx, client.ObjectKey{Namespace: ns, Name: "small"}, &v1alpha1.ModelDeployment{})
		},
	}
}

func TestCertificatesSpeakForTheirNameAlone(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-1", holding(gib))
	w.mac("mac-2", holding(gib))
	gateway, roots, _ := w.secretOf(identity.SecretGateway)
	server, other := w.joined("mac-1").certificate, w.joined("mac-2").certificate

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
	c := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: patience.Most}
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
	w := joins{newWorld(t)}
	mac := w.mac("mac-1", holding(gib))
	key := client.ObjectKey{Namespace: system, Name: "mac-mac-1"}
	_, roots, _ := w.secretOf(identity.SecretGateway)
	var before corev1.Secret
	w.eventually("the Mac's Secret", func() error { return w.c.Get(w.ctx, key, &before) })
	if told := x509.NewCertPool(); !told.AppendCertsFromPEM(before.Data["ca.crt"]) || !told.Equal(roots) || len(before.Data) != 2 || before.Data[agentapi.KeyRevoked] == nil {
		t.Errorf("the Mac's Secret holds %d keys, want the gateways' authority and the deleted Macs alone", len(before.Data))
	}

	// A deleted Role is created again; a widened one is restored.
	w.must(w.c.Delete(w.ctx, &before))
	w.eventually("the Secret is made again", func() error {
		var s corev1.Secret
		if err := w.c.Get(w.ctx, key, &s); err != nil {
			return err
		}
		if s.UID == before.UID || !bytes.Equal(s.Data["ca.crt"], before.Data["ca.crt"]) {
			return errors.New("it is the old one, or of another authority")
		}
		return nil
	})
	role := rbacv1.Role{ObjectMeta: objectOf("mac-1")}
	w.change(&role, func() { role.Rules[1].ResourceNames = nil })
	w.eventually("the Role is narrow again", func() error {
		w.must(w.c.Get(w.ctx, key, &role))
		if len(role.Rules[1].ResourceNames) != 1 {
			return errors.New("it is wide")
		}
		return nil
	})

	w.mint("mac-1")
	w.deleteMac(mac)
	w.macs = nil
	for _, account := range []string{"mac-mac-1", "join-mac-1"} {
		key.Name = account
		for _, o := range []client.Object{&corev1.Secret{}, &corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}} {
			if err := w.c.Get(w.ctx, key, o); !apierrors.IsNotFound(err) {
				t.Errorf("%T %s is left: %v", o, account, err)
			}
		}
		for _, o := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &certificatesv1.CertificateSigningRequest{}} {
			if err := w.c.Get(w.ctx, client.ObjectKey{Name: "metalfleet-" + account}, o); !apierrors.IsNotFound(err) {
				t.Errorf("%T of %s is left: %v", o, account, err)
			}
		}
	}
	if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: "mac-mac-1"}, &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Lease is left: %v", err)
	}
}

// An operator of an old version created the Mac's key.
func TestAKeyInASecretGoes(t *testing.T) {
	w := joins{newWorld(t)}
	_, _, old := w.secretOf(identity.SecretGateway) // of that type, with a key
	w.stop()
	key := client.ObjectKey{Namespace: system, Name: "mac-mac-1"}
	w.must(w.c.Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{v1alpha1.LabelMac: "mac-1"}},
		Type: corev1.SecretTypeTLS, Data: old.Data}))
	w.startOperator()
	w.mac("mac-1", holding(gib))
	w.eventually("the key is gone", func() error {
		var s corev1.Secret
		if err := w.c.Get(w.ctx, key, &s); err != nil {
			return err
		}
		if len(s.Data["tls.key"]) > 0 || len(s.Data["ca.crt"]) == 0 {
			return fmt.Errorf("the Secret holds %d keys", len(s.Data))
		}
		return nil
	})
}
