package controllers_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func pemKey(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func der(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	return block.Bytes
}

func says(err error, part string) bool { return strings.Contains(err.Error(), part) }

// forged returns a request with any content.
func (w joins) forged(change func(*x509.CertificateRequest)) []byte {
	w.t.Helper()
	key, err := join.NewKey()
	w.must(err)
	r := x509.CertificateRequest{Subject: pkix.Name{CommonName: "mac-a", Organization: []string{join.Organization}}, DNSNames: []string{agentapi.MacServerName("mac-a")}}
	change(&r)
	raw, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	w.must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw})
}

// TestAttackAJoinTokenIsUsedTwice: a second user of the token is too late, and receives
// nothing of what the first one received.
func TestAttackAJoinTokenIsUsedTwice(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	c := w.as(w.mint("mac-a").Credential)
	_, request := w.request("mac-a")
	w.create(c, asked("join-mac-a", request))
	first, reason := w.outcome("metalfleet-join-mac-a")
	if reason != "" {
		t.Fatal(reason)
	}
	// Before the first one has collected it, the envelope exists, but is sealed.
	var anchor corev1.Secret
	w.eventually("the Secret is read", func() error {
		return c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: "join-mac-a"}, &anchor)
	})
	key, stolen := w.request("mac-a")
	if _, err := join.Open(key, string(first.UID), anchor.Data[join.KeyAccess]); err == nil {
		t.Error("another key opens the envelope")
	}
	// The thief deletes it to make room for a request of its own.
	w.stop()
	w.must(c.Delete(w.ctx, first))
	w.must(c.Create(w.ctx, asked("join-mac-a", stolen)))
	w.startOperator()
	if _, reason := w.outcome("metalfleet-join-mac-a"); reason != join.ReasonTokenUsed {
		t.Errorf("a token was used twice: %q", reason)
	}
	// Now it is invalid: the API server may cache the credential for 10 s.
	w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, &anchor)))
	w.must(w.c.Delete(w.ctx, asked("join-mac-a", nil)))
	w.worthless("a burned token", c, asked("join-mac-a", stolen), join.ReasonTokenUsed)
}

// worthless requires that a join token without its Secret is useless. The API server learns
// of the deletion by a watch, and may accept the token for 10 s more: until then the
// operator refuses its requests.
func (w joins) worthless(what string, c client.Client, request *certificatesv1.CertificateSigningRequest, refusal string) {
	w.t.Helper()
	w.eventually(what+" is worthless", func() error {
		err := c.Create(w.ctx, request.DeepCopy())
		if apierrors.IsUnauthorized(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("got %w, want Unauthorized", err)
		}
		csr, reason := w.outcome(request.Name)
		if reason != refusal {
			w.t.Fatalf("%s was used: refused for %q, want %q", what, reason, refusal)
		}
		w.must(w.c.Delete(w.ctx, csr))
		return errors.New("the API server still knows it")
	})
}

