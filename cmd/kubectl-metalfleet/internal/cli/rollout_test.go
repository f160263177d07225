package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// rolling is a deployment with the revisions m-1, which serves, and m-2. The test writes its
// status, as the operator would.
type rolling struct {
	*person
	d *v1alpha1.ModelDeployment
}

func newRolling(t *testing.T) *rolling {
	t.Helper()
	r := &rolling{person: newPerson(t)}
	r.d = &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: r.namespace("rollout")}}
	r.d.Spec.Model = v1alpha1.ModelSource{Source: "hf://o/n", Revision: "v2"}
	r.d.Spec.Context.MaxTokens = 512
	r.make(r.d)
	for i, spec := range []v1alpha1.ModelDeploymentSpec{{Model: v1alpha1.ModelSource{Source: "hf://o/n", Revision: "v1"}}, r.d.Spec} {
		text, err := fleet.SpecOf(&spec, nil).Encode()
		r.must(err)
		data, err := fleet.Engine{Source: spec.Model.Source, Revision: spec.Model.Revision, Context: v1alpha1.ContextLimits{MaxTokens: 512, MaxConcurrentRequests: 4, KVCacheTokens: 1024}}.Encode()
		r.must(err)
		revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.d.Namespace, Name: fmt.Sprintf("m-%d", i+1),
			Labels: map[string]string{v1alpha1.LabelDeployment: "m"}, Annotations: map[string]string{v1alpha1.AnnotationSpec: string(text)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.d, v1alpha1.GroupVersion.WithKind("ModelDeployment"))}},
			Revision: int64(i + 1), Data: runtime.RawExtension{Raw: data}}
		r.must(r.c.Create(t.Context(), revision)) // it has no status, which make would write
		t.Cleanup(func() { r.must(r.c.Delete(context.Background(), revision)) })
	}
	return r
}

// read reads the deployment again.
func (r *rolling) read() {
	r.t.Helper()
	r.must(r.c.Get(r.t.Context(), client.ObjectKeyFromObject(r.d), r.d))
}

// report writes a status of the current spec.
func (r *rolling) report(rollout v1alpha1.RolloutStatus, conditions ...metav1.Condition) {
	r.t.Helper()
	r.read()
	s := &r.d.Status
	s.ObservedGeneration, s.CurrentRevision, s.UpdateRevision = r.d.Generation, "m-1", "m-2"
	s.Rollout, s.Conditions = rollout, conditions
	if rollout.State == v1alpha1.RolloutComplete {
		s.CurrentRevision, s.Replicas, s.UpdatedAvailableReplicas = "m-2", 1, 1
	}
	r.must(r.c.Status().Update(r.t.Context(), r.d))
}

// want runs kubectl metalfleet rollout with arguments, and requires an exit code and a part
// of what it prints.
func (r *rolling) want(code int, says string, args ...string) {
	r.t.Helper()
	got, out, errs := r.run(append([]string{"-n", r.d.Namespace, "rollout"}, args...)...)
	if got != code || !strings.Contains(out+errs, says) {
		r.t.Errorf("%q: exit code %d, want %d and %q:\n%s%s", args, got, code, says, out, errs)
	}
}

func halted() v1alpha1.RolloutStatus {
	return v1alpha1.RolloutStatus{State: v1alpha1.RolloutHalted,
		Halt: &v1alpha1.RolloutHalt{Revision: "m-2", Reason: v1alpha1.ReasonCanaryFailed, Message: "no token", Time: metav1.Now()}}
}

func TestTheStateOfARolloutIsShown(t *testing.T) {
	r := newRolling(t)
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
	}
	r.want(exitOK, "has not observed this spec yet", "status", "m", "--watch=false")
	r.report(halted(), condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, "Halted", "m-2 fails"))
	r.want(exitFailed, "Halted: m-2 fails", "status", "m")
	r.report(v1alpha1.RolloutStatus{State: v1alpha1.RolloutStarting},
		condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonCreateFailed, "exceeded quota"),
		condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonCreateFailed, "exceeded quota"))
	r.want(exitFailed, "Starting: exceeded quota", "status", "m")
	r.report(v1alpha1.RolloutStatus{State: v1alpha1.RolloutComplete})
	r.want(exitOK, "Complete: 1 of 1 replicas", "status", "m")
}

