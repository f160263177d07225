package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// patience bounds a wait; a bound that is missed is told as a figure, not as a
// wait that ended.
const patience = 3 * time.Minute

func deploymentName(run, n int) string { return fmt.Sprintf("model-%d-%02d", run, n) }

// place creates the deployments of a run and times until each replica has a Mac.
func place(ctx context.Context, f *fleet.Fleet, run int) (time.Duration, error) {
	before, err := countWrites(ctx, f)
	if err != nil {
		return 0, err
	}
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
	if err := placed(ctx, f, deployments*each); err != nil {
		return 0, err
	}
	took := time.Since(began)
	after, err := countWrites(ctx, f)
	if err != nil {
		return 0, err
	}
	fmt.Println("     ", strings.Join(after.since(before), "\n      "))
	return took, nil
}

// placed waits until so many replicas have a Mac. It watches: one who lists them
// again and again takes the API server's time from those who place.
func placed(ctx context.Context, f *fleet.Fleet, wanted int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	c, err := client.NewWithWatch(f.Env.Config(), client.Options{Scheme: f.Client.Scheme()})
	if err != nil {
		return err
	}
	events, err := c.Watch(ctx, &v1alpha1.ModelReplicaList{}, client.InNamespace("default"))
	if err != nil {
		return fmt.Errorf("watch replicas: %w", err)
	}
	defer events.Stop()
	bound := map[string]bool{}
	for len(bound) < wanted {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d replicas have a Mac: %w", len(bound), wanted, context.Cause(ctx))
		case e, open := <-events.ResultChan():
			replica, is := e.Object.(*v1alpha1.ModelReplica)
			switch {
			case !open || !is:
				return fmt.Errorf("the watch of replicas ended: %v", e)
			case e.Type == watch.Deleted || !replica.DeletionTimestamp.IsZero():
				delete(bound, replica.Name)
			case replica.Spec.NodeName != "":
				bound[replica.Name] = true
			}
		}
	}
	return nil
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
