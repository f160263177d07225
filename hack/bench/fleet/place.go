package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/hack/fleet"
)

// patience bounds a wait; a bound that is missed is told as a figure, not as a
// wait that ended.
const patience = 3 * time.Minute

func deploymentName(run, n int) string { return fmt.Sprintf("model-%d-%02d", run, n) }

// place creates the deployments of a run and times until each replica has a Mac.
func place(ctx context.Context, f *fleet.Fleet, run int) (time.Duration, error) {
	began := time.Now()
	for n := range deployments {
		name := deploymentName(run, n)
		md := &v1alpha1.ModelDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1alpha1.ModelDeploymentSpec{
				Model:    v1alpha1.ModelSource{Source: "hf://bench/" + name},
				Replicas: ptr.To[int32](each),
				Context:  v1alpha1.ContextSpec{Tokens: 4096, Sequences: 4},
			},
		}
		if err := f.Client.Create(ctx, md); err != nil {
			return 0, fmt.Errorf("create %s: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	err := fleet.Poll(ctx, 20*time.Millisecond, "each replica has a Mac", func(ctx context.Context) error {
		var list v1alpha1.ModelReplicaList
		if err := f.Client.List(ctx, &list, client.InNamespace("default")); err != nil {
			return err
		}
		bound := 0
		for i := range list.Items {
			if list.Items[i].Spec.NodeName != "" && list.Items[i].DeletionTimestamp.IsZero() {
				bound++
			}
		}
		if bound != deployments*each {
			return fmt.Errorf("%d of %d replicas have one", bound, deployments*each)
		}
		return nil
	})
	return time.Since(began), err
}

// remove takes the deployments of a run back and waits until nothing of them is
// left.
func remove(ctx context.Context, f *fleet.Fleet, run int) error {
	for n := range deployments {
		if err := f.Undeploy(ctx, deploymentName(run, n)); err != nil {
			return err
		}
	}
	return nil
}
