//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// governed is the world with NamespaceRules.
type governed struct{ *world }

// rules creates the NamespaceRules of the cluster.
func (w governed) rules(spec v1alpha1.NamespaceRulesSpec) *v1alpha1.NamespaceRules {
	w.t.Helper()
	r := &v1alpha1.NamespaceRules{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceRulesName}, Spec: spec}
	w.createForTest(r)
	return r
}

// limited are the rules of the namespace of a test.
func (w governed) limited(r v1alpha1.NamespaceRule) v1alpha1.NamespaceRulesSpec {
	return v1alpha1.NamespaceRulesSpec{Namespaces: []v1alpha1.RulesOfNamespace{{Name: w.ns, NamespaceRule: r}}}
}

// changeRules writes another spec.
func (w governed) changeRules(spec v1alpha1.NamespaceRulesSpec) {
	w.t.Helper()
	r := &v1alpha1.NamespaceRules{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceRulesName}}
	w.change(r, func() { r.Spec = spec })
}

// accepted waits until the operator has judged the rules with a reason, and used until the
// namespace of the test has this use.
func (w governed) accepted(reason string) *v1alpha1.NamespaceRules {
	w.t.Helper()
	r := &v1alpha1.NamespaceRules{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceRulesName}}
	w.eventually("the rules have the reason "+reason, func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(r), r); err != nil {
			return err
		}
		if r.Status.ObservedGeneration != r.Generation {
			return errors.New("the status is of another generation")
		}
		return wantReason(r.Status.Conditions, v1alpha1.ConditionAccepted, reason)
	})
	return r
}

func (w governed) used(want v1alpha1.NamespaceUse) {
	w.t.Helper()
	w.eventually("the rules report the use of the namespace", func() error {
		for _, u := range w.accepted(v1alpha1.ReasonAccepted).Status.Namespaces {
			if u.Name == want.Name {
				if u.Replicas != want.Replicas || u.ReservedBytes != want.ReservedBytes || u.MemoryLimitBytes == nil || *u.MemoryLimitBytes != *want.MemoryLimitBytes {
					return fmt.Errorf("%+v", u)
				}
				return nil
			}
		}
		return errors.New("it is not listed")
	})
}

// They take effect, also after changes, and report what is used of them.
func TestTheRulesOfAnAdministratorBoundANamespace(t *testing.T) {
	w := governed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	limit := func(text string) v1alpha1.NamespaceRulesSpec {
		return w.limited(v1alpha1.NamespaceRule{MemoryLimit: quantity(text)})
	}
	w.rules(limit("20Gi"))
	bytes := 30 * gib
	w.accepted(v1alpha1.ReasonAccepted)
	w.deploy("big", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("30Gi") })
	d := w.deployment("big", v1alpha1.ConditionPlaced, v1alpha1.ReasonOverQuota)
	wantContains(t, "Placed", message(d.Status.Conditions, v1alpha1.ConditionPlaced), "namespace "+w.ns+" may reserve 20.0 GiB")
	w.changeRules(limit("30Gi"))
	w.deployment("big", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.used(v1alpha1.NamespaceUse{Name: w.ns, Replicas: 1, ReservedBytes: bytes, MemoryLimitBytes: &bytes})
	if s := w.accepted(v1alpha1.ReasonAccepted).Status.Summary; s.Fullest != w.ns+" 100%" || s.Reserved != "30.0 GiB" {
		t.Errorf("summary %+v", s)
	}
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionPlaced, v1alpha1.ReasonOverQuota)
	w.must(w.c.Delete(w.ctx, &v1alpha1.NamespaceRules{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceRulesName}}))
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

// A replica stays off the Macs of others, and rules that cannot work are named.
func TestTheRulesOfANamespaceSelectItsMacs(t *testing.T) {
	w := governed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(100*gib))
	named := func(mac string) v1alpha1.NamespaceRulesSpec {
		return w.limited(v1alpha1.NamespaceRule{MacSelector: &v1alpha1.MacSelector{MatchLabels: map[string]string{"name": mac}}})
	}
	spec := named("mac-3")
	spec.Namespaces = append(spec.Namespaces, v1alpha1.RulesOfNamespace{Name: "nowhere"})
	w.rules(spec)
	r := w.accepted(v1alpha1.ReasonUnknownNamespace)
	wantContains(t, "Accepted", message(r.Status.Conditions, v1alpha1.ConditionAccepted), "there is no namespace nowhere", "namespace "+w.ns+" has a macSelector that matches no Mac")
	w.changeRules(named("mac-3"))
	w.accepted(v1alpha1.ReasonContradictingRules)
	w.deploy("chat", nil)
	d := w.deployment("chat", v1alpha1.ConditionAccepted, v1alpha1.ReasonNoMacs)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "the rules of the namespace")
	w.changeRules(named("mac-2"))
	w.accepted(v1alpha1.ReasonAccepted)
	w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if replica, err := alone(w.replicas("chat")); err != nil || replica.Spec.NodeName != "mac-2" {
		t.Errorf("%+v, %v, want it on mac-2", replica, err)
	}
	w.changeRules(named("mac-3"))
	w.accepted(v1alpha1.ReasonContradictingRules)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	d = w.deployment("chat", v1alpha1.ConditionPlaced, v1alpha1.ReasonNoCandidates)
	wantContains(t, "Placed", message(d.Status.Conditions, v1alpha1.ConditionPlaced), "2 not among the Macs that the namespace may use")
}

