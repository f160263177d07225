package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// chartOnly are objects that only the chart makes, and kustomizeOnly what Helm
// makes by itself.
var (
	chartOnly     = []string{"ClusterRole/metalfleet-view", "ClusterRole/metalfleet-edit", "ClusterRole/metalfleet-macs", "metalfleet-uninstall-guard", "Pod/metalfleet-test"}
	kustomizeOnly = []string{"Namespace/metalfleet-system"}
)

// helmLabels say who applied an object, in labels, selectors and annotations.
var helmLabels = []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of",
	"helm.sh/chart", "helm.sh/resource-policy"}

// kustomize holds config/ against what the chart makes by default: the same
// objects, whichever way somebody installs.
func (h helm) kustomize(ctx context.Context) (string, error) {
	ours, err := output(exec.CommandContext(ctx, filepath.Join(h.root, "bin", "kube", "kubectl"), "kustomize", filepath.Join(h.root, "config")))
	if err != nil {
		return "", err
	}
	theirs, err := h.render(ctx, variants()[0])
	if err != nil {
		return "", err
	}
	return compare(ours, theirs)
}

// compare says how many objects both have, or in which they differ.
func compare(kustomized, rendered []byte) (string, error) {
	ours, err := byName(kustomized)
	if err != nil {
		return "", err
	}
	theirs, err := byName(rendered)
	if err != nil {
		return "", err
	}
	var wrong []error
	same := 0
	for name, o := range ours {
		c, ok := theirs[name]
		if ok && o.GetLabels() == nil {
			c.SetLabels(nil) // rights need none; the chart labels all that it makes
		}
		switch {
		case ok && reflect.DeepEqual(bare(o.Object), bare(c.Object)):
			same++
		case ok:
			wrong = append(wrong, fmt.Errorf("%s differs between config/ and the chart", name))
		case !slices.Contains(kustomizeOnly, name):
			wrong = append(wrong, fmt.Errorf("the chart makes no %s", name))
		}
	}
	for name := range theirs {
		known := slices.ContainsFunc(chartOnly, func(only string) bool { return strings.HasSuffix(name, only) })
		if ours[name] == nil && !known {
			wrong = append(wrong, fmt.Errorf("config/ makes no %s", name))
		}
	}
	return fmt.Sprintf("%d objects are those of the chart", same), errors.Join(wrong...)
}

func byName(text []byte) (map[string]*unstructured.Unstructured, error) {
	objects, err := parse(bytes.TrimPrefix(text, []byte("---\n")))
	if err != nil {
		return nil, err
	}
	out := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		out[o.GetKind()+"/"+o.GetName()] = o
	}
	return out, nil
}

// bare is a value without what says who applied it, and without empty maps.
func bare(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if slices.Contains(helmLabels, k) {
				continue
			}
			if b := bare(x); !isEmptyMap(b) {
				out[k] = b
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = bare(x)
		}
		return out
	}
	return v
}

func isEmptyMap(v any) bool {
	m, ok := v.(map[string]any)
	return ok && len(m) == 0
}
