package modeldeployment

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestAPassFollowsWhatItReadsOfAReplica(t *testing.T) {
	eta := int64(7)
	reported := metav1.Now()
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ModelReplica)
		want   news
	}{
		"another spec":      {func(r *v1alpha1.ModelReplica) { r.Generation++ }, newState},
		"its deletion":      {func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &reported }, newState},
		"a drained Mac":     {func(r *v1alpha1.ModelReplica) { r.Annotations = map[string]string{v1alpha1.AnnotationEvict: "x"} }, newState},
		"a label":           {func(r *v1alpha1.ModelReplica) { r.Labels = map[string]string{"a": "b"} }, newState},
		"another owner":     {func(r *v1alpha1.ModelReplica) { r.OwnerReferences = []metav1.OwnerReference{{UID: "u"}} }, newState},
		"a condition":       {func(r *v1alpha1.ModelReplica) { r.Status.Conditions = nil }, newState},
		"a reason":          {func(r *v1alpha1.ModelReplica) { r.Status.Conditions[0].Reason = v1alpha1.ReasonReady }, newState},
		"a message":         {func(r *v1alpha1.ModelReplica) { r.Status.Conditions[0].Message = "2 GB" }, newFigures},
		"a restart":         {func(r *v1alpha1.ModelReplica) { r.Status.Restarts++ }, newState},
		"a failure":         {func(r *v1alpha1.ModelReplica) { r.Status.LastFailure = &v1alpha1.EngineFailure{Reason: "x"} }, newState},
		"its memory":        {func(r *v1alpha1.ModelReplica) { r.Status.Memory.FootprintBytes++ }, newFigures},
		"what it freed":     {func(r *v1alpha1.ModelReplica) { r.Status.Freed.TotalBytes++ }, newFigures},
		"bytes of weights":  {func(r *v1alpha1.ModelReplica) { r.Status.Progress.BytesDone++ }, newFigures},
		"an estimate":       {func(r *v1alpha1.ModelReplica) { r.Status.Progress.ETASeconds = &eta }, newFigures},
		"a rounded figure":  {func(r *v1alpha1.ModelReplica) { r.Status.Summary.Progress = "1 GB" }, newFigures},
		"its KV cache":      {func(r *v1alpha1.ModelReplica) { r.Status.Memory.KVInUseBytes++ }, noNews},
		"when it measured":  {func(r *v1alpha1.ModelReplica) { r.Status.Memory.MeasuredAt = &reported }, noNews},
		"the last unload":   {func(r *v1alpha1.ModelReplica) { r.Status.Freed.HostCheck = "x" }, noNews},
		"a stage":           {func(r *v1alpha1.ModelReplica) { r.Status.Progress.Stage = v1alpha1.StageLoading }, noNews},
		"the test token":    {func(r *v1alpha1.ModelReplica) { r.Status.Canary = &v1alpha1.Canary{} }, noNews},
		"our own judgement": {func(r *v1alpha1.ModelReplica) { r.Status.ObservedGeneration++ }, noNews},
		"a resync":          {func(*v1alpha1.ModelReplica) {}, noNews},
	} {
		old := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		old.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDownloaded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaiting, Message: "1 GB"}}
		now := old.DeepCopy()
		tc.change(now)
		if got := newsOf(old, now); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	var fields []string
	for i := range reflect.TypeFor[v1alpha1.ModelReplicaStatus]().NumField() {
		fields = append(fields, reflect.TypeFor[v1alpha1.ModelReplicaStatus]().Field(i).Name)
	}
	if known := []string{"ObservedGeneration", "Progress", "Memory", "Freed", "Restarts", "LastFailure", "Canary", "Summary", "Conditions"}; !slices.Equal(fields, known) {
		t.Errorf("a replica reports %v: decide in newsOf whether passes read the new field", fields)
	}
}

// delays records what is added to a queue.
type delays struct {
	requestQueue
	added []time.Duration
}

func (d *delays) Add(reconcile.Request)                             { d.added = append(d.added, 0) }
func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.added = append(d.added, after) }

func TestFiguresOfManyReplicasWaitForOnePass(t *testing.T) {
	owned := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	update := func(change func(*v1alpha1.ModelReplica)) []time.Duration {
		q := &delays{}
		old := &v1alpha1.ModelReplica{}
		now := old.DeepCopy()
		change(now)
		onNews{owned}.Update(t.Context(), event.UpdateEvent{ObjectOld: old, ObjectNew: now}, q)
		return q.added
	}
	if got := update(func(r *v1alpha1.ModelReplica) { r.Status.Restarts++ }); !slices.Equal(got, []time.Duration{0}) {
		t.Errorf("a restart triggers passes after %v, want one at once", got)
	}
	if got := update(func(r *v1alpha1.ModelReplica) { r.Status.Memory.FootprintBytes++ }); !slices.Equal(got, []time.Duration{figuresAfter}) {
		t.Errorf("a figure triggers passes after %v, want one after %v", got, figuresAfter)
	}
	if got := update(func(r *v1alpha1.ModelReplica) { r.Status.Memory.KVInUseBytes++ }); len(got) != 0 {
		t.Errorf("a figure that no pass reads triggers passes after %v", got)
	}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	onNews{owned}.Create(t.Context(), event.CreateEvent{Object: &v1alpha1.ModelReplica{}}, q)
	if q.Len() != 1 {
		t.Error("a new replica triggers no pass at once")
	}
}
