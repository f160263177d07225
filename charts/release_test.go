//go:build stories

package charts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/uninstall"
	"metalfleet.dev/metalfleet/test/testenv"
)

// release runs a command of Helm on the release in the cluster.
func (c *cluster) release(t *testing.T, command string, args ...string) error {
	t.Helper()
	all := append([]string{command, "metalfleet"}, args...)
	_, err := helm(t.Context(), append(all, "--namespace", namespace, "--kubeconfig", c.env.Kubeconfig)...)
	return err
}

// as returns a client that knows our types, as a user; empty means the administrator.
func (c *cluster) as(t *testing.T, user string) client.Client {
	t.Helper()
	config := c.env.Config()
	config.Impersonate.UserName = user
	out, err := client.New(config, client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHelmAdoptsAnInstallationByKustomize: Helm takes over what kubectl applied without
// replacing any object, and owns it from then on.
func TestHelmAdoptsAnInstallationByKustomize(t *testing.T) {
	c := newCluster(t)
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	crds := filepath.Join(root, "config", "crd")
	for _, args := range [][]string{
		{"apply", "--server-side", "--force-conflicts", "-f", crds}, {"wait", "--for=condition=Established", "-f", crds},
		{"apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, "config")},
	} {
		if _, err := output(exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), append([]string{"--kubeconfig", c.env.Kubeconfig}, args...)...)); err != nil {
			t.Fatal(err)
		}
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

// TestAnUpgradeTurnsConfigMapsOfRulesIntoNamespaceRules: the object is created although its
// CRD comes with the same upgrade, and from then on it is changed in place.
func TestAnUpgradeTurnsConfigMapsOfRulesIntoNamespaceRules(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"metalfleet-operator", "metalfleet-gateway"} { // the chart makes them
		if err := c.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.release(t, "install", chartWithConfigMaps(t), "--set", "image.tag=0.1.0"); err != nil {
		t.Fatal(err)
	}
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "metalfleet-tenants"}}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(old), old); err != nil {
		t.Fatal(err)
	}
	values := "image.tag=0.1.0,tenants.namespaces.team-a.memory="
	if err := c.release(t, "upgrade", chartDir, "--set", values+"256Gi", "--set-json", "placement.onDemandOvercommit=1.15"); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(old), old); !apierrors.IsNotFound(err) {
		t.Errorf("the ConfigMap is left: %v", err)
	}
	admin := c.as(t, "")
	rules := func() *v1alpha1.NamespaceRules {
		t.Helper()
		r := &v1alpha1.NamespaceRules{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.NamespaceRulesName}, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := rules()
	if team := first.Spec.Of("team-a"); team.MemoryLimit.String() != "256Gi" || !slices.Equal(team.ServedNames, []string{"{namespace}/*"}) || first.Spec.OnDemandOvercommitPercent != 115 {
		t.Errorf("the rules are %+v", first.Spec)
	}
	if err := c.release(t, "upgrade", chartDir, "--set", values); err != nil { // an empty value lifts the limit
		t.Fatal(err)
	}
	second := rules()
	if team, other := second.Spec.Of("team-a"), second.Spec.Of("b"); second.UID != first.UID || team.MemoryLimit.String() != "1Ei" || other.MemoryLimit.String() != "64Gi" || second.Spec.OnDemandOvercommitPercent != 0 {
		t.Errorf("replaced: %t; the rules are %+v", second.UID != first.UID, second.Spec)
	}
	if err := c.release(t, "rollback", "2"); err != nil {
		t.Fatal(err)
	}
	if team := rules().Spec.Of("team-a"); team.MemoryLimit.String() != "256Gi" {
		t.Errorf("after a rollback, the rules are %+v", team)
	}
}

// chartWithConfigMaps returns a copy of the chart as it was before NamespaceRules.
func chartWithConfigMaps(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(chartDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "files", "crds", "metalfleet.dev_namespacerules.yaml")); err != nil {
		t.Fatal(err)
	}
	replace := func(file string, change func(string) string) {
		t.Helper()
		file = filepath.Join(dir, file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(change(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("files/policy/tenants.yaml", strings.NewReplacer("apiVersion: metalfleet.dev/v1alpha1\n    kind: NamespaceRules", "apiVersion: v1\n    kind: ConfigMap",
		"    name: metalfleet\n", "    name: metalfleet-tenants\n    namespace: metalfleet-system\n").Replace)
	replace("templates/policies.yaml", func(text string) string {
		before, _, cut := strings.Cut(text, "{{- /* NamespaceRules:")
		if !cut {
			t.Fatal("the template of the rules is not found")
		}
		return before + "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: metalfleet-tenants\n  namespace: {{ .Release.Namespace }}\ndata:\n  _default.sources: \"hf://*\"\n"
	})
	return dir
}

// TestARefusedUninstallLeavesTheReleaseUsable: while ModelDeployments exist, the operator's
// ConfigMap stops Helm before it records the uninstall.
func TestARefusedUninstallLeavesTheReleaseUsable(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"metalfleet-operator", "metalfleet-gateway"} { // the chart makes them
		if err := c.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.release(t, "install", chartDir, "--set", "image.tag=0.1.0,tenants.open=true"); err != nil {
		t.Fatal(err)
	}
	admin, operator := c.as(t, ""), c.as(t, "system:serviceaccount:"+namespace+":metalfleet-operator")
	guard := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: uninstall.Name}}
	reconcile := func() {
		t.Helper()
		r := &uninstall.Reconciler{Client: operator, Namespace: namespace}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(guard)}); err != nil {
			t.Fatal(err)
		}
	}
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "assistant"}}
	d.Spec.Model.Source = "hf://owner/name"
	if err := admin.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	reconcile()
	for refused := false; !refused; time.Sleep(100 * time.Millisecond) { // the API server reads policies with a delay
		if t.Context().Err() != nil {
			t.Fatal("the policy never applies")
		}
		refused = admin.Delete(t.Context(), guard, client.DryRunAll) != nil
	}
	if err := c.release(t, "uninstall"); err == nil || !strings.Contains(err.Error(), "default/assistant") {
		t.Errorf("the uninstall ends with %v, want a refusal that names the model", err)
	}
	if err := c.release(t, "upgrade", chartDir, "--reuse-values", "--set", "gateway.replicas=4"); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	var gateway appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "metalfleet-gateway"}, &gateway); err != nil || *gateway.Spec.Replicas != 4 {
		t.Errorf("the upgrade had no effect: %v", err)
	}
	if err := admin.Delete(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if err := c.release(t, "uninstall"); err != nil {
		t.Errorf("without models: %v", err)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(guard), guard); !apierrors.IsNotFound(err) {
		t.Errorf("the guard is left: %v", err)
	}
}
