//go:build !race

package controllers_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestEveryQuantityIsBounded: every controller and gateway that reads an object parses its
// quantities, and so does each rule about one, at every write: a million digits take seconds, and
// so does a comparison with 1e50000000.
func TestEveryQuantityIsBounded(t *testing.T) {
	files, err := filepath.Glob("../config/crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	found, forms := 0, map[string]bool{}
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
			eachSchema(crd.Name, *v.Schema.OpenAPIV3Schema, func(path string, s apiextensionsv1.JSONSchemaProps) {
				if !s.XIntOrString {
					return
				}
				found++
				if s.MaxLength == nil || *s.MaxLength > 32 {
					t.Errorf("%s: a string of any length is accepted, want maxLength 32", path)
				}
				if !strings.Contains(s.Pattern, "KMGTPE") { // a number or a percentage
					return
				}
				if form := firstForm(s.XValidations); form != "" {
					forms[form] = true
				} else {
					t.Errorf("%s: no rule compares the value with the accepted forms before it is parsed", path)
				}
			})
		}
	}
	if found < 10 || len(forms) != 1 {
		t.Errorf("%d fields with the forms %v, want more fields of one form", found, forms)
	}
}

// firstForm returns the expression that all rules about a quantity require first; none if one does
// not.
func firstForm(rules apiextensionsv1.ValidationRules) string {
	const begin = "string(self).matches('"
	form := ""
	for _, r := range rules {
		rest, ok := strings.CutPrefix(r.Rule, begin)
		at := strings.Index(rest, "')")
		if !ok || at < 0 || rest[at+2:] != "" && !strings.HasPrefix(rest[at+2:], " && ") || strings.Contains(rest, "||") && strings.Contains(rest[at:], "||") {
			return ""
		}
		form = rest[:at]
	}
	return form
}

// eachSchema calls a function for a schema and all that it consists of.
func eachSchema(path string, s apiextensionsv1.JSONSchemaProps, do func(string, apiextensionsv1.JSONSchemaProps)) {
	do(path, s)
	for name, p := range s.Properties {
		eachSchema(path+"."+name, p, do)
	}
	if s.Items != nil && s.Items.Schema != nil {
		eachSchema(path+"[]", *s.Items.Schema, do)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		eachSchema(path+"{}", *s.AdditionalProperties.Schema, do)
	}
	for _, p := range slices.Concat(s.AllOf, s.AnyOf, s.OneOf) {
		if p.XIntOrString || p.Properties != nil {
			eachSchema(path, p, do)
		}
	}
}

func TestAttackAQuantityThatTakesSecondsToParse(t *testing.T) {
	s := newSchema(t)
	const forms = "write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	for name, tc := range map[string]struct{ value, sentence string }{
		"a number":              {value: "8589934592"},
		"a number as text":      {value: "'8589934592'"},
		"a binary unit":         {value: "8Gi"},
		"a decimal unit":        {value: "8G"},
		"decimals":              {value: "7.5Gi"},
		"decimals only":         {value: "'.5Gi'"},
		"thousandths":           {value: "8589934592000m"},
		"an exponent":           {value: "'8e9'"},
		"a sign":                {value: "'+8Gi'"},
		"all that is accepted":  {value: "'+1234567890123456789.123456789'"},
		"the longest exponent":  {value: "'1e99'"},
		"zero":                  {value: "'0'", sentence: "memory.limit must be greater than zero"},
		"less than zero":        {value: "'-8Gi'", sentence: "memory.limit must be greater than zero"},
		"a large exponent":      {value: "'1e50000000'", sentence: forms},
		"a small exponent":      {value: "'1e-50000000'", sentence: forms},
		"a million digits":      {value: "'" + strings.Repeat("7", 1<<20) + "'", sentence: "may not be more than 32"},
		"a million decimals":    {value: "'1." + strings.Repeat("7", 1<<20) + "Gi'", sentence: "may not be more than 32"},
		"20 digits":             {value: "'12345678901234567890'", sentence: forms},
		"10 decimals":           {value: "'1.1234567890Gi'", sentence: forms},
		"a number of 30 digits": {value: strings.Repeat("7", 30), sentence: "memory.limit"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &schema{t: t, ctx: s.ctx, c: s.c, ns: s.ns}
			o := s.object("{apiVersion: metalfleet.dev/v1alpha1, kind: ModelDeployment, metadata: {generateName: quantity-, namespace: NS}, spec: {replicas: 0, model: {source: 'file://a'}, memory: {limit: " + tc.value + "}}}")
			s.want(s.c.Create(s.ctx, o), tc.sentence)
		})
	}
}
