package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// macs, each called after its story; the spare one takes what another leaves.
var macs = []string{"deployment", "namespace", "draining", "macnode", "spare", "returning", "shut-out"}

// deletion is one story.
type deletion struct {
	what string
	tell func(*test, context.Context) error
}

func deletes() []deletion {
	return []deletion{
		{"delete md, its Mac lost power", (*test).deployment},
		{"delete namespace, its Mac lost power", (*test).namespace},
		{"delete md, its Mac lost power while an answer still ran there", (*test).draining},
		{"delete mac that lost power, with a replica", (*test).macNode},
		{"delete md, its Mac lost its agent and comes back afterwards", (*test).returning},
		{"delete mac that lives, with a replica; it joins again", (*test).shutOut},
	}
}

// deployment: the delete comes in the moment in which the Mac dies.
func (t *test) deployment(ctx context.Context) error {
	md, err := t.serve(ctx, "default", "deployment", "deployment", nil)
	if err != nil {
		return err
	}
	if err := t.losePower("deployment"); err != nil {
		return err
	}
	if err := t.remove(ctx, md); err != nil {
		return err
	}
	return t.noReplicas(ctx, md)
}

// namespace: everything in it goes at once, in the order of its controller.
func (t *test) namespace(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}}
	if err := t.Client.Create(ctx, ns); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	md, err := t.serve(ctx, ns.Name, "theirs", "namespace", nil)
	if err != nil {
		return err
	}
	if err := t.losePower("namespace"); err != nil {
		return err
	}
	if err := t.remove(ctx, ns); err != nil {
		return err
	}
	return t.noReplicas(ctx, md)
}

// draining: the delete waits for an answer for up to an hour, and the Mac dies
// before that ended. The time counts from its death.
func (t *test) draining(ctx context.Context) error {
	md, err := t.serve(ctx, "default", "draining", "draining", func(md *v1alpha1.ModelDeployment) {
		hour := int32(3600)
		md.Spec.Model.Source, md.Spec.Context.Tokens, md.Spec.Rollout.DrainSeconds = "file://"+slowFile, slowContext, &hour
	})
	if err != nil {
		return err
	}
	ended, err := t.longAnswer(ctx, "default/draining")
	if err != nil {
		return err
	}
	if err := t.Client.Delete(ctx, md); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := t.waitStage(ctx, md, v1alpha1.StageDraining); err != nil {
		return err
	}
	if err := t.losePower("draining"); err != nil {
		return err
	}
	if err := t.gone(ctx, md); err != nil {
		return err
	}
	if err := <-ended; err == nil {
		return errors.New("the answer of a Mac that lost power ended as if it were whole")
	}
	return t.noReplicas(ctx, md)
}

// macNode: the administrator knows that the Mac is gone, and says so; nobody
// waits for 180 s.
func (t *test) macNode(ctx context.Context) error {
	md, err := t.serve(ctx, "default", "moves", "macnode", nil)
	if err != nil {
		return err
	}
	if err := t.label(ctx, "spare", "macnode"); err != nil {
		return err
	}
	if err := t.losePower("macnode"); err != nil {
		return err
	}
	if err := t.remove(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "macnode"}}); err != nil {
		return err
	}
	if err := t.nothingOf(ctx, "macnode"); err != nil {
		return err
	}
	return t.servedOn(ctx, md, "spare")
}

// returning: only the agent was lost, and its engine holds memory that is
// promised to nobody any more when it comes back.
func (t *test) returning(ctx context.Context) error {
	md, err := t.serve(ctx, "default", "orphan", "returning", nil)
	if err != nil {
		return err
	}
	engine, err := t.onlyEngine("returning")
	if err != nil {
		return err
	}
	if err := t.KillAgent("returning"); err != nil {
		return err
	}
	if err := t.remove(ctx, md); err != nil {
		return err
	}
	if !engine.Alive() {
		return errors.New("the engine ended by itself, and there is nothing to come back to")
	}
	if err := t.StartAgent("returning"); err != nil {
		return err
	}
	if err := t.stopped(ctx, "returning", engine); err != nil {
		return err
	}
	// All of its memory can be promised again.
	_, err = t.serve(ctx, "default", "heir", "returning", func(md *v1alpha1.ModelDeployment) {
		most := resource.MustParse("36Gi")
		md.Spec.Memory.Limit = &most
	})
	return errors.Join(err, t.CheckLedger(ctx, "returning"))
}

// shutOut: the Mac is taken out of the fleet while it serves, and taken in
// again later.
func (t *test) shutOut(ctx context.Context) error {
	md, err := t.serve(ctx, "default", "theirs", "shut-out", nil)
	if err != nil {
		return err
	}
	engine, err := t.onlyEngine("shut-out")
	if err != nil {
		return err
	}
	stolen, err := t.credentials("shut-out")
	if err != nil {
		return err
	}
	if err := t.may(ctx, stolen, "shut-out"); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if err := t.remove(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "shut-out"}}); err != nil {
		return err
	}
	if err := t.nothingOf(ctx, "shut-out"); err != nil {
		return err
	}
	if err := t.mayNot(ctx, stolen, "shut-out"); err != nil {
		return err
	}
	if err := t.StopAgent(ctx, "shut-out"); err != nil {
		return err
	}
	if err := t.Join(ctx, mac("shut-out")); err != nil {
		return fmt.Errorf("join again: %w", err)
	}
	if err := t.stopped(ctx, "shut-out", engine); err != nil {
		return err
	}
	if err := t.label(ctx, "shut-out", "shut-out"); err != nil {
		return err
	}
	return errors.Join(t.servedOn(ctx, md, "shut-out"), t.mayNot(ctx, stolen, "shut-out"))
}

// stopped wants a Mac that came back to end what it held, to say why, and to
// have no promise left.
func (t *test) stopped(ctx context.Context, mac string, engine fleet.Engine) error {
	err := t.WaitMac(ctx, mac, "the Mac stopped what nobody wants", patience, func(m *v1alpha1.MacNode) error {
		if engine.Alive() {
			return fmt.Errorf("engine %d lives", engine.PID)
		}
		if r := m.Status.Reclaims; len(r) != 1 || r[0].Reason != v1alpha1.ReclaimUnassigned || r[0].FreedBytes == nil {
			return fmt.Errorf("reclaims %+v, want one, %s, with its bytes", r, v1alpha1.ReclaimUnassigned)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.until(ctx, "Mac "+mac+" is empty", func(ctx context.Context) error { return t.CheckEmpty(ctx, mac) })
}

// until asks for as long as anything but a delete may take.
func (t *test) until(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 50*time.Millisecond, what, ask)
}

func key(namespace, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: name}
}
