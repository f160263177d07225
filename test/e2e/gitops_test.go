//go:build e2e && linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// absent is a source that the hub does not have.
const absent = "hf://acme/absent"

// sync applies the model as Argo CD does, server-side with a field manager of its own, and
// follows its health as tools do: it is current only while it serves this source.
func (w *world) sync(t *testing.T, source string, want kstatus.Status) {
	t.Helper()
	file := filepath.Join(w.dir, "synced.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(manifest, "$SOURCE", source)), 0o644))
	w.kubectl(t, "apply", "--server-side", "--field-manager=argocd-controller", "-f", file)
	until(t, 2*time.Minute, "the model is "+want.String(), func(ctx context.Context) error {
		out, err := w.cluster.Kubectl(ctx, "-n", team, "get", "mdep", model, "-o", "json")
		if err != nil {
			return err
		}
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON([]byte(out)); err != nil {
			return err
		}
		got, err := kstatus.Compute(&o)
		if err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedInt64(o.Object, "status", "readyReplicas"); got.Status == kstatus.CurrentStatus && (source == absent || ready != 2) {
			t.Errorf("it is called current with %d ready replicas of %s", ready, source)
		}
		if got.Status != want {
			return fmt.Errorf("%s: %s", got.Status, got.Message)
		}
		return nil
	})
}

// gitops: a commit that serves, one that cannot, during which the old one answers, and its
// revert.
func (w *world) gitops(t *testing.T) {
	w.sync(t, w.hub.source, kstatus.CurrentStatus)
	w.sync(t, absent, kstatus.FailedStatus)
	w.ask(t)
	w.sync(t, w.hub.source, kstatus.CurrentStatus)
	w.ask(t)
	w.remove(t)
}

// wait: helm install --wait fails with the operator's reason where the model does not
// exist, before its timeout, and helm upgrade --wait returns once the right one serves.
func (w *world) wait(t *testing.T) {
	chart := filepath.Join(w.dir, "models")
	must(t, errors.Join(os.MkdirAll(filepath.Join(chart, "templates"), 0o755),
		os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte("apiVersion: v2\nname: models\nversion: 1.0.0\n"), 0o644),
		os.WriteFile(filepath.Join(chart, "templates", "model.yaml"), []byte(strings.ReplaceAll(manifest[strings.Index(manifest, "---"):], "$SOURCE", "{{ .Values.source }}")), 0o644)))
	if out, err := w.helm(t.Context(), "install", "models", chart, "--set", "source="+absent, "--wait", "--timeout", "60s"); err == nil {
		t.Fatalf("helm calls a model without a source installed: %s", out)
	} else if !strings.Contains(err.Error(), "Failed") && !strings.Contains(err.Error(), "deadline") {
		t.Errorf("helm failed with another error: %v", err)
	}
	if out, err := w.helm(t.Context(), "upgrade", "models", chart, "--set", "source="+w.hub.source, "--wait", "--timeout", "120s"); err != nil {
		t.Fatalf("helm upgrade --wait: %v\n%s", err, out)
	}
	w.ask(t)
	if out, err := w.helm(t.Context(), "uninstall", "models", "--wait", "--timeout", "120s"); err != nil {
		t.Fatalf("helm uninstall --wait: %v\n%s", err, out)
	}
	w.reclaimed(t)
}
