//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// assignedTo returns, for each Mac, the desired states of its assignments, as "mac-1 Downloaded".
func assignedTo(w *world) (out []string) {
	w.t.Helper()
	for _, a := range w.macs {
		for _, one := range w.assigned(a.Name).Assignments {
			out = append(out, a.Name+" "+string(one.Desired))
		}
	}
	slices.Sort(out)
	return out
}

// prefetched waits until a deployment has a number of replicas, and weights on a number of Macs.
func prefetched(w *world, name string, replicas, macs int32) *v1alpha1.ModelDeployment {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s has %d replicas and weights on %d Macs", name, replicas, macs), func() error {
		d := w.get(name)
		running, downloaded := 0, 0
		for _, a := range assignedTo(w) {
			if strings.HasSuffix(a, string(v1alpha1.DesiredRunning)) {
				running++
			}
			if strings.HasSuffix(a, string(v1alpha1.DesiredDownloaded)) {
				downloaded++
			}
		}
		if d.Status.Replicas != replicas || d.Status.ReadyReplicas != replicas || d.Status.PrefetchedMacs != macs || running != int(replicas) || running+downloaded != int(macs) ||
			d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("%s: %d replicas, %d ready, weights on %d Macs, assigned %v", brief(d), d.Status.Replicas, d.Status.ReadyReplicas, d.Status.PrefetchedMacs, assignedTo(w))
		}
		return wantReason(d.Status.Conditions, v1alpha1.ConditionPrefetched, v1alpha1.ReasonPrefetched)
	})
	return w.get(name)
}

// The weights are there before a replica is, while it is suspended, and where none is needed.
func TestWeightsArePrefetchedWithoutServing(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"mac-1", "mac-2", "mac-3"} {
		w.mac(name, holding(60*gib))
	}
	w.looked()
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas, s.Prefetch.Macs = ptr.To[int32](0), 2 })
	d := prefetched(w, "chat", 0, 2)
	if err := wantReason(d.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonScaledToZero); err != nil {
		t.Error(err)
	}
	if got := assignedTo(w); len(got) != 2 || got[0][:5] == got[1][:5] {
		t.Errorf("assigned %v, want two Macs", got)
	}
	for _, r := range w.replicas("chat") {
		if err := wantReason(r.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonPrefetched); err != nil || r.Spec.NodeName != "" || fleet.ReplicaReady(&r) {
			t.Errorf("%s is on %q: %v", r.Name, r.Spec.NodeName, err)
		}
	}
	// They reserve no memory: replicas that need all of it have room.
	w.deploy("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas, s.Memory.Limit = ptr.To[int32](3), quantity("50Gi") })
	w.deployment("large", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.must(w.c.Delete(w.ctx, w.get("large")))
	w.eventually("the others are gone", func() error {
		if n := len(w.replicas("large")); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})

	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](1) })
	prefetched(w, "chat", 1, 2)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](3) })
	prefetched(w, "chat", 3, 3)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Suspend, s.Prefetch.Macs = true, 3 })
	prefetched(w, "chat", 0, 3)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Prefetch.Macs = 0 })
	w.eventually("no Mac keeps them", func() error {
		if n := len(w.replicas("chat")); n > 0 || len(assignedTo(w)) > 0 || w.get("chat").Status.PrefetchedMacs != 0 {
			return fmt.Errorf("%d replicas, assigned %v", n, assignedTo(w))
		}
		return nil
	})
}

// A prefetch that cannot be done says why, and nothing else waits for it.
func TestAPrefetchSaysWhatItWaitsFor(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	w.play(mac, func(s *fleettest.Script) {
		s.Ahead = func(v1alpha1.Assignment) string { return v1alpha1.ReasonDiskFull }
	})
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas, s.Prefetch.Macs = ptr.To[int32](0), 1 })
	d := w.deployment("chat", v1alpha1.ConditionPrefetched, v1alpha1.ReasonDiskFull)
	wantContains(t, "Prefetched", message(d.Status.Conditions, v1alpha1.ConditionPrefetched), "0 of 1 Macs have the weights", "on mac-1")
	w.play(mac, func(s *fleettest.Script) { s.Ahead = nil })
	prefetched(w, "chat", 0, 1)
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Prefetch.Macs = 2 })
	d = w.deployment("chat", v1alpha1.ConditionPrefetched, v1alpha1.ReasonNoCandidates)
	wantContains(t, "Prefetched", message(d.Status.Conditions, v1alpha1.ConditionPrefetched), "1 of 2 Macs have the weights", "lower spec.prefetch.macs")
}

