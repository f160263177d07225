// Command ready measures the way from a manifest to a served model: the time
// from the create of a ModelDeployment to its condition Ready, on a fleet of
// real processes with the tiny model on the Mac's disk.
//
// It owns the measurement, its bound and the record in docs/bench. It fails
// when the median is over the bound. Each round is a deployment of its own on
// the same Mac; between rounds the model is deleted and waited for.
//
// Start reading at measure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// bound is the most that the median may be.
const bound = 1500 * time.Millisecond

// roundLimit ends a round that will never be ready.
const roundLimit = 30 * time.Second

func main() {
	runs := flag.Int("runs", 5, "how many rounds")
	out := flag.String("out", filepath.Join("docs", "bench"), "folder for ready.json and ready.md; empty writes none")
	keep := flag.String("logs", "", "folder to keep the programs' logs in")
	flag.Parse()
	if err := run(*runs, *out, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "bench-ready:", err)
		os.Exit(1)
	}
}

func run(runs int, out, keep string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if runs < 1 {
		return fmt.Errorf("%d rounds, want at least 1", runs)
	}
	scratch, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	rounds, err := measure(ctx, scratch, runs, keep)
	if err != nil {
		return err
	}
	return newReport(rounds).Finish(out)
}

// measure runs the rounds on one fleet of one Mac.
func measure(ctx context.Context, scratch string, runs int, keep string) (rounds []time.Duration, err error) {
	models := filepath.Join(scratch, "models")
	if err := os.Mkdir(models, 0o755); err != nil {
		return nil, fmt.Errorf("model root: %w", err)
	}
	if err := tinymodel.Write(filepath.Join(models, "tiny.gguf"), tinymodel.Default()); err != nil {
		return nil, err
	}
	f, err := fleet.Start(ctx, fleet.Options{
		Root: ".", Dir: filepath.Join(scratch, "run"), ModelRoot: models,
		Macs: []fleet.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if keep != "" {
			err = errors.Join(err, f.KeepLogs(keep))
		}
		err = errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
	}()
	for i := range runs {
		took, err := round(ctx, f.Client, fmt.Sprintf("round-%d", i+1))
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		rounds = append(rounds, took)
	}
	return rounds, nil
}

// round applies one deployment, waits for Ready by a watch, and deletes it.
func round(ctx context.Context, c client.WithWatch, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundLimit, fmt.Errorf("not within %s", roundLimit))
	defer cancel()
	w, err := c.Watch(ctx, &v1alpha1.ModelDeploymentList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.ModelDeploymentSpec{
			Model:   v1alpha1.ModelSource{Source: "file://tiny.gguf"},
			Context: v1alpha1.ContextSpec{Tokens: 256, Sequences: 2},
		},
	}
	began := time.Now()
	if err := c.Create(ctx, md); err != nil {
		return 0, fmt.Errorf("apply: %w", err)
	}
	if err := waitReady(ctx, w); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := c.Delete(ctx, md); err != nil {
		return 0, fmt.Errorf("delete: %w", err)
	}
	return took, fleet.Poll(ctx, 20*time.Millisecond, name+" is gone", func(ctx context.Context) error {
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
				return fmt.Errorf("wait for Ready: the watch says %+v", e.Object)
			}
			if meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
				return nil
			}
			last = md
		}
	}
}
