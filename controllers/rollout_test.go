//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// spoilt generates no token with 512 tokens of context.
func spoilt(s *fleettest.Script) {
	s.Behave = func(a v1alpha1.Assignment) fleettest.Behaviour {
		if a.Context.MaxTokens == 512 {
			return fleettest.NoCanary
		}
		return fleettest.Serve
	}
}

// rollouts is the world in which a revision replaces another.
type rollouts struct{ *world }

// rollout waits until a deployment's rollout is in a state.
func (w rollouts) rollout(name string, state v1alpha1.RolloutState) *v1alpha1.ModelDeployment {
	w.t.Helper()
	var d *v1alpha1.ModelDeployment
	w.eventually(fmt.Sprintf("the rollout of %s is %s", name, state), func() error {
		if d = w.get(name); d.Status.ObservedGeneration != d.Generation || d.Status.Rollout.State != state {
			return errors.New(brief(d))
		}
		return nil
	})
	return d
}

// This includes a swap, which took the old one's memory; a corrected spec continues.
func TestABadRevisionIsHaltedAndTheOldOneServes(t *testing.T) {
	w := rollouts{newWorld(t)}
	roomy, tight := holding(60*gib), holding(3*gib)
	spoilt(&roomy)
	spoilt(&tight)
	w.mac("roomy", roomy)
	w.mac("tight", tight)
	w.looked()
	for _, mac := range []string{"roomy", "tight"} {
		w.deploy(mac, func(s *v1alpha1.ModelDeploymentSpec) {
			s.Placement.NodeSelector = map[string]string{"name": mac}
			if mac == "tight" {
				s.Memory.Limit = quantity("2Gi")
			}
		})
	}
	for _, name := range []string{"roomy", "tight"} {
		first := w.rollout(name, v1alpha1.RolloutComplete)
		old := w.replicas(name)[0]
		if old.Status.Canary == nil || first.Status.CurrentRevision != old.Spec.Revision || first.Status.AvailableReplicas != 1 {
			t.Errorf("%s: canary %+v, status %+v", name, old.Status.Canary, first.Status)
		}
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 })
		halted := w.rollout(name, v1alpha1.RolloutHalted)
		h := halted.Status.Rollout.Halt
		if h == nil || h.Reason != v1alpha1.ReasonCanaryFailed || h.Revision != halted.Status.UpdateRevision || halted.Status.CurrentRevision != first.Status.CurrentRevision {
			t.Fatalf("%s: %s", name, brief(halted))
		}
		wantContains(t, "Progressing", message(halted.Status.Conditions, v1alpha1.ConditionProgressing), "rollout undo "+name, "continues to serve")
		w.eventually(name+": the old revision serves, and nothing of the new one is left", func() error {
			d, all := w.get(name), w.replicas(name)
			if len(all) != 1 || all[0].Spec.Revision != first.Status.CurrentRevision || d.Status.ReadyReplicas != 1 {
				return errors.New(brief(d))
			}
			if name == "roomy" && all[0].UID != old.UID {
				t.Errorf("the old replica was replaced although there was room for both")
			}
			return nil
		})
		// The same spec again is the same halt; another one continues.
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.DrainSeconds = ptr.To[int32](2) })
		w.rollout(name, v1alpha1.RolloutHalted)
		w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 1024 })
		w.eventually(name+": the corrected spec serves", func() error {
			d, all := w.get(name), w.replicas(name)
			if d.Status.Rollout.State != v1alpha1.RolloutComplete || d.Status.Rollout.Halt != nil || len(all) != 1 || all[0].Spec.Context.MaxTokens != 1024 {
				return errors.New(brief(d))
			}
			return nil
		})
	}
}

