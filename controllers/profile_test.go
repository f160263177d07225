//go:build !race

package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// profile creates a ModelProfile for the test.
func profile(w *world, name string, spec v1alpha1.ModelProfileSpec) *v1alpha1.ModelProfile {
	w.t.Helper()
	p := &v1alpha1.ModelProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.createForTest(p)
	return p
}

// servedWith waits until a deployment serves one revision with a context and a temperature.
func servedWith(w *world, name string, tokens int64, temperature v1alpha1.Decimal) *v1alpha1.ModelDeployment {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s serves %d tokens at %s", name, tokens, temperature), func() error {
		d, replicas := w.get(name), w.replicas(name)
		one, err := alone(replicas)
		if err != nil {
			return err
		}
		if d.Status.CurrentRevision != one.Spec.Revision || d.Status.UpdateRevision != one.Spec.Revision || one.Spec.Context.MaxTokens != tokens ||
			one.Spec.Sampling.Temperature != temperature || d.Status.Context.MaxTokens != tokens || d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("%s: replica of %s with %+v and %+v", brief(d), one.Spec.Revision, one.Spec.Context, one.Spec.Sampling)
		}
		return nil
	})
	return w.get(name)
}

// A change of a profile rolls out like one of the spec, to the deployments that name it and
// that it changes. What the deployment states stays.
func TestAProfileIsRolledOut(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("plain", nil)
	w.deploy("own", func(s *v1alpha1.ModelDeploymentSpec) {
		s.ProfileName, s.Context.MaxTokens, s.Sampling.Temperature = "base-"+w.ns, 512, "0.9"
	})
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.ProfileName = "base-" + w.ns })
	w.deployment("chat", v1alpha1.ConditionStalled, v1alpha1.ReasonProfileNotFound)
	p := profile(w, "base-"+w.ns, v1alpha1.ModelProfileSpec{Context: v1alpha1.ContextSpec{MaxTokens: 1024}, Sampling: v1alpha1.SamplingSpec{Temperature: "0.2"}})
	first := servedWith(w, "chat", 1024, "0.2")
	plain, own := w.deployment("plain", v1alpha1.ConditionReady, v1alpha1.ReasonReady), servedWith(w, "own", 512, "0.9")

	w.change(p, func() { p.Spec.Context.MaxTokens, p.Spec.Sampling.Temperature = 2048, "0.3" })
	second := servedWith(w, "chat", 2048, "0.3")
	if second.Status.CurrentRevision == first.Status.CurrentRevision {
		t.Error("the change of the profile made no revision")
	}
	for name, before := range map[string]*v1alpha1.ModelDeployment{"plain": plain, "own": own} {
		if now := w.get(name); now.Status.UpdateRevision != before.Status.UpdateRevision {
			t.Errorf("%s got revision %s, had %s", name, now.Status.UpdateRevision, before.Status.UpdateRevision)
		}
	}

	// Without the profile, the last revision serves on.
	w.must(w.c.Delete(w.ctx, p))
	d := w.deployment("chat", v1alpha1.ConditionStalled, v1alpha1.ReasonProfileNotFound)
	wantContains(t, "the message", message(d.Status.Conditions, v1alpha1.ConditionReady), "ModelProfile base-"+w.ns+" does not exist", "kubectl get modelprofile")
	if d.Status.ReadyReplicas != 1 || d.Status.CurrentRevision != second.Status.CurrentRevision {
		t.Errorf("without its profile: %s", brief(d))
	}
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.ProfileName = "" })
	servedWith(w, "chat", 8192, "")
}

func TestAProfileThatContradictsADeploymentIsRefused(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	profile(w, "narrow-"+w.ns, v1alpha1.ModelProfileSpec{Context: v1alpha1.ContextSpec{KVCacheTokens: 1024}})
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.ProfileName, s.Context.MaxTokens = "narrow-"+w.ns, 2048
	})
	w.deployment("chat", v1alpha1.ConditionStalled, v1alpha1.ReasonProfileConflict)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 })
	servedWith(w, "chat", 512, "")
}

func TestProfilesAreValidated(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ spec, sentence string }{
		"everything":            {spec: "{context: {maxTokens: 64}, sampling: {temperature: '1'}, chatTemplate: x, prefixCache: {diskLimit: 1Gi, sharedPrefixes: [a]}}"},
		"nothing":               {spec: "{}"},
		"a model":               {spec: "{model: {source: 'file://a'}}", sentence: "unknown field"},
		"tolerations":           {spec: "{placement: {tolerations: []}}", sentence: "unknown field"},
		"a cache that is small": {spec: "{context: {maxTokens: 64, kvCacheTokens: 32}}", sentence: "context.kvCacheTokens must be at least context.maxTokens"},
		"a high temperature":    {spec: "{sampling: {temperature: '3'}}", sentence: "sampling.temperature must be from 0 to 2"},
		"five shared prefixes":  {spec: "{prefixCache: {sharedPrefixes: [a, b, c, d, e]}}", sentence: "at most 4 items"},
		"a template of 16385":   {spec: "{chatTemplate: '" + strings.Repeat("x", 16385) + "'}", sentence: "may not be more than 16384"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelProfile\nmetadata: {name: p}\nspec: " + tc.spec)
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
	for name, sentence := range map[string]string{"base": "", "Base": "profileName must be the name of a ModelProfile", strings.Repeat("x", 64): "may not be more than 63"} {
		u := s.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec: {model: {source: 'file://a'}, profileName: " + name + "}")
		s.want(s.c.Create(s.ctx, u, client.DryRunAll), sentence)
	}
}
