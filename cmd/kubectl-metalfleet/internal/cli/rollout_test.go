package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// TestRolloutIsShownPausedResumedAndUndone against an API server: the status is
// written by the test, as the operator would.
func TestRolloutIsShownPausedResumedAndUndone(t *testing.T) {
	p := newPerson(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "rollout-"}}
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	d.Spec.Model = v1alpha1.ModelSource{Source: "hf://o/n", Revision: "v2"}
	d.Spec.Context.MaxTokens = 512
	if err := p.c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	d.Namespace = ns.Name
	if err := p.c.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.c.Delete(t.Context(), ns) })
	for i, spec := range []v1alpha1.ModelDeploymentSpec{{Model: v1alpha1.ModelSource{Source: "hf://o/n", Revision: "v1"}}, d.Spec} {
		text, err := fleet.SpecOf(&spec, nil).Encode()
		if err != nil {
			t.Fatal(err)
		}
		data, err := fleet.Engine{Source: spec.Model.Source, Revision: spec.Model.Revision, Context: v1alpha1.ContextLimits{MaxTokens: 512, MaxConcurrentRequests: 4, KVCacheTokens: 1024}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		r := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: fmt.Sprintf("m-%d", i+1),
			Labels: map[string]string{v1alpha1.LabelDeployment: "m"}, Annotations: map[string]string{v1alpha1.AnnotationSpec: string(text)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.GroupVersion.WithKind("ModelDeployment"))}},
			Revision: int64(i + 1), Data: runtime.RawExtension{Raw: data}}
		if err := p.c.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	report := func(change func(*v1alpha1.ModelDeploymentStatus)) {
		t.Helper()
		if err := p.c.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			t.Fatal(err)
		}
		d.Status.ObservedGeneration, d.Status.CurrentRevision, d.Status.UpdateRevision = d.Generation, "m-1", "m-2"
		change(&d.Status)
		if err := p.c.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	want := func(code int, says string, args ...string) {
		t.Helper()
		got, out, errs := p.run(append([]string{"-n", d.Namespace, "rollout"}, args...)...)
		if got != code || !strings.Contains(out+errs, says) {
			t.Errorf("%q: exit code %d, want %d and %q:\n%s%s", args, got, code, says, out, errs)
		}
	}
	want(exitOK, "has not observed this spec yet", "status", "m", "--watch=false")
	halt := &v1alpha1.RolloutHalt{Revision: "m-2", Reason: v1alpha1.ReasonCanaryFailed, Message: "no token", Time: metav1.Now()}
	report(func(s *v1alpha1.ModelDeploymentStatus) {
		s.Rollout = v1alpha1.RolloutStatus{State: v1alpha1.RolloutHalted, Halt: halt}
		s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: "Halted", Message: "m-2 fails", LastTransitionTime: metav1.Now()}}
	})
	want(exitFailed, "Halted: m-2 fails", "status", "m")
	report(func(s *v1alpha1.ModelDeploymentStatus) {
		s.Rollout = v1alpha1.RolloutStatus{State: v1alpha1.RolloutStarting}
		s.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCreateFailed, Message: "exceeded quota", LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateFailed, Message: "exceeded quota", LastTransitionTime: metav1.Now()}}
	})
	want(exitFailed, "Starting: exceeded quota", "status", "m")
	report(func(s *v1alpha1.ModelDeploymentStatus) {
		s.Rollout = v1alpha1.RolloutStatus{State: v1alpha1.RolloutHalted, Halt: halt}
		s.Conditions = nil
	})
	want(exitOK, "1         serves  0         hf://o/n@v1", "history", "m")
	want(exitOK, "2         halted  0         hf://o/n@v2", "history", "m")
	want(exitOK, "is retried (attempt 1)", "resume", "m")
	want(exitOK, "is paused", "pause", "m")
	want(exitOK, "is already paused", "pause", "m")
	want(exitFailed, "resume it first", "undo", "m")
	want(exitOK, "is resumed", "resume", "m")
	want(exitOK, "is neither paused nor halted", "resume", "m")
	want(exitFailed, "no revision 9", "undo", "m", "--to-revision", "9")
	want(exitUsage, "--to-revision is -1", "undo", "m", "--to-revision=-1")
	want(exitUsage, "unknown command", "undoo", "m")
	want(exitOK, "is rolled back to revision 1 (hf://o/n@v1)", "undo", "m")
	if err := p.c.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
		t.Fatal(err)
	}
	if d.Spec.Model.Revision != "v1" || d.Spec.Context.MaxTokens != 0 || ptr.Deref(d.Spec.Replicas, 0) != 1 || d.Spec.Rollout.RetryGeneration != 1 {
		t.Errorf("after the undo: %+v", d.Spec)
	}
	for range 2 { // also within a second
		before := d.Spec.Rollout.RestartedAt
		want(exitOK, "is restarted", "restart", "m")
		if err := p.c.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			t.Fatal(err)
		}
		if now := d.Spec.Rollout.RestartedAt; now == nil || before != nil && !now.After(before.Time) {
			t.Errorf("restartedAt is %v after %v", now, before)
		}
	}
	want(exitOK, "is paused", "pause", "m")
	want(exitFailed, "resume it first", "restart", "m")
	report(func(s *v1alpha1.ModelDeploymentStatus) {
		s.CurrentRevision, s.Replicas, s.UpdatedAvailableReplicas = "m-2", 1, 1
		s.Rollout = v1alpha1.RolloutStatus{State: v1alpha1.RolloutComplete}
	})
	want(exitOK, "Complete: 1 of 1 replicas", "status", "m")
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