// A tenant fills no disk with weights beyond what an administrator allows, and none of a Mac
// that it may not use.
func TestAPrefetchObeysTheRulesOfItsNamespace(t *testing.T) {
	w := governed{newWorld(t)}
	for _, name := range []string{"mac-1", "mac-2"} {
		w.mac(name, holding(60*gib))
	}
	w.rules(w.limited(v1alpha1.NamespaceRule{}))
	w.accepted(v1alpha1.ReasonAccepted)
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas, s.Prefetch.Macs = ptr.To[int32](0), 2 })
	d := w.deployment("chat", v1alpha1.ConditionPrefetched, v1alpha1.ReasonOverQuota)
	wantContains(t, "Prefetched", message(d.Status.Conditions, v1alpha1.ConditionPrefetched), "namespace "+w.ns+" may prefetch 0", "prefetchLimit of the NamespaceRules")
	if got := assignedTo(w.world); len(got) > 0 {
		t.Errorf("assigned %v", got)
	}
	w.changeRules(w.limited(v1alpha1.NamespaceRule{PrefetchLimit: quantity("100Mi")})) // one copy
	w.eventually("one Mac keeps them", func() error {
		if d := w.get("chat"); d.Status.PrefetchedMacs != 1 {
			return errors.New(brief(d))
		}
		return wantReason(w.get("chat").Status.Conditions, v1alpha1.ConditionPrefetched, v1alpha1.ReasonOverQuota)
	})
	w.changeRules(w.limited(v1alpha1.NamespaceRule{PrefetchLimit: quantity("1Gi"), MacSelector: &v1alpha1.MacSelector{MatchLabels: map[string]string{"name": "mac-2"}}}))
	w.eventually("only the Mac of the namespace keeps them", func() error {
		if got := assignedTo(w.world); !slices.Equal(got, []string{"mac-2 Downloaded"}) {
			return fmt.Errorf("assigned %v", got)
		}
		return wantReason(w.get("chat").Status.Conditions, v1alpha1.ConditionPrefetched, v1alpha1.ReasonNoCandidates)
	})
}

// TestRolloutsOfANamespacePrefetchInTurns: beyond what the rules allow, one rollout waits for the
// weights of another, and its old replica serves.
func TestRolloutsOfANamespacePrefetchInTurns(t *testing.T) {
	w := governed{newWorld(t)}
	script := holding(3 * gib)
	for _, s := range []string{"hf://org/old", "hf://org/a", "hf://org/b"} {
		m := fleettest.Model(s, s, 200<<20)
		script.Sources[s] = fleettest.Source{Model: &m}
	}
	script.Ahead = func(v1alpha1.Assignment) string { return v1alpha1.ReasonDownloading }
	mac := w.mac("tight", script)
	w.rules(w.limited(v1alpha1.NamespaceRule{}))
	w.accepted(v1alpha1.ReasonAccepted)
	for _, name := range []string{"a", "b"} {
		w.deploy(name, func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Memory.Limit = "hf://org/old", quantity("1300Mi")
		})
		rollouts(w).rollout(name, v1alpha1.RolloutComplete)
	}
	for _, name := range []string{"a", "b"} {
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "hf://org/" + name })
	}
	w.eventually("one rollout prefetches and the other one waits", func() error {
		waits := 0
		for _, name := range []string{"a", "b"} {
			d := w.get(name)
			if d.Status.ReadyReplicas != 1 {
				return errors.New(brief(d))
			}
			if strings.Contains(message(d.Status.Conditions, v1alpha1.ConditionProgressing), "waiting for other rollouts in namespace") {
				waits++
			}
		}
		if got := assignedTo(w.world); waits != 1 || !slices.Equal(got, []string{"tight Downloaded", "tight Running", "tight Running"}) {
			return fmt.Errorf("%d wait, assigned %v", waits, got)
		}
		return nil
	})
	w.play(mac, func(s *fleettest.Script) { s.Ahead = nil })
	for _, name := range []string{"a", "b"} {
		rollouts(w).rollout(name, v1alpha1.RolloutComplete)
	}
}
