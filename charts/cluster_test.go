//go:build stories

package charts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/test/testenv"
)

// restricted is a namespace whose Pod security admission enforces what the
// standard of that name says.
const restricted = "restricted"

// cluster is a real API server that judges rendered objects.
type cluster struct {
	env *testenv.Env
	client.Client
}

// foreignKinds are those of the Prometheus operator, of KEDA and of the Gateway API, which
// this API server does not serve: the tests only see that they are rendered.
var foreignKinds = []string{"ServiceMonitor", "PrometheusRule", "ClusterTriggerAuthentication", "HTTPRoute"}

func newCluster(t *testing.T, crds ...string) *cluster {
	t.Helper()
	env, err := testenv.Start(t.Context(), testenv.Options{CRDs: append([]string{}, crds...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{env: env}
	if c.Client, err = client.New(env.Config(), client.Options{}); err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		// Dry runs store nothing, and objects of the chart's other namespaces need those.
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "metalfleet-api-keys"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: scalers}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: restricted, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
	}
	for _, account := range []metav1.ObjectMeta{ // admission looks up the accounts of Pods
		{Namespace: namespace, Name: "metalfleet-operator"}, {Namespace: namespace, Name: "metalfleet-gateway"}, {Namespace: restricted, Name: "default"},
	} {
		objects = append(objects, &corev1.ServiceAccount{ObjectMeta: account})
	}
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// judge has the API server validate every object strictly, without storing it,
// and wants the objects that the variant must have and lack.
func (c *cluster) judge(t *testing.T, v variant, text []byte) {
	t.Helper()
	objects, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var plain [][]byte
	for _, o := range objects {
		names = append(names, o.GetKind()+"/"+o.GetName())
		if slices.Contains(foreignKinds, o.GetKind()) {
			continue
		}
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		plain = append(plain, b)
		if err := c.check(t.Context(), v, o); err != nil {
			t.Errorf("%s/%s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	for _, n := range v.has {
		if !slices.Contains(names, n) {
			t.Errorf("there is no %s", n)
		}
	}
	for _, n := range v.lacks {
		if slices.Contains(names, n) {
			t.Errorf("there is %s", n)
		}
	}
	if err := c.dryRun(t.Context(), bytes.Join(plain, []byte("---\n"))); err != nil {
		t.Error(err)
	}
}

// dryRun shows objects to the API server as kubectl would apply them.
func (c *cluster) dryRun(ctx context.Context, text []byte) error {
	assets, err := testenv.AssetsDir()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(assets, "kubectl"), "--kubeconfig", c.env.Kubeconfig, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
	cmd.Stdin = bytes.NewReader(text)
	_, err = output(cmd)
	return err
}

// check judges one object as the programs and the cluster would.
func (c *cluster) check(ctx context.Context, v variant, o *unstructured.Unstructured) error {
	var spec corev1.PodSpec
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	switch o.GetKind() {
	case "CustomResourceDefinition":
		if o.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			return errors.New("an uninstall would delete it, and all models with it")
		}
		return nil
	case "Deployment":
		var d appsv1.Deployment
		if err := convert(o.Object, &d); err != nil {
			return err
		}
		spec = d.Spec.Template.Spec
	case "Job":
		var j batchv1.Job
		if err := convert(o.Object, &j); err != nil {
			return err
		}
		spec = j.Spec.Template.Spec
	case "Pod":
		var p corev1.Pod
		if err := convert(o.Object, &p); err != nil {
			return err
		}
		spec = p.Spec
	default:
		return nil
	}
	return c.pod(ctx, v, spec)
}

// pod has a Pod judged by the restricted standard, and its command line by the
// program that will read it.
func (c *cluster) pod(ctx context.Context, v variant, spec corev1.PodSpec) error {
	spec.ServiceAccountName = "default" // the chart's own are in another namespace
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: restricted, Name: "judged"}, Spec: spec}
	off := false
	p.Spec.AutomountServiceAccountToken = &off
	if err := c.Create(ctx, p, client.DryRunAll); err != nil {
		return err
	}
	for _, k := range spec.Containers {
		name, _, _ := strings.Cut(filepath.Base(k.Image), ":")
		name, _, pinned := strings.Cut(name, "@")
		program := filepath.Join(root, "bin", name)
		if _, err := os.Stat(program); err != nil {
			return fmt.Errorf("image %s has no program in bin, run make build: %w", k.Image, err)
		}
		// The program parses all flags before it prints its help.
		if _, err := output(exec.CommandContext(ctx, program, append(slices.Clone(k.Args), "--help")...)); err != nil {
			return fmt.Errorf("its command line %v is refused: %w", k.Args, err)
		}
		if pinned != (v.name == "published") || (pinned || slices.Contains(v.set, "image.tag=v1")) != strings.HasPrefix(k.Image, "registry.example/fleet/") {
			return fmt.Errorf("image %s is not that of the values", k.Image)
		}
	}
	return nil
}
