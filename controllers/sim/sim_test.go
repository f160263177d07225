//go:build !race

package sim

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var (
	macs        = flag.Int("macs", 40, "Macs of the fleet of TestOneFleet, at least 4")
	deployments = flag.Int("deployments", 0, "its deployments; 0: one for four Macs")
	hours       = flag.Float64("hours", 2, "its virtual time")
	seed        = flag.Uint64("seed", 1, "its seed")
)

// TestOneFleet runs the fleet that the flags describe, with -v with its timeline.
func TestOneFleet(t *testing.T) {
	o := options{seed: *seed, macs: *macs, deployments: *deployments, hours: *hours, quiet: !testing.Verbose()}
	if _, err := run(o, os.Stdout); err != nil {
		t.Fatal(err)
	}
}

func timeline(t *testing.T, o options) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := run(o, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

func TestTheSameSeedGivesTheSameTimeline(t *testing.T) {
	o := options{seed: 6, macs: 30, hours: 1}
	first := timeline(t, o)
	if again := timeline(t, o); again != first {
		t.Error("another timeline")
	}
	o.seed = 7
	if other := timeline(t, o); other == first {
		t.Error("another seed, and the same timeline")
	}
	for _, part := range []string{"a switch fails", "circuit breaker open: true", "circuit breaker open: false", "is applied", "gets another engine", "is scaled from"} {
		if !strings.Contains(first, part) {
			t.Errorf("the timeline lacks %q", part)
		}
	}
}

// TestInvariantsHoldForManySeeds runs many fleets, with every check after
// every event.
func TestInvariantsHoldForManySeeds(t *testing.T) {
	happened := map[string]int{}
	for seed := range uint64(9) {
		o := options{seed: 300 + seed, macs: 12 + int(seed%6)*6, hours: 1, deployments: 24, quiet: true}
		w, err := run(o, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for k, n := range w.counts {
			happened[k] += n
		}
	}
	for _, k := range []string{"preemptions", "evictions", "loads", "moved from a Mac that is gone", "judgements BreakerOpen", "judgements MacGone", "decisions NoRoom", "decisions Placed",
		"scaled for Demand", "scaled for LowDemand", "scaled for FromZero", "scaled for Idle", "restarts of the operator",
		"rollouts Surging", "rollouts Prefetching", "rollouts Swapping", "rollouts Paused", "rollouts Halted", "rollouts Complete", "swaps", "weights ordered ahead", "canaries that fail", "evicted by a taint", "taints tolerated for a while"} {
		if happened[k] == 0 {
			t.Errorf("%q never happened: %v", k, happened)
		}
	}
}

// settle is a small fleet with replicas on Macs.
func settle(t *testing.T) (*world, *replica) {
	t.Helper()
	w := newWorld(options{seed: 5, macs: 12, hours: 1, deployments: 12, quiet: true}, io.Discard)
	for w.step() {
		for _, r := range w.replicas {
			if r.Spec.NodeName != "" && !r.Spec.Residency.OnDemand() && r.DeletionTimestamp.IsZero() {
				return w, r
			}
		}
	}
	t.Fatal("nothing was placed")
	return nil, nil
}

func TestEachCheckFindsItsBreach(t *testing.T) {
	for name, breaks := range map[string]func(*world, *replica){
		"bytes that are promised twice": func(w *world, r *replica) { r.Spec.ReservedBytes += 1 << 50 },
		"a slot with two replicas": func(w *world, r *replica) {
			twin := *r
			w.replicas = append(w.replicas, &twin)
			w.byName[r.Spec.NodeName].node.Status.Memory.CapacityBytes = 1 << 60
		},
		"a namespace above its bound": func(w *world, r *replica) {
			r.Namespace, r.Spec.ReservedBytes = "team-0", 1<<50
			w.byName[r.Spec.NodeName].node.Status.Memory.CapacityBytes = 1 << 60
		},
		"a disk that is overrun": func(w *world, r *replica) { w.macs[0].node.Status.Disk.FreeBytes = -1 },
		"a Mac that may not take it": func(w *world, r *replica) {
			m := w.byName[r.Spec.NodeName]
			m.node.Spec.Unschedulable = true
			w.checks.bound(r, m)
		},
		"a replica that stays on a tainted Mac": func(w *world, r *replica) {
			w.byName[r.Spec.NodeName].tainted = w.now.Add(-forEver / 2)
			for _, d := range w.deployments {
				d.tolerated = 0
			}
		},
		"a replica that leaves a tainted Mac too soon": func(w *world, r *replica) {
			m := w.byName[r.Spec.NodeName]
			m.tainted = w.now
			for _, d := range w.deployments {
				d.tolerated = forEver
			}
			w.checks.evicted(r, m)
		},
		"a bad revision that takes over": func(w *world, r *replica) {
			for _, d := range w.deployments {
				if string(d.UID) == r.Spec.DeploymentRef.UID {
					d.Status.CurrentRevision = r.Spec.Revision
					d.bad[r.Spec.Revision] = true
					w.checks.rollout(d)
				}
			}
		},
		"a victim of the same priority": func(w *world, r *replica) { w.checks.victim(r, r, w.macs[0]) },
		"a swap before the weights lie there": func(w *world, r *replica) {
			next := *r
			next.Spec.Revision, next.Spec.NodeName, next.Spec.Swap = "another", "", true
			next.Spec.Model = record("hf://org/another", 77, gib)
			w.checks.victim(&next, r, w.byName[r.Spec.NodeName])
		},
		"an evicted replica before its successor": func(w *world, r *replica) {
			metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.AnnotationEvict, "true")
			for _, x := range w.replicas {
				if x != r && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID {
					x.gone = true
				}
			}
			r.set(v1alpha1.ConditionReady, v1alpha1.ReasonReady)
			w.checks.replaced(r)
		},
		"a move while most are away": func(w *world, r *replica) {
			for _, m := range w.macs {
				m.alive = false
			}
			w.checks.lights()
			w.now = w.now.Add(settles + 1)
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: v1alpha1.ReasonMacGone}}
			w.checks.move(w.byName[r.Spec.NodeName], r)
		},
	} {
		w, r := settle(t)
		w.checks.all()
		if w.checks.breach != nil {
			t.Fatalf("before: %v", w.checks.breach)
		}
		breaks(w, r)
		w.checks.all()
		if w.checks.breach == nil {
			t.Errorf("%s: no check failed", name)
		}
	}
}

func TestImpossibleOptionsAreRefused(t *testing.T) {
	for _, o := range []options{{macs: 3, hours: 1}, {macs: 9}, {macs: 9, hours: 1, deployments: -1}} {
		if _, err := run(o, io.Discard); err == nil || !strings.Contains(err.Error(), "want at least 4 Macs") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
