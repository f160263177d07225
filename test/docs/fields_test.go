//go:build !race

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// helmValues are the values of the chart, and the maps above them.
func helmValues(t *testing.T) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "charts", "metalfleet", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for name, v := range m {
			out[prefix+name] = true
			if inner, ok := v.(map[string]any); ok {
				walk(prefix+name+".", inner)
			}
		}
	}
	walk("", all)
	return out
}

// fields are the paths of all CRDs, from spec or status.
func fields(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	out := map[string]bool{}
	var walk func(path string, s *apiextensionsv1.JSONSchemaProps)
	walk = func(path string, s *apiextensionsv1.JSONSchemaProps) {
		out[path] = true
		for name, p := range s.Properties {
			walk(path+"."+name, &p)
		}
		if s.Items != nil && s.Items.Schema != nil {
			walk(path, s.Items.Schema)
		}
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"spec", "status"} {
			s := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
			walk(part, &s)
		}
	}
	return out
}

var (
	field = regexp.MustCompile(`^(?:MacNode\.|ModelReplica\.)?((?:spec|status)\.[A-Za-z.\[\]]+)`)
	value = regexp.MustCompile(`^((?:operator|gateway|monitoring|image|crds|networkPolicies|uninstallGuard|aggregatedRoles)\.[A-Za-z.]+[A-Za-z])(?:[:=].*)?$`)
)

// TestFieldsAndValuesExist: those that sentences name.
func TestFieldsAndValuesExist(t *testing.T) {
	known, values, found := fields(t), helmValues(t), 0
	for _, d := range documents(t) {
		for _, s := range spans(d.text) {
			if m := field.FindStringSubmatch(s.text); m != nil {
				found++
				if path := strings.TrimSuffix(strings.ReplaceAll(m[1], "[]", ""), "."); !known[path] {
					t.Errorf("%s:%d: no resource has the field %s", d.path, s.line, path)
				}
			}
			if m := value.FindStringSubmatch(s.text); m != nil && !strings.Contains(m[1], ".Test") {
				found++
				if !values[m[1]] {
					t.Errorf("%s:%d: the chart has no value %s", d.path, s.line, m[1])
				}
			}
		}
		for _, b := range d.blocks {
			if b.Language == "yaml" && b.Marks["file"] == "values.yaml" {
				checkValues(t, d, b.Text, values)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d fields and values were found", found)
	}
}

// checkValues wants every value of a block to be one of the chart.
func checkValues(t *testing.T, d document, text string, values map[string]bool) {
	t.Helper()
	var all map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &all); err != nil {
		t.Errorf("%s: values.yaml: %v", d.path, err)
	}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for name, v := range m {
			if !values[prefix+name] {
				t.Errorf("%s: the chart has no value %s", d.path, prefix+name)
			}
			// A map that is empty in the chart takes any name.
			if inner, ok := v.(map[string]any); ok && has(values, prefix+name+".") {
				walk(prefix+name+".", inner)
			}
		}
	}
	walk("", all)
}

// has reports whether a value's path begins with prefix.
func has(values map[string]bool, prefix string) bool {
	for path := range values {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
