package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// readyTimeout is the maximum time from a manifest to a ready model: three
// times what a busy two-core machine took.
const readyTimeout = 2 * time.Minute

// waitReady waits until the deployment has want ready replicas, and prints
// every change with bytes and ETA.
func (s *story) waitReady(ctx context.Context, want int32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("timed out after %s", readyTimeout))
	defer cancel()
	shown := map[string]string{}
	show := func(key, line string) {
		if line != "" && shown[key] != line {
			shown[key] = line
			fmt.Println("  ", line)
		}
	}
	var died error
	err := fleet.Poll(ctx, 100*time.Millisecond, fmt.Sprintf("%d replicas of %s are ready", want, deployment), func(ctx context.Context) error {
		if died = s.fleet.Failed(); died != nil {
			return nil
		}
		md, replicas, err := s.look(ctx)
		if err != nil {
			return err
		}
		show("mdep", firstTrouble(md))
		for i := range replicas {
			show(replicas[i].Name, describe(&replicas[i]))
		}
		if md.Status.ObservedGeneration != md.Generation || md.Status.ReadyReplicas != want || md.Status.Replicas != want {
			return fmt.Errorf("%d of %d ready; conditions: %s", md.Status.ReadyReplicas, want, sentences(md))
		}
		return nil
	})
	return errors.Join(died, err)
}

func (s *story) look(ctx context.Context) (*v1alpha1.ModelDeployment, []v1alpha1.ModelReplica, error) {
	md := &v1alpha1.ModelDeployment{}
	if err := s.fleet.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: deployment}, md); err != nil {
		return nil, nil, err
	}
	var list v1alpha1.ModelReplicaList
	if err := s.fleet.Client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelDeployment: deployment}); err != nil {
		return nil, nil, err
	}
	return md, list.Items, nil
}

// firstTrouble returns the message of the first condition that blocks the
// deployment.
func firstTrouble(md *v1alpha1.ModelDeployment) string {
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionFits, v1alpha1.ConditionPlaced} {
		c := meta.FindStatusCondition(md.Status.Conditions, kind)
		if c != nil && c.Status != "True" {
			return fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return ""
}

func sentences(md *v1alpha1.ModelDeployment) string {
	var out string
	for _, c := range md.Status.Conditions {
		out += fmt.Sprintf("\n     %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return out
}

// describe returns the Mac of a replica and its progress.
func describe(r *v1alpha1.ModelReplica) string {
	p := r.Status.Progress
	if r.Spec.NodeName == "" || p.Stage == "" {
		return ""
	}
	line := fmt.Sprintf("%s on Mac %s: %s", r.Name, r.Spec.NodeName, p.Stage)
	if p.BytesTotal > 0 && p.Stage != v1alpha1.StageServing {
		line += fmt.Sprintf(", %s of %s", v1alpha1.FormatBytes(p.BytesDone), v1alpha1.FormatBytes(p.BytesTotal))
	}
	if p.ETASeconds != nil && p.Stage != v1alpha1.StageServing {
		line += fmt.Sprintf(", about %d s left", *p.ETASeconds)
	}
	return line
}