// TestAttackAJoinTokenThatEnded: its Secret is deleted when it expires, and the token
// becomes invalid with it.
func TestAttackAJoinTokenThatEnded(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	token := w.mint("mac-a")
	var anchor corev1.Secret
	key := client.ObjectKey{Namespace: system, Name: "join-mac-a"}
	w.must(w.c.Get(w.ctx, key, &anchor))
	w.clock.jump(2 * time.Hour)
	w.wake(&anchor)
	w.eventually("the Secret is gone", func() error {
		if err := w.c.Get(w.ctx, key, &anchor); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
	_, request := w.request("mac-a")
	w.worthless("a token without its Secret", w.as(token.Credential), asked("join-mac-a", request), join.ReasonTokenUsed)
}

// TestAttackAJoinTokenThatWasReplaced also covers a token that the operator did not mint.
func TestAttackAJoinTokenThatWasReplaced(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	old := w.mint("mac-a")
	w.mint("mac-a")
	_, request := w.request("mac-a")
	w.worthless("a replaced token", w.as(old.Credential), asked("join-mac-a", request), join.ReasonTokenReplaced)
	// A token of the same account that is bound to nothing.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "join-mac-a"}}
	loose := &authenticationv1.TokenRequest{}
	w.must(w.c.SubResource("token").Create(w.ctx, account, loose))
	w.create(w.as(loose.Status.Token), asked("join-mac-a", request))
	if _, reason := w.outcome("metalfleet-join-mac-a"); reason != join.ReasonTokenReplaced {
		t.Errorf("a forged token: %q", reason)
	}
}

// TestAttackForgedRequests: each is refused, and a valid one with the same token is signed
// afterwards.
func TestAttackForgedRequests(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	w.mac("mac-ab", holding(gib))
	c := w.as(w.mint("mac-a").Credential)
	subject := func(change func(*pkix.Name)) func() []byte {
		return func() []byte { return w.forged(func(r *x509.CertificateRequest) { change(&r.Subject) }) }
	}
	for what, forge := range map[string]func() []byte{
		"another Mac's name": func() []byte { _, r := w.request("mac-ab"); return r },
		"a shorter name":     func() []byte { _, r := w.request("mac-"); return r },
		"another Mac's DNS name": func() []byte {
			return w.forged(func(r *x509.CertificateRequest) { r.DNSNames = []string{agentapi.MacServerName("mac-ab")} })
		},
		"the gateways' name and its own": func() []byte {
			return w.forged(func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, agentapi.GatewayName) })
		},
		"an organization more": subject(func(n *pkix.Name) { n.Organization = append(n.Organization, "system:masters") }),
		"system:masters":       subject(func(n *pkix.Name) { n.Organization = []string{"system:masters"} }),
		"a user of Kubernetes": subject(func(n *pkix.Name) { n.CommonName = "system:kube-controller-manager" }),
	} {
		w.create(c, asked("join-mac-a", forge()))
		csr, reason := w.outcome("metalfleet-join-mac-a")
		if reason != join.ReasonWrongRequest || len(csr.Status.Certificate) > 0 {
			t.Errorf("a request for %s: %q", what, reason)
		}
		w.must(c.Delete(w.ctx, csr))
	}
	_, request := w.request("mac-a")
	w.create(c, asked("join-mac-a", request))
	if _, reason := w.outcome("metalfleet-join-mac-a"); reason != "" {
		t.Errorf("a good one: %q", reason)
	}
}

// TestAttackRequestsThatPolicyRefuses: these are never stored as objects.
func TestAttackRequestsThatPolicyRefuses(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	w.mac("mac-ab", holding(gib))
	_, request := w.request("mac-a")
	joiner, agent := w.as(w.mint("mac-a").Credential), w.asAgent("mac-a")
	good := asked("mac-mac-a", request)
	w.create(agent, good)
	w.must(w.c.Delete(w.ctx, good))
	type csr = certificatesv1.CertificateSigningRequest
	for what, change := range map[string]func(*csr){
		"for another signer":          func(r *csr) { r.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName },
		"for clients":                 func(r *csr) { r.Spec.Usages[1] = certificatesv1.UsageClientAuth },
		"for clients and servers":     func(r *csr) { r.Spec.Usages = append(r.Spec.Usages, certificatesv1.UsageClientAuth) },
		"for signing":                 func(r *csr) { r.Spec.Usages[0] = certificatesv1.UsageCertSign },
		"under another Mac's name":    func(r *csr) { r.Name = "metalfleet-mac-mac-ab" },
		"under another's join name":   func(r *csr) { r.Name = "metalfleet-join-mac-ab" },
		"under any name":              func(r *csr) { r.Name = "mine" },
		"under a name that is chosen": func(r *csr) { r.Name, r.GenerateName = "", "metalfleet-mac-" },
		"with a finalizer":            func(r *csr) { r.Finalizers = []string{"example.com/kept"} },
		"that a ConfigMap owns": func(r *csr) {
			r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}
		},
		"with labels":          func(r *csr) { r.Labels = map[string]string{"x": "y"} },
		"with annotations":     func(r *csr) { r.Annotations = map[string]string{"x": "y"} },
		"with a long preamble": func(r *csr) { r.Spec.Request = append([]byte(strings.Repeat("x\n", 4096)), r.Spec.Request...) },
	} {
		for who, c := range map[string]client.Client{"an agent": agent, "a join token": joiner} {
			bad := asked("mac-mac-a", request)
			if who == "a join token" {
				bad = asked("join-mac-a", request)
			}
			change(bad)
			if err := c.Create(w.ctx, bad); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				t.Errorf("a request %s of %s: %v, want a refusal", what, who, err)
			}
		}
	}
}

