//go:build stories

package system

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// rolloutClients ask each model at once, half of them for streams, answers that
// take some hundred milliseconds: every change meets answers in progress.
const rolloutClients = 4

// TestRollout changes models under constant load, and no client notices: with room
// to surge and without, and with an undo, no request fails and none is cut; a
// revision whose weights load and generate no token is halted, and the old one
// keeps serving. Each model has a Mac of its own, so that all change at once.
func TestRollout(t *testing.T) {
	tests := map[string]func(*testing.T, *rollout){
		"surge":          func(t *testing.T, r *rollout) { r.serve(t); r.changes(t) },
		"swap":           func(t *testing.T, r *rollout) { r.serve(t, tight); r.changes(t) },
		"spoilt-surge":   func(t *testing.T, r *rollout) { r.serve(t); r.isHalted(t, true) },
		"spoilt-swap":    func(t *testing.T, r *rollout) { r.serve(t, tight); r.isHalted(t, false) },
		"pause-and-undo": func(t *testing.T, r *rollout) { r.serve(t); r.pauseAndUndo(t) },
	}
	var macs []fleet.Mac
	for name := range tests {
		macs = append(macs, fleet.Mac{Name: name, Chip: "M4Max", Memory: "64Gi"})
	}
	w := together(t, macs...)
	takeTurn(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rollout{world: w, name: name}
			test(t, r)
			r.through(t)
			wantWhole(t, r.load)
		})
	}
}

// rollout is one model under load.
type rollout struct {
	*world
	name string
	md   *v1alpha1.ModelDeployment
	load *fleet.Load
}

// serve deploys the model, waits until it is ready, and begins the load.
func (r *rollout) serve(t *testing.T, change ...func(*v1alpha1.ModelDeploymentSpec)) {
	t.Helper()
	r.md = r.deploy(t, fleet.Model{Name: r.name, File: "long.gguf", Mac: r.name, MaxConcurrentRequests: rolloutClients, DrainSeconds: int32(patience.Seconds())}, change...)
	r.until(t, v1alpha1.RolloutComplete)
	clients := make([]fleet.Question, rolloutClients)
	for n := range clients {
		clients[n] = fleet.Question{Model: r.name, Stream: n%2 == 0, MaxTokens: 64, Patience: patience}
	}
	r.load = r.StartLoad(context.WithoutCancel(t.Context()), fleet.LoadOptions{Clients: clients, Limit: patience})
	t.Cleanup(func() { r.load.End() })
	r.through(t)
}

// through wants the load to continue: each client has at most one answer that began
// before.
func (r *rollout) through(t *testing.T) {
	t.Helper()
	must(t, r.load.Through(t.Context(), 3*rolloutClients))
}

// until waits until the rollout of the spec as it is has a state.
func (r *rollout) until(t *testing.T, state v1alpha1.RolloutState) (md *v1alpha1.ModelDeployment) {
	t.Helper()
	eventually(t, fmt.Sprintf("the rollout of %s is %s", r.name, state), func(ctx context.Context) (err error) {
		if md, err = r.read(ctx, r.md); err == nil && (md.Status.ObservedGeneration != md.Generation || md.Status.Rollout.State != state) {
			err = fmt.Errorf("it is %s; %s", md.Status.Rollout.State, sentences(md.Status.Conditions))
		}
		return err
	})
	return md
}

// only waits until there is one replica, of a revision.
func (r *rollout) only(t *testing.T, revision string) (one v1alpha1.ModelReplica) {
	t.Helper()
	eventually(t, r.name+" has one replica, of "+revision, func(ctx context.Context) error {
		all, err := r.replicasOf(ctx, r.md)
		if err == nil && (len(all) != 1 || all[0].Spec.Revision != revision) {
			err = fmt.Errorf("%d replicas", len(all))
		}
		if err == nil {
			one = all[0]
		}
		return err
	})
	return one
}

func longer(s *v1alpha1.ModelDeploymentSpec) { s.Context.KVCacheTokens = longContext }

func spoil(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://spoilt.gguf" }

// tight takes most of a Mac's memory: two of these do not fit on one.
func tight(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = ptr.To(resource.MustParse("40Gi")) }

// changes rolls out another revision.
func (r *rollout) changes(t *testing.T) {
	before := r.until(t, v1alpha1.RolloutComplete)
	old := r.only(t, before.Status.CurrentRevision)
	r.edit(t, r.md, longer)
	after := r.until(t, v1alpha1.RolloutComplete)
	now := r.only(t, after.Status.UpdateRevision)
	if now.UID == old.UID || now.Status.Canary == nil || after.Status.CurrentRevision == before.Status.CurrentRevision {
		t.Errorf("replica %s of %s (canary %v), was %s", now.Name, now.Spec.Revision, now.Status.Canary, old.Name)
	}
}

// isHalted rolls out a revision that generates no token, and then one that is good.
// With room the old engine is the same process before and after; without, it has to
// release its memory and is loaded again.
func (r *rollout) isHalted(t *testing.T, stays bool) {
	before := r.until(t, v1alpha1.RolloutComplete)
	old := r.only(t, before.Status.CurrentRevision)
	r.edit(t, r.md, spoil)
	halted := r.until(t, v1alpha1.RolloutHalted)
	if h := halted.Status.Rollout.Halt; h == nil || h.Reason != v1alpha1.ReasonCanaryFailed || halted.Status.CurrentRevision != before.Status.CurrentRevision {
		t.Fatalf("halted for %+v, current revision %s", h, halted.Status.CurrentRevision)
	}
	if now := r.only(t, before.Status.CurrentRevision); stays != (now.UID == old.UID) {
		t.Fatalf("replica %s serves, and it was %s", now.Name, old.Name)
	}
	r.through(t)
	r.edit(t, r.md, func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://long.gguf"; longer(s) })
	if after := r.until(t, v1alpha1.RolloutComplete); after.Status.CurrentRevision == before.Status.CurrentRevision {
		t.Error("the corrected spec was not rolled out")
	}
}

// pauseAndUndo pauses a rollout, resumes it, and restores the spec, as the plugin
// would.
func (r *rollout) pauseAndUndo(t *testing.T) {
	before := r.until(t, v1alpha1.RolloutComplete)
	r.edit(t, r.md, func(s *v1alpha1.ModelDeploymentSpec) { longer(s); s.Rollout.Paused = true })
	if md := r.until(t, v1alpha1.RolloutPaused); md.Status.CurrentRevision != before.Status.CurrentRevision || md.Status.UpdatedReplicas != 0 {
		t.Errorf("paused, and %d replicas are updated", md.Status.UpdatedReplicas)
	}
	r.through(t)
	r.edit(t, r.md, func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = false })
	r.until(t, v1alpha1.RolloutComplete)
	r.through(t)
	r.edit(t, r.md, func(s *v1alpha1.ModelDeploymentSpec) { s.Context.KVCacheTokens = before.Spec.Context.KVCacheTokens })
	r.until(t, v1alpha1.RolloutComplete)
	r.only(t, before.Status.CurrentRevision)
}
