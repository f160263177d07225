package controllers_test

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// deployments are the ModelDeployments of one test, with their replicas.
type deployments struct{ *cluster }

const source = "file://models/small.gguf"

var small = fleettest.Model(source, "small", 98_000_000)

// deploy applies a ModelDeployment of the small model.
func (ds *deployments) deploy(name string, change func(*v1alpha1.ModelDeploymentSpec)) *v1alpha1.ModelDeployment {
	ds.t.Helper()
	d := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ds.ns, Name: name},
		Spec:       v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: source}, Rollout: v1alpha1.RolloutSpec{DrainSeconds: ptr.To[int32](1)}},
	}
	if change != nil {
		change(&d.Spec)
	}
	ds.must(ds.c.Create(ds.ctx, d))
	return d
}

// edit changes a deployment's spec, with retries.
func (ds *deployments) edit(name string, change func(*v1alpha1.ModelDeploymentSpec)) {
	ds.t.Helper()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: ds.ns, Name: name}}
	ds.change(d, func() { change(&d.Spec) })
}

// alone returns the only replica of a list.
func alone(replicas []v1alpha1.ModelReplica) (*v1alpha1.ModelReplica, error) {
	if len(replicas) != 1 {
		return nil, fmt.Errorf("%d replicas, want 1", len(replicas))
	}
	return &replicas[0], nil
}

func (ds *deployments) get(name string) *v1alpha1.ModelDeployment {
	ds.t.Helper()
	var d v1alpha1.ModelDeployment
	ds.must(ds.c.Get(ds.ctx, client.ObjectKey{Namespace: ds.ns, Name: name}, &d))
	return &d
}

// deployment waits until a condition of a deployment has a reason.
func (ds *deployments) deployment(name, kind, reason string) *v1alpha1.ModelDeployment {
	ds.t.Helper()
	var d *v1alpha1.ModelDeployment
	ds.eventually(fmt.Sprintf("%s has %s with reason %s", name, kind, reason), func() error {
		d = ds.get(name)
		if d.Status.ObservedGeneration != d.Generation {
			return errors.New("the status is of another generation")
		}
		return wantReason(d.Status.Conditions, kind, reason)
	})
	return d
}

// replicas of a deployment, including terminating ones.
func (ds *deployments) replicas(deployment string) []v1alpha1.ModelReplica {
	ds.t.Helper()
	var list v1alpha1.ModelReplicaList
	ds.must(ds.c.List(ds.ctx, &list, client.InNamespace(ds.ns), client.MatchingLabels{v1alpha1.LabelDeployment: deployment}))
	return list.Items
}

// watchReplica returns a function for the latest state of a replica.
func (ds *deployments) watchReplica(name string) func() *v1alpha1.ModelReplica {
	ds.t.Helper()
	watch, err := ds.c.Watch(ds.ctx, &v1alpha1.ModelReplicaList{}, client.InNamespace(ds.ns), client.MatchingFields{"metadata.name": name})
	ds.must(err)
	last := make(chan *v1alpha1.ModelReplica, 1)
	go func() {
		var seen *v1alpha1.ModelReplica
		for e := range watch.ResultChan() {
			seen, _ = e.Object.(*v1alpha1.ModelReplica)
			if e.Type == apiwatch.Deleted {
				break
			}
		}
		last <- seen
	}()
	return func() *v1alpha1.ModelReplica {
		defer watch.Stop()
		select {
		case seen := <-last:
			return seen
		case <-ds.ctx.Done():
			ds.t.Fatal("no end was seen of " + name)
			return nil
		}
	}
}

func onDemand(s *v1alpha1.ModelDeploymentSpec) {
	s.Residency = v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: ptr.To[int32](60), EvictionPriority: 2}
}