// TestAttackOthersAskOurSigner: neither permission to create requests nor another
// approver's approval gives a Mac's certificate.
func TestAttackOthersAskOurSigner(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(gib))
	_, request := w.request("mac-a")
	for _, name := range []string{"metalfleet-mac-mac-a", "mine"} {
		mine := asked("mac-mac-a", append([]byte(strings.Repeat("x\n", 1<<18)), request...))
		mine.Name = name
		if err := w.c.Create(w.ctx, mine); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("an administrator's request %s: %v, want a refusal", name, err)
		}
	}

	agent, mine := w.asAgent("mac-a"), asked("mac-mac-a", request)
	w.create(agent, mine) // it has its rights
	w.must(w.c.Delete(w.ctx, mine))
	w.stop() // so that the approval comes first
	_, request = w.request("mac-b")
	mine = asked("mac-mac-a", request)
	w.create(agent, mine)
	w.must(w.c.Get(w.ctx, client.ObjectKeyFromObject(mine), mine))
	mine.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand"}}
	w.must(w.c.SubResource("approval").Update(w.ctx, mine))
	w.startOperator()
	csr, reason := w.outcome(mine.Name)
	if reason != join.ReasonWrongRequest || len(csr.Status.Certificate) > 0 {
		t.Errorf("a request that was approved by hand: %q", reason)
	}
	w.must(w.c.Delete(w.ctx, csr))
}

// TestAttackAnOldAccountAsks: a Mac was deleted, and a new one has its name.
func TestAttackAnOldAccountAsks(t *testing.T) {
	w := joins{newWorld(t)}
	first := w.mac("mac-a", holding(gib))
	old := w.asAgent("mac-a")
	_, request := w.request("mac-a")
	csr := asked("mac-mac-a", request)
	w.create(old, csr)
	w.must(old.Delete(w.ctx, csr))
	var account corev1.ServiceAccount
	w.must(w.c.Get(w.ctx, keyOf(objectOf("mac-a")), &account))
	first.Stop()
	w.must(w.declareLost("mac-a"))
	w.deleteMacNode("mac-a")
	w.macGone("mac-a")
	w.macs = nil
	w.mac("mac-a", holding(gib))
	w.eventually("the old token is refused", func() error {
		err := old.SubResource("token").Create(w.ctx, account.DeepCopy(), &authenticationv1.TokenRequest{})
		if err == nil {
			t.Fatal("the old account made a token of the new one")
		}
		if !apierrors.IsUnauthorized(err) {
			return err
		}
		return nil
	})
	// The API server may accept the old token for 10 s more: simulate that.
	w.create(w.asAccount(&account), csr)
	if _, reason := w.outcome(csr.Name); reason != join.ReasonOldAccount {
		t.Errorf("a request of the old account: %q", reason)
	}
	w.must(w.c.Delete(w.ctx, csr.DeepCopy()))
	if err := old.Create(w.ctx, csr); err == nil {
		if _, reason := w.outcome(csr.Name); reason != join.ReasonOldAccount {
			t.Errorf("the old account's request: %q", reason)
		}
	} else if !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
		t.Errorf("the old account: %v", err)
	}
}

// asAccount returns a client that the API server authenticates as a ServiceAccount,
// including its UID.
func (w joins) asAccount(a *corev1.ServiceAccount) client.Client {
	w.t.Helper()
	config := env.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + a.Namespace + ":" + a.Name, UID: string(a.UID),
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.Namespace, "system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: w.c.Scheme(), Mapper: w.c.RESTMapper()})
	w.must(err)
	return c
}

