//go:build !race

package v1alpha1

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// yearRule is the rule of a time: it parses the value, and leaves room for a zone in years of four digits.
func yearRule(field string) string {
	return field + ".getFullYear() >= 0 && " + field + ".getFullYear() < 9999"
}

// TestAttackATimeThatNoProgramReads: the format date-time accepts 2026-01-31t12:00:00z, zones of 99
// hours, any text after a second t, and lists. Go parses none of these, and one such object ends
// the list of its kind in every operator and gateway.
func TestAttackATimeThatNoProgramReads(t *testing.T) {
	kinds := map[string]func() any{
		"MacAssignment": func() any { return new(MacAssignment) }, "MacClass": func() any { return new(MacClass) }, "MacNode": func() any { return new(MacNode) },
		"ModelDeployment": func() any { return new(ModelDeployment) }, "ModelProfile": func() any { return new(ModelProfile) },
		"ModelReplica": func() any { return new(ModelReplica) }, "NamespaceRules": func() any { return new(NamespaceRules) },
	}
	found := 0
	eachSchema(t, func(kind string, schema *apiextensionsv1.JSONSchemaProps) {
		eachTime(nil, nil, schema, func(path []string, parent, s *apiextensionsv1.JSONSchemaProps) {
			found++
			if !hasRule(s, yearRule("self")) && !hasRule(parent, yearRule("self."+path[len(path)-1])) {
				t.Errorf("%s.%s: no rule parses the time", kind, strings.Join(path, "."))
			}
			const whole = "2026-01-31T12:00:00Z"
			b, err := json.Marshal(nested(path, whole))
			if err != nil {
				t.Fatal(err)
			}
			if json.Unmarshal(b, kinds[kind]()) != nil && (s.Pattern == "" || regexp.MustCompile(s.Pattern).MatchString(whole)) {
				t.Errorf("%s.%s: %s is accepted, and Go cannot parse it", kind, strings.Join(path, "."), whole)
			}
		})
	})
	if found < 20 {
		t.Errorf("%d times, want more", found)
	}
}

func hasRule(s *apiextensionsv1.JSONSchemaProps, rule string) bool {
	for _, r := range s.XValidations {
		if r.Rule == rule {
			return true
		}
	}
	return false
}

// eachTime calls a function for each time in a schema, see each.
func eachTime(path []string, parent, s *apiextensionsv1.JSONSchemaProps, do func(path []string, parent, s *apiextensionsv1.JSONSchemaProps)) {
	each(path, parent, s, func(path []string, parent, s *apiextensionsv1.JSONSchemaProps) {
		if s.Format == "date-time" {
			do(path, parent, s)
		}
	})
}

// each calls a function for each field in a schema, with its path, in which [] is an entry of a
// list or a map, and the object that it is a field of.
func each(path []string, parent, s *apiextensionsv1.JSONSchemaProps, do func(path []string, parent, s *apiextensionsv1.JSONSchemaProps)) {
	do(path, parent, s)
	for name := range s.Properties {
		field := s.Properties[name]
		each(append(path[:len(path):len(path)], name), s, &field, do)
	}
	entry := append(path[:len(path):len(path)], "[]")
	if s.Items != nil && s.Items.Schema != nil {
		each(entry, s, s.Items.Schema, do)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		each(entry, s, s.AdditionalProperties.Schema, do)
	}
}

// TestAttackANumberThatNoProgramReads: API servers before 1.36 ignore the format int32 of a CRD. Go does
// not read a larger number, and one such object ends the list of its kind in every operator and gateway.
func TestAttackANumberThatNoProgramReads(t *testing.T) {
	found := 0
	eachSchema(t, func(kind string, schema *apiextensionsv1.JSONSchemaProps) {
		each(nil, nil, schema, func(path []string, _, s *apiextensionsv1.JSONSchemaProps) {
			if s.Type != "integer" || s.Format == "int64" {
				return
			}
			found++
			if s.Minimum == nil || *s.Minimum < math.MinInt32 || s.Maximum == nil || *s.Maximum > math.MaxInt32 {
				t.Errorf("%s.%s: the schema accepts numbers that an int32 does not hold", kind, strings.Join(path, "."))
			}
		})
	})
	if found < 20 {
		t.Errorf("%d numbers, want more", found)
	}
}

// eachSchema calls a function for each version of each CRD.
func eachSchema(t *testing.T, do func(kind string, schema *apiextensionsv1.JSONSchemaProps)) {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			do(crd.Spec.Names.Kind, v.Schema.OpenAPIV3Schema)
		}
	}
}

// nested returns an object with a value at a path.
func nested(path []string, value any) any {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "[]" {
			value = []any{value}
		} else {
			value = map[string]any{path[i]: value}
		}
	}
	return value
}
