package controllers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

const hubSource = "hf://org/private"

// onTheHub returns a Mac with memory that finds a model on the hub.
func onTheHub() fleettest.Script {
	m := fleettest.Model(hubSource, "small", 98_000_000)
	return fleettest.Script{Capacity: 12 * gib, Sources: map[string]fleettest.Source{hubSource: {Model: &m}}}
}

// hubTokens is the world with Secrets that models need.
type hubTokens struct{ *world }

// withToken deploys a model of the hub on one Mac, with a Secret.
func (w hubTokens) withToken(name, mac, secret string) *v1alpha1.ModelDeployment {
	w.t.Helper()
	return w.deploy(name, func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model = v1alpha1.ModelSource{Source: hubSource, SecretRef: &v1alpha1.SecretReference{Name: secret}}
		s.Placement.NodeSelector = map[string]string{"name": mac}
	})
}

// dataOf returns the data of a Mac's Secret.
func (w hubTokens) dataOf(mac string) map[string][]byte {
	w.t.Helper()
	var s corev1.Secret
	key := client.ObjectKey{Namespace: system, Name: v1alpha1.AgentObjectName(mac)}
	w.eventually("Secret "+key.Name, func() error { return w.c.Get(w.ctx, key, &s) })
	return s.Data
}

// tokensOf returns the hub tokens in a Mac's Secret, by reference.
func (w hubTokens) tokensOf(mac string) map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for k, v := range w.dataOf(mac) {
		if ref, ok := strings.CutPrefix(k, v1alpha1.HubTokenKeyPrefix); ok {
			out[ref] = string(v)
		}
	}
	return out
}

// holds waits until a Mac has exactly the tokens wanted.
func (w hubTokens) holds(mac string, want map[string]string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s holds %d hub tokens", mac, len(want)), func() error {
		if got := w.tokensOf(mac); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("it holds %v", got)
		}
		return nil
	})
}

func TestAHubTokenReachesTheMacsThatNeedIt(t *testing.T) {
	w := hubTokens{newWorld(t)}
	w.mac("mac-1", onTheHub())
	w.mac("mac-2", onTheHub())
	w.withToken("private", "mac-1", "hub")
	d := w.deployment("private", v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretForbidden)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "kubectl create rolebinding metalfleet-secrets -n "+w.ns)
	w.letReadSecrets()
	d = w.deployment("private", v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretNotFound)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "kubectl create secret generic hub -n "+w.ns)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "hub"}, StringData: map[string]string{"word": "hf_first"}}
	w.must(w.c.Create(w.ctx, secret))
	w.readAgain("private")
	w.deployment("private", v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretInvalid)
	secret.StringData = map[string]string{"token": "hf_first\n"}
	w.must(w.c.Update(w.ctx, secret))
	w.readAgain("private")
	d = w.deployment("private", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	ref := fleet.TokenRef(d)
	w.holds("mac-1", map[string]string{ref: "hf_first"})
	if got := w.tokensOf("mac-2"); len(got) > 0 {
		t.Errorf("a Mac that neither looks nor holds has %v", got)
	}
	before := w.dataOf("mac-1")["ca.crt"]

	secret.StringData = map[string]string{"token": "hf_second"}
	w.must(w.c.Update(w.ctx, secret))
	w.holds("mac-1", map[string]string{ref: "hf_second"})
	if now := w.dataOf("mac-1")["ca.crt"]; len(now) == 0 || !bytes.Equal(now, before) {
		t.Error("what else the Secret holds changed with the token")
	}
	w.saysNowhere("hf_")

	w.must(w.c.Delete(w.ctx, secret))
	w.readAgain("private", "mac-1")
	w.holds("mac-1", map[string]string{})
	w.deployment("private", v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretNotFound)
	w.deployment("private", v1alpha1.ConditionAvailable, v1alpha1.ReasonPreviousRevision) // the running replica continues
	w.must(w.c.Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "hub"}, StringData: map[string]string{"token": "hf_third"}}))
	w.readAgain("private")
	again := fleet.TokenRef(w.deployment("private", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted))
	if again == ref {
		t.Error("another Secret under the same name inherits what was verified with the earlier one")
	}
	w.readAgain("private", "mac-1")
	w.holds("mac-1", map[string]string{again: "hf_third"})

	w.must(w.c.Delete(w.ctx, d))
	w.holds("mac-1", map[string]string{})
}