// TestAttackAnAgentWithTooManyRights: regardless of the roles that are bound to its
// account, the admission policies restrict it to its own status and conditions.
func TestAttackAnAgentWithTooManyRights(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("mac-a", holding(60*gib))
	w.mac("mac-ab", holding(60*gib))
	d := w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	replica := w.replicas("small")[0]
	a := w.mayDoAnything("mac-a")
	forged := func(kind string) error {
		return applied(w.ctx, a, "mac-a", v1alpha1.MacNodeStatus{Conditions: forgedCondition(kind)}, v1alpha1.ManagerAgent, client.DryRunAll)
	}
	figure := mergeOf(`{"status":{"agentVersion":"x"}}`)
	w.must(applied(w.ctx, a, "mac-a", v1alpha1.MacNodeStatus{AgentVersion: "x"}, v1alpha1.ManagerAgent, client.DryRunAll))

	own := v1alpha1.AgentObjectName("mac-a")
	w.accountsAreThere(own, "mac-mac-ab", "join-mac-ab", "metalfleet-operator")
	token := func(account string, seconds int64) func() error {
		return func() error {
			return a.SubResource("token").Create(w.ctx, serviceAccount(account), accountToken(seconds))
		}
	}
	edit := func(o client.Object, text string) func() error {
		return func() error { return a.Patch(w.ctx, o, mergeOf(text)) }
	}
	for what, do := range map[string]func() error{
		"write another Mac's status": func() error {
			return a.Status().Patch(w.ctx, namedMac("mac-ab"), figure, client.FieldOwner(v1alpha1.ManagerAgent))
		},
		"write its own spec":      edit(namedMac("mac-a"), `{"spec":{"unschedulable":true}}`),
		"clear its own caches":    edit(namedMac("mac-a"), `{"spec":{"clearCache":{"request":"r"}}}`),
		"change its own settings": edit(namedMac("mac-a"), `{"spec":{"settings":{"logLevel":"Debug"}}}`),
		"label its MacNode":       edit(namedMac("mac-a"), `{"metadata":{"labels":{"x":"y"}}}`),
		"make a MacNode":          func() error { return a.Create(w.ctx, namedMac("mac-z")) },
		"delete its MacNode":      func() error { return a.Delete(w.ctx, namedMac("mac-a")) },
		"write its replica":       edit(replica.DeepCopy(), `{"metadata":{"labels":{"x":"y"}}}`),
		"write its replica's status": func() error {
			return a.Status().Patch(w.ctx, replica.DeepCopy(), mergeOf(`{"status":{"conditions":[]}}`))
		},
		"delete a deployment": func() error { return a.Delete(w.ctx, d.DeepCopy()) },
		"set its own Ready":   func() error { return forged(v1alpha1.ConditionReady) },
		"drop all conditions": func() error {
			return a.Status().Patch(w.ctx, namedMac("mac-a"), mergeOf(`{"status":{"conditions":null}}`), client.FieldOwner(v1alpha1.ManagerAgent))
		},
		"make up a condition": func() error { return forged("Blessed") },
		"make up an assignment's": func() error {
			return applied(w.ctx, a, "mac-a", v1alpha1.MacNodeStatus{Assignments: []v1alpha1.AssignmentStatus{{ReplicaUID: "u", Epoch: 1, Conditions: forgedCondition("Ready")}}}, v1alpha1.ManagerAgent, client.DryRunAll)
		},
		"make a token of another Mac":    token("mac-mac-ab", 3600),
		"make a token of the operator":   token("metalfleet-operator", 3600),
		"make a token that hardly ends":  token(own, 8*24*3600),
		"make a token of another's join": token("join-mac-ab", 3600),
	} {
		err := do()
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !says(err, "ValidatingAdmissionPolicy") {
			t.Errorf("with too many rights an agent could %s: %v, want a policy's refusal", what, err)
		}
	}
	w.must(forged(v1alpha1.ConditionGuardInactive))
}

