//go:build !race

package charts

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// chartOnly are objects that only the chart makes, and kustomizeOnly what Helm
// makes by itself.
var (
	chartOnly     = []string{"ClusterRole/metalfleet-view", "ClusterRole/metalfleet-edit", "ClusterRole/metalfleet-macs", "ClusterRole/metalfleet-rules", "ClusterRole/metalfleet-classes", "ClusterRole/metalfleet-profiles", "ClusterRole/metalfleet-profiles-view", "metalfleet-uninstall-guard", "Pod/metalfleet-test"}
	kustomizeOnly = []string{"Namespace/metalfleet-system"}
)

// helmLabels are those that Helm adds, in labels, selectors and annotations.
var helmLabels = []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of",
	"helm.sh/chart", "helm.sh/resource-policy", "helm.sh/hook", "helm.sh/hook-delete-policy", "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"}

// compare returns how many objects are the same in config/ and in the chart, and
// an error for each that differs or is missing.
func compare(kustomized, rendered []byte) (same int, err error) {
	ours, err := byName(kustomized)
	if err != nil {
		return 0, err
	}
	theirs, err := byName(rendered)
	if err != nil {
		return 0, err
	}
	var wrong []error
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
	return same, errors.Join(wrong...)
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

// bare returns a value without the labels of Helm and without empty maps.
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

// parse splits rendered text into objects.
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

func TestConfigAndChartAreCompared(t *testing.T) {
	const object = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  labels:\n    helm.sh/chart: x\nspec:\n  type: ClusterIP\n"
	if same, err := compare([]byte(strings.Replace(object, "  labels:\n    helm.sh/chart: x\n", "", 1)), []byte(object)); err != nil || same != 1 {
		t.Errorf("%d are the same, %v", same, err)
	}
	for want, texts := range map[string][2]string{
		"differs":           {object, strings.Replace(object, "ClusterIP", "NodePort", 1)},
		"makes no Pod/b":    {strings.NewReplacer("Service", "Pod", "name: a", "name: b").Replace(object), object},
		"config/ makes no ": {object, object + "---\n" + strings.Replace(object, "name: a", "name: b", 1)},
	} {
		if _, err := compare([]byte(texts[0]), []byte(texts[1])); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestRenderedTextIsCutIntoObjects(t *testing.T) {
	objects, err := parse([]byte("---\n# Source: a\nkind: A\nmetadata: {name: a}\n---\n# nothing\n---\nkind: B\n"))
	if err != nil || len(objects) != 2 || objects[0].GetKind() != "A" || objects[1].GetKind() != "B" {
		t.Errorf("%v, %v", objects, err)
	}
	if _, err := parse([]byte("kind: A\nkind: B\n")); err == nil {
		t.Error("a key that comes twice is taken")
	}
}
