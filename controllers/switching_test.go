//go:build !race

package controllers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manifest writes a deployment of the small model as a user keeps it, and returns the file.
func manifest(w *world, name, rest string) string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), name+".yaml")
	w.must(os.WriteFile(file, []byte(fmt.Sprintf("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: %s, namespace: %s}\nspec:\n  model: {source: %q}\n%s",
		name, w.ns, source, rest)), 0o600))
	return file
}

// A manifest that gets autoscaling does not name the replicas that `kubectl scale` set, and
// no kind of apply removes them: they belong to another field manager.
func TestAutoscalingIsSwitchedOnByApplyAfterScale(t *testing.T) {
	w := newWorld(t)
	for i := range 2 {
		w.mac(fmt.Sprintf("mac-%d", i), holding(60*gib))
	}
	for name, how := range map[string][]string{"client-side": nil, "server-side": {"--server-side"}} {
		apply := func(rest string) {
			w.t.Helper()
			w.kubectl(append([]string{"apply", "-f", manifest(w, name, rest)}, how...)...)
		}
		apply("")
		w.kubectl("scale", "-n", w.ns, "mdep/"+name, "--replicas=2")
		w.eventually(name+" is scaled", func() error {
			if d := w.get(name); d.Status.ReadyReplicas != 2 {
				return fmt.Errorf("%d replicas are ready", d.Status.ReadyReplicas)
			}
			return nil
		})
		apply("  autoscaling: {maxReplicas: 3}\n")
		w.eventually(name+" scales itself", func() error {
			d := w.get(name)
			if a := d.Status.Autoscaling; a == nil || a.DesiredReplicas != 2 || len(w.replicas(name)) != 2 {
				return fmt.Errorf("%d replicas, autoscaling %+v", len(w.replicas(name)), a)
			}
			return nil
		})
		apply("  autoscaling: {maxReplicas: 4}\n") // as often as its user likes
		three := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`))
		if err := w.c.Patch(w.ctx, w.get(name), three); err == nil || !contains(err.Error(), "mutually exclusive") {
			t.Errorf("%s: replicas can be changed while it scales itself: %v", name, err)
		}
	}
	both := manifest(w, "both", "  replicas: 3\n  autoscaling: {maxReplicas: 3}\n")
	raw, err := os.ReadFile(both)
	w.must(err)
	s := newSchema(t)
	s.want(s.c.Create(s.ctx, s.object(string(raw)), client.DryRunAll), "mutually exclusive")
}