// TestAttackASecretOfAnotherNamespace: a name refers to a Secret in the deployment's own
// namespace, even if the operator's namespace has one too.
func TestAttackASecretOfAnotherNamespace(t *testing.T) {
	w := hubTokens{newWorld(t)}
	w.mac("mac-1", onTheHub())
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}
	w.must(w.c.Create(w.ctx, other))
	w.must(w.c.Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: other.Name, Name: "hub"}, StringData: map[string]string{"token": "hf_theirs"}}))
	ours := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "hub"}, StringData: map[string]string{"token": "hf_ours"}}
	w.must(w.c.Create(w.ctx, ours))
	t.Cleanup(func() { w.must(w.c.Delete(w.ctx, ours)) })
	w.letReadSecrets()
	w.withToken("thief", "mac-1", "hub")
	w.deployment("thief", v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretNotFound)
	if got := w.tokensOf("mac-1"); len(got) > 0 {
		t.Errorf("the Mac has %v", got)
	}
	w.must(w.c.Delete(w.ctx, other))
}

// letReadSecrets allows the operator to get the Secrets of the test's namespace, as an
// administrator does.
func (w hubTokens) letReadSecrets() {
	w.t.Helper()
	w.must(w.c.Create(w.ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "metalfleet-secrets"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metalfleet-secret-reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: system, Name: "metalfleet-operator"}}}))
}

// readAgain has the operator read the Secret of a deployment, and what Macs hold of it, before its
// timers of 5 and 10 s do, which the other steps wait for.
func (w hubTokens) readAgain(name string, macs ...string) {
	w.t.Helper()
	w.pass(20 * time.Second) // answers are kept for a while
	w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) {
		s.RevisionHistoryLimit = ptr.To(ptr.Deref(s.RevisionHistoryLimit, 0) + 1)
	})
	for _, mac := range macs {
		touch := fmt.Appendf(nil, `{"metadata":{"annotations":{"woken":"%d"}}}`, time.Now().UnixNano())
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: v1alpha1.AgentObjectName(mac)}}
		w.must(w.c.Patch(w.ctx, secret, client.RawPatch(types.MergePatchType, touch)))
	}
}

// TestTheOperatorReadsNoSecretsByDefault: an administrator grants get per namespace, and no
// role lists or watches the Secrets of users.
func TestTheOperatorReadsNoSecretsByDefault(t *testing.T) {
	w := hubTokens{newWorld(t)}
	for name, want := range map[string]string{"metalfleet-operator": "", "metalfleet-secret-reader": "[get]"} {
		var role rbacv1.ClusterRole
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: name}, &role))
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				if (resource == "secrets" || resource == "*") && fmt.Sprint(r.Verbs) != want {
					t.Errorf("in the whole cluster %s may %v %s", name, r.Verbs, resource)
				}
			}
		}
	}
}

// saysNowhere requires that a text is in no object but Secrets.
func (w hubTokens) saysNowhere(text string) {
	w.t.Helper()
	for _, list := range []client.ObjectList{&v1alpha1.ModelDeploymentList{}, &v1alpha1.ModelReplicaList{}, &v1alpha1.MacNodeList{}, &corev1.EventList{}} {
		w.must(w.c.List(w.ctx, list))
		b, err := json.Marshal(list)
		w.must(err)
		if bytes.Contains(b, []byte(text)) {
			w.t.Errorf("%T says %q", list, text)
		}
	}
}

// An accepted deployment is inspected again when its files or revision change.
func TestAnotherChoiceOfFilesIsLookedAt(t *testing.T) {
	w := hubTokens{newWorld(t)}
	w.mac("mac-1", onTheHub())
	w.deploy("chosen", func(s *v1alpha1.ModelDeploymentSpec) { s.Model = v1alpha1.ModelSource{Source: hubSource} })
	w.deployment("chosen", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	w.edit("chosen", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Revision, s.Model.Files = "v2", []string{"model*"} })
	w.deployment("chosen", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
}
