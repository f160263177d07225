package placement

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	system "metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	mostReady = 1500.0 // ms
	// readyLimit ends a round that will never be ready.
	readyLimit = 30 * time.Second
)

var readyScenario = scenario.Scenario{
	Name: "ready", Title: "From apply to Ready", Rounds: 5, Run: runReady,
	About: `The time from the creation of a ModelDeployment to its condition Ready, with the tiny model on the Mac's disk. Control plane,
operator, gateway and agent run on the same machine. Each round is another deployment; the one before was deleted and is gone.`,
}

var readyFigures = []scenario.Figure{{Name: "apply to Ready, tiny model on disk", Unit: "ms", Of: "apply/ready", Bound: report.AtMost(mostReady)}}

func runReady(ctx context.Context, e *scenario.Env, r *report.Report) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("model root: %w", err)
	}
	defer os.RemoveAll(models)
	if err := tinymodel.Write(filepath.Join(models, "tiny.gguf"), tinymodel.Default()); err != nil {
		return err
	}
	o := system.Options{Root: ".", ModelRoot: models, Macs: []system.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}}}
	return system.With(ctx, o, e.Logs, func(ctx context.Context, f *system.Fleet) error {
		n := 0
		return e.Measure(ctx, r, 0, readyFigures, scenario.One("apply", func(ctx context.Context) (scenario.Values, error) {
			n++
			took, err := apply(ctx, f.Client, fmt.Sprintf("round-%d", n))
			return scenario.Values{"ready": traffic.Milliseconds(took)}, err
		}))
	})
}

// apply creates a deployment, waits for Ready by a watch, and deletes it.
func apply(ctx context.Context, c client.WithWatch, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("not within %s", readyLimit))
	defer cancel()
	w, err := c.Watch(ctx, &v1alpha1.ModelDeploymentList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "file://tiny.gguf"}, Context: v1alpha1.ContextSpec{Tokens: 256, Sequences: 2}},
	}
	began := time.Now()
	if err := c.Create(ctx, md); err != nil {
		return 0, fmt.Errorf("create: %w", err)
	}
	if err := waitReady(ctx, w); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := c.Delete(ctx, md); err != nil {
		return 0, fmt.Errorf("delete: %w", err)
	}
	return took, system.Poll(ctx, 20*time.Millisecond, name+" is gone", func(ctx context.Context) error {
		err := c.Get(ctx, client.ObjectKeyFromObject(md), md)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("finalizers %v (%w)", md.Finalizers, err)
	})
}

func waitReady(ctx context.Context, w watch.Interface) error {
	var last *v1alpha1.ModelDeployment
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Ready: %w; last status %+v", context.Cause(ctx), last)
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.New("wait for Ready: the watch ended")
			}
			md, ok := e.Object.(*v1alpha1.ModelDeployment)
			if !ok {
				return fmt.Errorf("wait for Ready: the watch returned %+v", e.Object)
			}
			if meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
				return nil
			}
			last = md
		}
	}
}