// The Mac with the most room gets the new replica first, and reports that its engine fails.
func TestARevisionThatFailsOnOneMacServesOnAnother(t *testing.T) {
	w := rollouts{newWorld(t)}
	failing := holding(60 * gib)
	spoilt(&failing)
	w.mac("failing", failing)
	w.mac("sound", holding(30*gib))
	w.looked()
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Placement.NodeSelector = map[string]string{"name": "sound"}
	})
	first := w.rollout("small", v1alpha1.RolloutComplete)
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens, s.Placement.NodeSelector = 512, nil })
	w.eventually("the new revision serves", func() error {
		d := w.get("small")
		if d.Status.Rollout.Halt != nil {
			t.Fatalf("halted: %s", brief(d))
		}
		if d.Status.Rollout.State != v1alpha1.RolloutComplete || d.Status.CurrentRevision == first.Status.CurrentRevision {
			return errors.New(brief(d))
		}
		return nil
	})
	for _, r := range w.replicas("small") {
		if r.Spec.Revision == first.Status.CurrentRevision {
			continue // it drains
		}
		if a := r.Spec.Avoid; r.Spec.NodeName != "sound" || len(a) != 1 || a[0].Name != "failing" || a[0].Failure != v1alpha1.ReasonCanaryFailed {
			t.Errorf("it serves on %s and avoids %+v", r.Spec.NodeName, a)
		}
	}
}

// It swaps one replica after the other, or waits if the spec says so.
func TestWithoutRoomTheRolloutSwaps(t *testing.T) {
	w := rollouts{newWorld(t)}
	for _, name := range []string{"mac-1", "mac-2"} {
		w.mac(name, holding(3*gib))
	}
	w.looked()
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Replicas, s.Memory.Limit, s.Rollout.OnInsufficientMemory = ptr.To[int32](2), quantity("2Gi"), v1alpha1.InsufficientMemoryWait
	})
	first := w.rollout("small", v1alpha1.RolloutComplete)
	before := uids(w.replicas("small"))
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 })
	d := w.rollout("small", v1alpha1.RolloutWaiting)
	if d.Status.ReadyReplicas != 2 {
		t.Errorf("%d are ready while there is no room, want both", d.Status.ReadyReplicas)
	}
	for _, uid := range before {
		if !strings.Contains(fmt.Sprint(uids(w.replicas("small"))), uid) {
			t.Errorf("replica %s went before there was room", uid)
		}
	}
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Rollout.OnInsufficientMemory = v1alpha1.InsufficientMemorySwap
	})
	d = w.rollout("small", v1alpha1.RolloutComplete)
	if d.Status.CurrentRevision == first.Status.CurrentRevision || d.Status.UpdatedAvailableReplicas != 2 {
		t.Errorf("after the swap: %s", brief(d))
	}
}

func TestAPausedRolloutReplacesNothingUntilItIsResumed(t *testing.T) {
	w := rollouts{newWorld(t)}
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	w.rollout("small", v1alpha1.RolloutComplete)
	before := uids(w.replicas("small"))
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens, s.Rollout.Paused = 512, true })
	w.rollout("small", v1alpha1.RolloutPaused)
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	w.eventually("the number still follows", func() error {
		if d := w.get("small"); d.Status.ReadyReplicas != 2 || d.Status.UpdatedReplicas != 0 || d.Status.Rollout.State != v1alpha1.RolloutPaused {
			return errors.New(brief(d))
		}
		return nil
	})
	if !strings.Contains(fmt.Sprint(uids(w.replicas("small"))), before[0]) {
		t.Error("a replica was replaced")
	}
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = false })
	if d := w.rollout("small", v1alpha1.RolloutComplete); d.Status.UpdatedReplicas != 2 {
		t.Error(brief(d))
	}
}

// swapped deploys a model of a hub on a Mac without memory for two, and changes its
// weights, which the Mac does not get.
func (w rollouts) swapped(name, why string, old fleettest.Behaviour) *fleettest.Agent {
	w.t.Helper()
	const one, two = "hf://org/one", "hf://org/two"
	script := holding(3 * gib)
	for _, s := range []string{one, two} {
		m := fleettest.Model(s, s, 200<<20)
		script.Sources[s] = fleettest.Source{Model: &m}
	}
	script.Ahead = func(v1alpha1.Assignment) string { return why }
	script.Behave = func(a v1alpha1.Assignment) fleettest.Behaviour {
		if a.Model.Source == one {
			return old
		}
		return fleettest.Serve
	}
	mac := w.mac(name, script)
	w.deploy(name, func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model.Source, s.Memory.Limit, s.Placement.NodeSelector = one, quantity("2Gi"), map[string]string{"name": name}
	})
	w.rollout(name, v1alpha1.RolloutComplete)
	w.edit(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = two })
	return mac
}