// The Mac that the rules allow then inspects the source for another namespace already, so that it
// reports nothing new.
func TestRulesThatAllowAMacWhoseReportIsKnown(t *testing.T) {
	w := governed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	named := func(mac string) v1alpha1.NamespaceRulesSpec {
		return w.limited(v1alpha1.NamespaceRule{MacSelector: &v1alpha1.MacSelector{MatchLabels: map[string]string{"name": mac}}})
	}
	w.rules(named("mac-2"))
	other := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "chat-of-others"}, Spec: v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: source}}}
	w.must(w.c.Create(w.ctx, other))
	w.eventually("the source is inspected for another namespace", func() error {
		w.must(w.c.Get(w.ctx, client.ObjectKeyFromObject(other), other))
		return wantReason(other.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	})
	w.deploy("chat", nil)
	w.deployment("chat", v1alpha1.ConditionAccepted, v1alpha1.ReasonNoMacs)
	w.changeRules(named("mac-1"))
	w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func TestNamespaceRulesSchema(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ name, spec, sentence string }{
		"nothing":                      {"metalfleet", "{}", ""},
		"another name":                 {"tenants", "{}", "a cluster has one NamespaceRules, named metalfleet"},
		"every rule":                   {"metalfleet", "{onDemandOvercommitPercent: 150, default: {memoryLimit: 64Gi, replicasPerMac: 64, sources: ['*'], servedNames: ['{namespace}/*', a], priorityClasses: [a], tolerations: ['a/*'], maxEvictionPriority: -1}, namespaces: [{name: a, memoryLimit: 0, macSelector: {matchLabels: {team: a}}}]}", ""},
		"a namespace twice":            {"metalfleet", "{namespaces: [{name: a}, {name: a}]}", "Duplicate value"},
		"no namespace":                 {"metalfleet", "{namespaces: [{name: A_b}]}", "name must be the name of a namespace"},
		"an overcommitment below one":  {"metalfleet", "{onDemandOvercommitPercent: 50}", "should be greater than or equal to 100"},
		"more replicas than a Mac has": {"metalfleet", "{default: {replicasPerMac: 65}}", "should be less than or equal to 64"},
		"a source without a scheme":    {"metalfleet", "{default: {sources: [mlx-community/a]}}", "a source must be * or a URL"},
		"a source with a space":        {"metalfleet", "{default: {sources: ['hf://a hf://b']}}", "should match"},
		"a star inside a source":       {"metalfleet", "{default: {sources: ['hf://*/a']}}", "* may only be the last character of a source"},
		"the endpoint of a bucket":     {"metalfleet", "{default: {sources: ['s3://a/b/*?endpoint=https://minio.example']}}", ""},
		"a star inside a name":         {"metalfleet", "{namespaces: [{name: a, servedNames: ['*-chat']}]}", "* may only be the last character of a name"},
		"a star inside a taint":        {"metalfleet", "{default: {tolerations: ['*/a']}}", "* may only be the last character of the key of a taint"},
		"an empty selector":            {"metalfleet", "{default: {macSelector: {}}}", "Required value"},
		"a field of the values":        {"metalfleet", "{default: {memory: 1Gi}}", "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object(fmt.Sprintf("apiVersion: metalfleet.dev/v1alpha1\nkind: NamespaceRules\nmetadata: {name: %s}\nspec: %s", tc.name, tc.spec))
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

// TestAttackOnDemandReplicasThatBecomeAlways: an OnDemand replica takes nothing of the limit of its
// namespace, and may be changed in place.
func TestAttackOnDemandReplicasThatBecomeAlways(t *testing.T) {
	w := governed{newWorld(t)}
	w.mac("mac-1", holding(40*gib))
	w.rules(w.limited(v1alpha1.NamespaceRule{MemoryLimit: quantity("30Gi")}))
	names := []string{"first", "second", "third"}
	for _, name := range names {
		w.deploy(name, func(s *v1alpha1.ModelDeploymentSpec) {
			onDemand(s)
			s.Memory.Limit = quantity("20Gi")
		})
	}
	for _, name := range names {
		w.deployment(name, v1alpha1.ConditionReady, v1alpha1.ReasonOnDemand)
	}
	for _, name := range names {
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Residency = v1alpha1.ResidencySpec{} })
	}
	residents := func(want int) {
		t.Helper()
		w.eventually(fmt.Sprintf("%d replicas are Always, and the others report why not", want), func() error {
			n, refused := 0, 0
			for _, name := range names {
				for _, r := range w.replicas(name) {
					if !r.Spec.Residency.OnDemand() {
						n++
					} else if strings.Contains(message(r.Status.Conditions, v1alpha1.ConditionPlaced), "it stays OnDemand: ") {
						refused++
					}
				}
			}
			if n != want || refused != len(names)-want {
				return fmt.Errorf("%d are, and %d report why not", n, refused)
			}
			return nil
		})
	}
	residents(1) // 30 GiB for the namespace
	w.changeRules(w.limited(v1alpha1.NamespaceRule{MemoryLimit: quantity("90Gi")}))
	residents(2) // 40 GiB on the Mac
}
