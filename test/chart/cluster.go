package main

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
	root string
	env  *testenv.Env
	client.Client
}

// foreignKinds are those of the Prometheus operator and of KEDA, which this API
// server does not serve: that they are rendered is all that is known of them here.
var foreignKinds = []string{"ServiceMonitor", "PrometheusRule", "ClusterTriggerAuthentication"}

func newCluster(ctx context.Context, root string) (*cluster, error) {
	env, err := testenv.Start(ctx, testenv.Options{CRDs: []string{}})
	if err != nil {
		return nil, err
	}
	c := &cluster{root: root, env: env}
	if c.Client, err = client.New(env.Config(), client.Options{}); err == nil {
		err = errors.Join(
			c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}),
			// Nothing is kept here, and what lies in a namespace of the chart's own wants to find it.
			c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "metalfleet-api-keys"}}),
			c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: scalers}}),
			c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: restricted, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}),
		)
		// Admission wants to see the accounts of Pods, and nothing is kept here.
		for _, account := range []metav1.ObjectMeta{
			{Namespace: namespace, Name: "metalfleet-operator"}, {Namespace: namespace, Name: "metalfleet-gateway"}, {Namespace: restricted, Name: "default"},
		} {
			err = errors.Join(err, c.Create(ctx, &corev1.ServiceAccount{ObjectMeta: account}))
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *cluster) stop() error { return c.env.Stop() }

// judge has the API server validate every object strictly, without keeping it,
// and looks at what must be there.
func (c *cluster) judge(ctx context.Context, v variant, text []byte) (string, error) {
	objects, err := parse(text)
	if err != nil {
		return "", err
	}
	var wrong []error
	var names []string
	var plain [][]byte
	for _, o := range objects {
		names = append(names, o.GetKind()+"/"+o.GetName())
		if slices.Contains(foreignKinds, o.GetKind()) {
			continue
		}
		b, err := yaml.Marshal(o.Object)
		if err != nil {
			return "", err
		}
		plain = append(plain, b)
		wrong = append(wrong, c.check(ctx, v, o))
	}
	for _, n := range v.has {
		if !slices.Contains(names, n) {
			wrong = append(wrong, fmt.Errorf("there is no %s", n))
		}
	}
	for _, n := range v.lacks {
		if slices.Contains(names, n) {
			wrong = append(wrong, fmt.Errorf("there is %s", n))
		}
	}
	if err := c.dryRun(ctx, bytes.Join(plain, []byte("---\n"))); err != nil {
		wrong = append(wrong, err)
	}
	return fmt.Sprintf("%d objects are valid", len(objects)), errors.Join(wrong...)
}

func parse(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, doc := range strings.Split("\n"+string(text), "\n---") {
		var o unstructured.Unstructured
		if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
			return nil, fmt.Errorf("rendered text is no YAML: %w\n%s", err, doc)
		}
		if len(o.Object) > 0 {
			out = append(out, &o)
		}
	}
	return out, nil
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

// check looks at one object as the programs and the cluster would.
func (c *cluster) check(ctx context.Context, v variant, o *unstructured.Unstructured) error {
	at := func(err error) error {
		if err != nil {
			return fmt.Errorf("%s/%s: %w", o.GetKind(), o.GetName(), err)
		}
		return nil
	}
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	switch o.GetKind() {
	case "CustomResourceDefinition":
		if o.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			return at(errors.New("it would go with the chart, and all models with it"))
		}
	case "Deployment":
		var d appsv1.Deployment
		if err := convert(o.Object, &d); err != nil {
			return at(err)
		}
		return at(c.pod(ctx, v, d.Spec.Template.Spec))
	case "Job":
		var j batchv1.Job
		if err := convert(o.Object, &j); err != nil {
			return at(err)
		}
		return at(c.pod(ctx, v, j.Spec.Template.Spec))
	case "Pod":
		var p corev1.Pod
		if err := convert(o.Object, &p); err != nil {
			return at(err)
		}
		return at(c.pod(ctx, v, p.Spec))
	}
	return nil
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
		name := filepath.Base(strings.SplitN(k.Image, ":", 2)[0])
		program := filepath.Join(c.root, "bin", name)
		if _, err := os.Stat(program); err != nil {
			return fmt.Errorf("image %s has no program here: %w", k.Image, err)
		}
		// The program reads all flags before it says what it thinks of them.
		if _, err := output(exec.CommandContext(ctx, program, append(slices.Clone(k.Args), "--help")...)); err != nil {
			return fmt.Errorf("its command line %v is refused: %w", k.Args, err)
		}
		if slices.Contains(v.set, "image.tag=v1") != strings.HasPrefix(k.Image, "registry.example/fleet/") {
			return fmt.Errorf("image %s is not what the values say", k.Image)
		}
	}
	return nil
}