// ordered waits until a Mac has these assignments.
func (w rollouts) ordered(mac, want string) {
	w.t.Helper()
	w.eventually("the orders of "+mac, func() error {
		got := ""
		for _, a := range w.assigned(mac).Assignments {
			got += a.Model.Source + " " + string(a.Desired) + "; "
		}
		if got != want {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// The old replica serves until they are on the disk, regardless of failures; a pause ends
// the prefetch.
func TestWeightsAreFetchedBeforeASwap(t *testing.T) {
	w := rollouts{newWorld(t)}
	mac := w.swapped("tight", v1alpha1.ReasonDownloading, fleettest.Serve)
	const serves, fetches = "hf://org/one Running; ", "hf://org/two Downloaded; "
	d := w.rollout("tight", v1alpha1.RolloutPrefetching)
	wantContains(t, "Progressing", message(d.Status.Conditions, v1alpha1.ConditionProgressing), "on tight before a replica of the old revision drains there")
	w.ordered("tight", serves+fetches)

	w.edit("tight", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = true })
	w.rollout("tight", v1alpha1.RolloutPaused)
	w.ordered("tight", serves)
	w.edit("tight", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = false })
	w.rollout("tight", v1alpha1.RolloutPrefetching)
	w.ordered("tight", serves+fetches)

	play := func(why string) {
		w.eventually("the Mac says "+why, func() error {
			return mac.Edit(w.ctx, func(s *fleettest.Script) { s.Ahead = func(v1alpha1.Assignment) string { return why } })
		})
	}
	play(v1alpha1.ReasonDownloadFailed)
	d = w.deployment("tight", v1alpha1.ConditionDegraded, v1alpha1.ReasonDownloadFailed)
	if d.Status.Rollout.State != v1alpha1.RolloutPrefetching || d.Status.ReadyReplicas != 1 {
		t.Errorf("while the download fails: %s", brief(d))
	}
	play("")
	d = w.rollout("tight", v1alpha1.RolloutComplete)
	w.ordered("tight", "hf://org/two Running; ")
	if d.Status.ReadyReplicas != 1 || w.replicas("tight")[0].Spec.PrefetchNodeName != "" {
		t.Errorf("after the swap: %s", brief(d))
	}
}

// The message mentions it.
func TestASwapGoesOnWhereTheWeightsDoNotFitBefore(t *testing.T) {
	w := rollouts{newWorld(t)}
	w.swapped("full", v1alpha1.ReasonDiskFull, fleettest.KeepsBusy)
	w.eventually("the message of a swap without prefetch", func() error {
		d := w.get("full")
		if d.Status.Rollout.State != v1alpha1.RolloutSwapping || !strings.Contains(message(d.Status.Conditions, v1alpha1.ConditionProgressing), "the disk has no space for both models") {
			return errors.New(brief(d))
		}
		return nil
	})
}

func TestARestartReplacesEveryReplica(t *testing.T) {
	w := rollouts{newWorld(t)}
	w.mac("roomy", holding(60*gib))
	w.looked()
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	first := w.rollout("chat", v1alpha1.RolloutComplete)
	old := w.replicas("chat")
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.RestartedAt = ptr.To(metav1.Unix(1_800_000_000, 0)) })
	again := w.rollout("chat", v1alpha1.RolloutComplete)
	if again.Status.CurrentRevision == first.Status.CurrentRevision || again.Status.AvailableReplicas != 2 {
		t.Errorf("after the restart: %s", brief(again))
	}
	w.eventually("every replica is replaced", func() error {
		for _, o := range old {
			if slices.ContainsFunc(w.replicas("chat"), func(r v1alpha1.ModelReplica) bool { return r.UID == o.UID }) {
				return fmt.Errorf("replica %s is there", o.Name)
			}
		}
		return nil
	})
}
