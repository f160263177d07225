package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const goodFile, spoiltFile = "good.gguf", "spoilt.gguf"

// room labels a Mac with the story whose replicas may go there.
const room = "test-rollout/room"

// most of a Mac's memory: two of these do not fit on one.
const most = "40Gi"

type story struct {
	name, what string
	tell       func(*test, context.Context) error
}

func stories() []story {
	return []story{
		{"surge", "a new revision, with room to surge", (*test).surge},
		{"swap", "a new revision, without room: requests wait", (*test).swap},
		{"spoilt", "weights that generate no token, with room", (*test).spoiltBeside},
		{"spoilt-swap", "weights that generate no token, without room", (*test).spoiltInPlace},
		{"undo", "a pause in the middle, and an undo", (*test).undo},
	}
}

// test is one story.
type test struct {
	*fleet.Fleet
	name string
	load load
}

// serve deploys a model on the Mac of the story, waits until it is ready, and
// begins the load.
func (t *test) serve(ctx context.Context, change func(*v1alpha1.ModelDeploymentSpec)) error {
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: t.name}}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, room, t.name)
	if err := t.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("label Mac %s: %w", t.name, err)
	}
	md := fleet.Model{Name: t.name, File: goodFile, Sequences: clients, DrainSeconds: int32(patience.Seconds())}.Deployment()
	md.Spec.Placement.NodeSelector = map[string]string{room: t.name}
	if change != nil {
		change(&md.Spec)
	}
	if err := t.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create %s: %w", t.name, err)
	}
	if _, err := t.until(ctx, v1alpha1.RolloutComplete); err != nil {
		return err
	}
	t.load.begin(ctx, t.URL, t.name)
	return t.through(ctx)
}

// through wants the load to go on: each client has at most one answer that began
// before.
func (t *test) through(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return t.load.through(ctx, 3*clients)
}

// edit changes the spec, whatever else changes the object meanwhile.
func (t *test) edit(ctx context.Context, change func(*v1alpha1.ModelDeploymentSpec)) error {
	md := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: t.name}}
	if err := t.Client.Get(ctx, client.ObjectKeyFromObject(md), md); err != nil {
		return fmt.Errorf("read %s: %w", t.name, err)
	}
	before := md.DeepCopy()
	change(&md.Spec)
	if err := t.Client.Patch(ctx, md, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("change %s: %w", t.name, err)
	}
	return nil
}

// until waits until the rollout is in a state that is of the spec as it is.
func (t *test) until(ctx context.Context, state v1alpha1.RolloutState) (*v1alpha1.ModelDeployment, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	md := &v1alpha1.ModelDeployment{}
	err := fleet.Poll(ctx, 50*time.Millisecond, fmt.Sprintf("the rollout of %s is %s", t.name, state), func(ctx context.Context) error {
		if err := t.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: t.name}, md); err != nil {
			return err
		}
		if md.Status.ObservedGeneration != md.Generation || md.Status.Rollout.State != state {
			return fmt.Errorf("it is %s; conditions %v", md.Status.Rollout.State, md.Status.Conditions)
		}
		return nil
	})
	return md, err
}

