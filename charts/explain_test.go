//go:build !race

package charts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// undescribed lists the fields of a kind that kubectl explain shows without a
// sentence, and counts all fields.
func undescribed(text []byte) (names []string, fields int, err error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return nil, 0, err
	}
	for _, v := range crd.Spec.Versions {
		schema := v.Schema.OpenAPIV3Schema
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			delete(schema.Properties, name) // Kubernetes describes these
		}
		fields += walk(crd.Spec.Names.Singular, schema, &names)
	}
	slices.Sort(names)
	return names, fields, nil
}

// walk counts the fields under a path and collects those without a sentence.
func walk(path string, s *apiextensionsv1.JSONSchemaProps, names *[]string) int {
	n := 0
	for name, p := range s.Properties {
		at := path + "." + name
		n++
		if !isSentence(p.Description) {
			*names = append(*names, at)
		}
		n += walk(at, &p, names)
	}
	if s.Items != nil && s.Items.Schema != nil {
		n += walk(path+"[]", s.Items.Schema, names)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		n += walk(path+"{}", s.AdditionalProperties.Schema, names)
	}
	return n
}

// isSentence reports whether a description is a sentence or more.
func isSentence(description string) bool {
	d := strings.TrimSpace(description)
	return len(strings.Fields(d)) >= 2 && strings.ContainsAny(d[len(d)-1:], ".)`:")
}

func TestASentenceEnds(t *testing.T) {
	for text, want := range map[string]bool{
		"spec is the desired state.": true, "how many (at most 8)": true, "a name": false, "": false, "x.": false, "  ": false,
		"key: value, as in `a`": true,
	} {
		if got := isSentence(text); got != want {
			t.Errorf("%q is a sentence: %v", text, got)
		}
	}
}

func TestAFieldWithoutASentenceIsNamed(t *testing.T) {
	names, fields, err := undescribed([]byte(`
spec:
  names: {singular: thing}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        properties:
          spec:
            description: spec is described.
            properties:
              mute: {type: string}
              list:
                description: list is described.
                items: {properties: {deep: {description: no end}}}
              map:
                description: map is described.
                additionalProperties: {properties: {inside: {}}}
`))
	if want := []string{"thing.spec.list[].deep", "thing.spec.map{}.inside", "thing.spec.mute"}; err != nil || fields != 6 || !slices.Equal(names, want) {
		t.Errorf("%q of %d fields, %v; want %q of 6", names, fields, err, want)
	}
}

func TestEveryFieldOfTheKindsHasASentence(t *testing.T) {
	files, err := filepath.Glob("../config/crd/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("kinds in config/crd: %q, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		names, fields, err := undescribed(b)
		if err != nil || len(names) > 0 || fields == 0 {
			t.Errorf("%s: of %d fields these have no sentence: %q (%v)", f, fields, names, err)
		}
	}
}

// TestTheChartCarriesWhatWasGenerated: make generate copies kinds and roles.
func TestTheChartCarriesWhatWasGenerated(t *testing.T) {
	for from, to := range map[string]string{
		"crd/*.yaml":       "crds",
		"rbac/role.yaml":   "rbac",
		"rbac/agents.yaml": "rbac",
		"rbac/writes.yaml": "rbac",
		"rbac/people.yaml": "rbac",
		"policy/*.yaml":    "policy",
	} {
		files, err := filepath.Glob(filepath.Join("../config", from))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file config/%s: %v", from, err)
		}
		for _, f := range files {
			want, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join("metalfleet/files", to, filepath.Base(f))); err != nil || string(got) != string(want) {
				t.Errorf("%s differs in the chart (%v): run make generate", f, err)
			}
		}
	}
}