func TestARolloutIsPausedResumedAndUndone(t *testing.T) {
	r := newRolling(t)
	r.report(halted())
	r.want(exitOK, "1         serves  0         hf://o/n@v1", "history", "m")
	r.want(exitOK, "2         halted  0         hf://o/n@v2", "history", "m")
	r.want(exitOK, "is retried (attempt 1)", "resume", "m")
	r.want(exitOK, "is paused", "pause", "m")
	r.want(exitOK, "is already paused", "pause", "m")
	r.want(exitFailed, "resume it first", "undo", "m")
	r.want(exitOK, "is resumed", "resume", "m")
	r.want(exitOK, "is neither paused nor halted", "resume", "m")
	r.want(exitFailed, "no revision 9", "undo", "m", "--to-revision", "9")
	r.want(exitUsage, "--to-revision is -1", "undo", "m", "--to-revision=-1")
	r.want(exitUsage, "unknown command", "undoo", "m")
	r.want(exitOK, "is rolled back to revision 1 (hf://o/n@v1)", "undo", "m")
	r.read()
	if s := r.d.Spec; s.Model.Revision != "v1" || s.Context.MaxTokens != 0 || ptr.Deref(s.Replicas, 0) != 1 || s.Rollout.RetryGeneration != 1 {
		t.Errorf("after the undo: %+v", s)
	}
}

func TestADeploymentIsRestartedUnlessItIsPaused(t *testing.T) {
	r := newRolling(t)
	for range 2 { // also within a second
		before := r.d.Spec.Rollout.RestartedAt
		r.want(exitOK, "is restarted", "restart", "m")
		r.read()
		if now := r.d.Spec.Rollout.RestartedAt; now == nil || before != nil && !now.After(before.Time) {
			t.Errorf("restartedAt is %v after %v", now, before)
		}
	}
	r.want(exitOK, "is paused", "pause", "m")
	r.want(exitFailed, "resume it first", "restart", "m")
}

// TestAStatusThatChangesMeanwhileIsNoConflict: the operator writes it all the
// time. Another spec is one.
func TestAStatusThatChangesMeanwhileIsNoConflict(t *testing.T) {
	p := newPerson(t)
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "meanwhile", Namespace: p.namespace("meanwhile")}}
	d.Spec.Model = v1alpha1.ModelSource{Source: "hf://o/n"}
	p.make(d)
	read := func() *v1alpha1.ModelDeployment {
		now := &v1alpha1.ModelDeployment{}
		p.must(p.c.Get(t.Context(), client.ObjectKeyFromObject(d), now))
		return now
	}
	var o, e lockedBuffer
	environment := p.env(&o, &e)
	a, cl := rolloutCommand{&app{Env: &environment, flags: &clusterFlags{}}}, &cluster{WithWatch: p.c}

	before := read()
	after := before.DeepCopy()
	after.Spec.Rollout.Paused = true
	// The status changes just before each of the first writes, as during a rollout.
	writes := int32(0)
	cl.WithWatch = interceptor.NewClient(p.c, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if writes++; writes <= 8 {
			written := read()
			written.Status.ReadyReplicas = writes
			p.must(p.c.Status().Update(ctx, written))
		}
		return c.Patch(ctx, o, patch, opts...)
	}})
	if err := a.writeSpec(t.Context(), cl, before, after); err != nil {
		t.Errorf("a status that was written meanwhile: %v", err)
	}
	if now := read(); !now.Spec.Rollout.Paused || now.Status.ReadyReplicas != 8 {
		t.Errorf("paused %v, %d replicas ready", now.Spec.Rollout.Paused, now.Status.ReadyReplicas)
	}

	before = read()
	after = before.DeepCopy()
	after.Spec.Rollout.Paused = false
	other := read()
	other.Spec.Rollout.RetryGeneration = 7
	p.must(p.c.Update(t.Context(), other))
	if err := a.writeSpec(t.Context(), cl, before, after); err == nil {
		t.Error("a spec that another client changed meanwhile was overwritten")
	}
}
