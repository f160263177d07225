package route

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Kinds selects the objects that Watch reads, each with a transform that keeps the cache
// small. Models are read in the given namespaces; none means all.
func Kinds(namespaces ...string) map[client.Object]cache.ByObject {
	var models map[string]cache.Config
	for _, name := range namespaces {
		if models == nil {
			models = map[string]cache.Config{}
		}
		models[name] = cache.Config{}
	}
	return map[client.Object]cache.ByObject{
		&v1alpha1.ModelDeployment{}: {Namespaces: models, Transform: Slim},
		&v1alpha1.ModelReplica{}:    {Namespaces: models, Transform: Slim},
		&v1alpha1.MacNode{}:         {Transform: Slim},
	}
}

// Slim drops what the table never reads: desired state, reports and model records make up
// most of these objects.
func Slim(in any) (any, error) {
	switch o := in.(type) {
	case *v1alpha1.ModelDeployment:
		o.ObjectMeta = identity(o.ObjectMeta)
		o.Spec = v1alpha1.ModelDeploymentSpec{Routing: o.Spec.Routing, Suspend: o.Spec.Suspend, Context: v1alpha1.ContextSpec{MaxTokens: o.Spec.Context.MaxTokens}}
		status := v1alpha1.ModelDeploymentStatus{ServedNames: o.Status.ServedNames, Adapters: o.Status.Adapters}
		if c := o.Status.Context; c != nil {
			status.Context = &v1alpha1.ContextLimits{MaxTokens: c.MaxTokens}
		}
		if a := o.Status.Autoscaling; a != nil {
			status.Autoscaling = &v1alpha1.AutoscalingStatus{StartSeconds: a.StartSeconds}
		}
		o.Status = status
	case *v1alpha1.ModelReplica:
		retiring := o.Annotations[v1alpha1.AnnotationRetiring]
		o.ObjectMeta = identity(o.ObjectMeta)
		if retiring != "" {
			o.Annotations = map[string]string{v1alpha1.AnnotationRetiring: retiring}
		}
		o.Spec = v1alpha1.ModelReplicaSpec{DeploymentRef: o.Spec.DeploymentRef, Epoch: o.Spec.Epoch, NodeName: o.Spec.NodeName, Desired: o.Spec.Desired,
			Context: v1alpha1.ContextLimits{MaxTokens: o.Spec.Context.MaxTokens, MaxConcurrentRequests: o.Spec.Context.MaxConcurrentRequests}, Model: slimModel(o.Spec)}
		o.Status = v1alpha1.ModelReplicaStatus{Conditions: o.Status.Conditions}
	case *v1alpha1.MacNode:
		drains := slices.Contains(o.Finalizers, v1alpha1.FinalizerDrain)
		if o.ObjectMeta = identity(o.ObjectMeta); drains {
			o.Finalizers = []string{v1alpha1.FinalizerDrain}
		}
		o.Spec = v1alpha1.MacNodeSpec{}
		o.Status = v1alpha1.MacNodeStatus{Address: o.Status.Address, Conditions: o.Status.Conditions}
	}
	return in, nil
}

// identity returns the metadata that the table reads. Of the rest one object may have as much as etcd stores.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp}
}

// slimModel keeps the facts that are shown to clients, and the names of adapters.
func slimModel(s v1alpha1.ModelReplicaSpec) model.Record {
	r := s.Model
	if s.ChatTemplate != "" { // the template is large, and what it does is not known
		r.Features = nil
	}
	var adapters []model.Adapter
	for _, a := range r.Adapters {
		adapters = append(adapters, model.Adapter{Name: a.Name})
	}
	return model.Record{Digest: r.Digest, Format: r.Format, Adapters: adapters, Features: r.Features, Facts: model.Facts{Architecture: r.Facts.Architecture, Task: r.Facts.Task,
		Quantization: r.Facts.Quantization, ContextTokens: r.Facts.ContextTokens, WeightBytes: r.Facts.WeightBytes, VisionPatches: r.Facts.VisionPatches}}
}

// setMac adds or changes a Mac, or removes one that is being deleted and was drained: its MacNode stays a
// while after its rights are gone.
func setMac(t *Table, m *v1alpha1.MacNode) {
	if !m.DeletionTimestamp.IsZero() && !slices.Contains(m.Finalizers, v1alpha1.FinalizerDrain) {
		t.DeleteMac(m.Name)
		return
	}
	t.SetMac(MacOf(m))
}

// Watch puts every change that the informers see into the table, and marks the table as
// synced once all three kinds were read. The watch lives as long as the informers; while
// the API server is away the table stays as it is. Watch returns after the initial list, or
// when ctx ends.
func Watch(ctx context.Context, informers cache.Informers, t *Table) error {
	watches := []struct {
		kind client.Object
		set  func(any)
		drop func(any)
	}{
		{&v1alpha1.ModelDeployment{},
			func(o any) { on(o, func(d *v1alpha1.ModelDeployment) { t.SetDeployment(DeploymentOf(d)) }) },
			func(o any) {
				on(o, func(d *v1alpha1.ModelDeployment) { t.DeleteDeployment(Key{d.Namespace, d.Name}, string(d.UID)) })
			}},
		{&v1alpha1.ModelReplica{},
			func(o any) { on(o, func(r *v1alpha1.ModelReplica) { t.SetReplica(ReplicaOf(r)) }) },
			func(o any) { on(o, func(r *v1alpha1.ModelReplica) { t.DeleteReplica(string(r.UID)) }) }},
		{&v1alpha1.MacNode{},
			func(o any) { on(o, func(m *v1alpha1.MacNode) { setMac(t, m) }) },
			func(o any) { on(o, func(m *v1alpha1.MacNode) { t.DeleteMac(m.Name) }) }},
	}
	var synced []toolscache.InformerSynced
	for _, w := range watches {
		informer, err := informers.GetInformer(ctx, w.kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", w.kind, err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: w.set,
			UpdateFunc: func(old, now any) {
				if uid(old) != uid(now) { // deleted and created again while the watch was interrupted
					w.drop(old)
				}
				w.set(now)
			},
			DeleteFunc: w.drop,
		})
		if err != nil {
			return fmt.Errorf("watch %T: %w", w.kind, err)
		}
		synced = append(synced, registration.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	t.MarkSynced()
	return nil
}

func uid(o any) string {
	if m, ok := o.(metav1.Object); ok {
		return string(m.GetUID())
	}
	return ""
}

// on calls f with an object, including one whose deletion was observed late.
func on[T client.Object](o any, f func(T)) {
	if late, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = late.Obj
	}
	if object, ok := o.(T); ok {
		f(object)
	}
}
