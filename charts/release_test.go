//go:build stories

package charts

import (
	"os/exec"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/test/testenv"
)

// release runs a command of Helm on the release in the cluster.
func (c *cluster) release(t *testing.T, command string, args ...string) error {
	t.Helper()
	all := append([]string{command, "metalfleet"}, args...)
	_, err := helm(t.Context(), append(all, "--namespace", namespace, "--kubeconfig", c.env.Kubeconfig)...)
	return err
}

// TestHelmAdoptsAnInstallationByKustomize: Helm takes over what kubectl applied without
// replacing any object, and owns it from then on.
func TestHelmAdoptsAnInstallationByKustomize(t *testing.T) {
	c := newCluster(t)
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := output(exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), "--kubeconfig", c.env.Kubeconfig, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, "config"))); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKey{Namespace: namespace, Name: "metalfleet-gateway"}
	var before, after appsv1.Deployment
	if err := c.Get(t.Context(), key, &before); err != nil {
		t.Fatal(err)
	}
	if err := c.release(t, "install", chartDir, "--set", "image.tag=0.1.0"); err == nil {
		t.Error("Helm takes over objects without being asked")
	}
	if err := c.release(t, "install", chartDir, "--take-ownership", "--force-conflicts", "--set", "image.tag=0.1.0,gateway.replicas=3"); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), key, &after); err != nil {
		t.Fatal(err)
	}
	if after.UID != before.UID || *after.Spec.Replicas != 3 || after.Annotations["meta.helm.sh/release-name"] != "metalfleet" {
		t.Errorf("the Deployment was replaced or is not the release's: %v, %d replicas, %v", after.UID != before.UID, *after.Spec.Replicas, after.Annotations)
	}
	if err := c.release(t, "upgrade", chartDir, "--set", "image.tag=0.1.0,gateway.replicas=4"); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), key, &after); err != nil || *after.Spec.Replicas != 4 {
		t.Errorf("an upgrade leaves %d replicas: %v", *after.Spec.Replicas, err)
	}
}