// only wants one replica, of a revision.
func (t *test) only(ctx context.Context, revision string) (*v1alpha1.ModelReplica, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	var list v1alpha1.ModelReplicaList
	err := fleet.Poll(ctx, 50*time.Millisecond, t.name+" has one replica, of "+revision, func(ctx context.Context) error {
		if err := t.Client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelDeployment: t.name}); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Spec.Revision != revision {
			return fmt.Errorf("%d replicas", len(list.Items))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &list.Items[0], nil
}

func longer(s *v1alpha1.ModelDeploymentSpec) { s.Context.CacheTokens = 2048 }

func spoil(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://" + spoiltFile }

func tight(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = ptr.To(resource.MustParse(most)) }

// changed wants another revision to serve, and the load to have gone through.
func (t *test) changed(ctx context.Context) error {
	before, err := t.until(ctx, v1alpha1.RolloutComplete)
	if err != nil {
		return err
	}
	old, err := t.only(ctx, before.Status.CurrentRevision)
	if err != nil {
		return err
	}
	if err := t.edit(ctx, longer); err != nil {
		return err
	}
	after, err := t.until(ctx, v1alpha1.RolloutComplete)
	if err != nil {
		return err
	}
	r, err := t.only(ctx, after.Status.UpdateRevision)
	if err != nil {
		return err
	}
	if r.UID == old.UID || r.Status.Canary == nil || after.Status.CurrentRevision == before.Status.CurrentRevision {
		return fmt.Errorf("replica %s of %s (canary %v), was %s", r.Name, r.Spec.Revision, r.Status.Canary, old.Name)
	}
	return errors.Join(t.through(ctx), t.load.end())
}

func (t *test) surge(ctx context.Context) error {
	if err := t.serve(ctx, nil); err != nil {
		return errors.Join(err, t.load.end())
	}
	return errors.Join(t.changed(ctx), t.load.end())
}

func (t *test) swap(ctx context.Context) error {
	if err := t.serve(ctx, tight); err != nil {
		return errors.Join(err, t.load.end())
	}
	return errors.Join(t.changed(ctx), t.load.end())
}

// spoiltBeside: the old engine is the same process before and after.
func (t *test) spoiltBeside(ctx context.Context) error {
	err := t.serve(ctx, nil)
	if err == nil {
		err = t.bad(ctx, true)
	}
	return errors.Join(err, t.load.end())
}

// spoiltInPlace: the old one had to give its room, and comes back.
func (t *test) spoiltInPlace(ctx context.Context) error {
	err := t.serve(ctx, tight)
	if err == nil {
		err = t.bad(ctx, false)
	}
	return errors.Join(err, t.load.end())
}

// bad rolls out a revision that is halted, and then one that is good.
func (t *test) bad(ctx context.Context, stays bool) error {
	before, err := t.until(ctx, v1alpha1.RolloutComplete)
	if err != nil {
		return err
	}
	old, err := t.only(ctx, before.Status.CurrentRevision)
	if err != nil {
		return err
	}
	if err := t.edit(ctx, spoil); err != nil {
		return err
	}
	halted, err := t.until(ctx, v1alpha1.RolloutHalted)
	if err != nil {
		return err
	}
	if h := halted.Status.Rollout.Halt; h == nil || h.Reason != v1alpha1.ReasonCanaryFailed || halted.Status.CurrentRevision != before.Status.CurrentRevision {
		return fmt.Errorf("halted for %+v, current revision %s", h, halted.Status.CurrentRevision)
	}
	now, err := t.only(ctx, before.Status.CurrentRevision)
	if err != nil {
		return err
	}
	if stays != (now.UID == old.UID) {
		return fmt.Errorf("replica %s serves, and it was %s", now.Name, old.Name)
	}
	if err := t.through(ctx); err != nil {
		return fmt.Errorf("after the halt: %w", err)
	}
	if err := t.edit(ctx, func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://" + goodFile; longer(s) }); err != nil {
		return err
	}
	after, err := t.until(ctx, v1alpha1.RolloutComplete)
	if err != nil {
		return err
	}
	if after.Status.CurrentRevision == before.Status.CurrentRevision {
		return errors.New("the corrected spec was not rolled out")
	}
	return t.through(ctx)
}

// undo pauses a rollout, lets it go on, and goes back to what was, by the spec
// that the plugin would write.
func (t *test) undo(ctx context.Context) error {
	err := t.serve(ctx, nil)
	if err == nil {
		err = t.pauseAndUndo(ctx)
	}
	return errors.Join(err, t.load.end())
}

func (t *test) pauseAndUndo(ctx context.Context) error {
	before, err := t.until(ctx, v1alpha1.RolloutComplete)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		change func(*v1alpha1.ModelDeploymentSpec)
		state  v1alpha1.RolloutState
	}{
		{func(s *v1alpha1.ModelDeploymentSpec) { longer(s); s.Rollout.Paused = true }, v1alpha1.RolloutPaused},
		{func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = false }, v1alpha1.RolloutComplete},
		{func(s *v1alpha1.ModelDeploymentSpec) { s.Context.CacheTokens = before.Spec.Context.CacheTokens }, v1alpha1.RolloutComplete},
	} {
		if err := t.edit(ctx, step.change); err != nil {
			return err
		}
		md, err := t.until(ctx, step.state)
		if err != nil {
			return err
		}
		if step.state == v1alpha1.RolloutPaused {
			if md.Status.CurrentRevision != before.Status.CurrentRevision || md.Status.UpdatedReplicas != 0 {
				return fmt.Errorf("paused, and %d replicas are updated", md.Status.UpdatedReplicas)
			}
		}
		if err := t.through(ctx); err != nil {
			return err
		}
	}
	_, err = t.only(ctx, before.Status.CurrentRevision)
	return err
}