// mayDoAnything is an agent whose account is bound to a role with all rights.
func (w joins) mayDoAnything(mac string) client.Client {
	w.t.Helper()
	all := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "too-much-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: system, Name: v1alpha1.AgentObjectName(mac)}}}
	w.must(w.c.Create(w.ctx, all))
	w.t.Cleanup(func() { w.must(w.c.Delete(w.ctx, all)) })
	a := w.asAgent(mac)
	w.eventually("it may do anything in the cluster", func() error { return a.List(w.ctx, &corev1.SecretList{}) })
	return a
}

// accountsAreThere waits for accounts: a token of a missing one is not forbidden, but not found.
func (w joins) accountsAreThere(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.eventually(name+" is there", func() error {
			return w.c.Get(w.ctx, client.ObjectKeyFromObject(serviceAccount(name)), serviceAccount(name))
		})
	}
}

func forgedCondition(kind string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "Forged", LastTransitionTime: metav1.Now()}}
}

func namedMac(name string) *v1alpha1.MacNode {
	return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func mergeOf(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }

func serviceAccount(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
}

func accountToken(seconds int64) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
}

// TestAttackMetadataInTheOperatorsMemory: a tenant's metadata and the copy of the spec in each
// revision are not cached, and no write of the operator removes them.
func TestAttackMetadataInTheOperatorsMemory(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	large := strings.Repeat("x", 100<<10)
	d := w.deploy("large", nil)
	w.must(w.c.Patch(w.ctx, d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"a":%q},"labels":{"l":"v"}}}`, large))))
	w.deployment("large", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	first := w.get("large").Status.UpdateRevision
	w.edit("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 64 }) // a second revision
	w.eventually("a second revision", func() error {
		if d = w.get("large"); d.Status.ObservedGeneration != d.Generation || d.Status.UpdateRevision == first {
			return errors.New(brief(d))
		}
		return nil
	})
	w.edit("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 0 }) // the first becomes the newest
	w.eventually("the first revision again", func() error {
		if d = w.get("large"); d.Status.ObservedGeneration != d.Generation {
			return errors.New(brief(d))
		}
		return nil
	})
	if len(d.Annotations["a"]) != len(large) || d.Labels["l"] != "v" || len(d.Finalizers) == 0 {
		t.Errorf("the deployment has %d annotations, labels %v and finalizers %v", len(d.Annotations), d.Labels, d.Finalizers)
	}
	var stored, cached appsv1.ControllerRevisionList
	w.must(w.c.List(w.ctx, &stored, client.InNamespace(w.ns)))
	w.must(w.mgr.GetClient().List(w.ctx, &cached, client.InNamespace(w.ns)))
	if len(stored.Items) != 2 || len(cached.Items) != 2 {
		t.Fatalf("%d revisions, %d cached, want 2", len(stored.Items), len(cached.Items))
	}
	for i := range stored.Items {
		if stored.Items[i].Annotations[v1alpha1.AnnotationSpec] == "" {
			t.Errorf("revision %s lost the spec that an undo restores", stored.Items[i].Name)
		}
		if n := len(cached.Items[i].Annotations); n > 0 {
			t.Errorf("revision %s is cached with %d annotations", cached.Items[i].Name, n)
		}
	}
	var kept v1alpha1.ModelDeployment
	w.must(w.mgr.GetClient().Get(w.ctx, client.ObjectKeyFromObject(d), &kept))
	if kept.Annotations["a"] != "" || len(kept.Annotations) > 3 || len(kept.Labels) > 0 || len(kept.Finalizers) == 0 {
		t.Errorf("cached with %d annotations, %d labels and finalizers %v", len(kept.Annotations), len(kept.Labels), kept.Finalizers)
	}
}

// applied is the error of a status that is written by server-side apply.
func applied(ctx context.Context, c client.Client, mac string, s v1alpha1.MacNodeStatus, manager string, more ...client.SubResourcePatchOption) error {
	b, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "MacNode", "status": s})
	if err != nil {
		return err
	}
	return c.Status().Patch(ctx, macNamed(mac), client.RawPatch(types.ApplyPatchType, b), append(more, client.FieldOwner(manager), client.ForceOwnership)...)
}
