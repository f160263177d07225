package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// sentences looks for a sentence at every field that kubectl explain shows.
func sentences(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("no kinds in %s", dir)
	}
	var mute []string
	fields := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(b, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", f, err)
		}
		for _, v := range crd.Spec.Versions {
			schema := v.Schema.OpenAPIV3Schema
			for _, name := range []string{"apiVersion", "kind", "metadata"} {
				delete(schema.Properties, name) // Kubernetes tells of these
			}
			fields += walk(crd.Spec.Names.Singular, schema, &mute)
		}
	}
	if len(mute) > 0 {
		slices.Sort(mute)
		return "", fmt.Errorf("%d fields have no sentence that ends: %s", len(mute), strings.Join(mute, ", "))
	}
	return fmt.Sprintf("each of %d fields has one", fields), nil
}

// walk counts fields and notes those without a sentence.
func walk(path string, s *apiextensionsv1.JSONSchemaProps, mute *[]string) int {
	n := 0
	for name, p := range s.Properties {
		at := path + "." + name
		n++
		if !told(p.Description) {
			*mute = append(*mute, at)
		}
		n += walk(at, &p, mute)
	}
	if s.Items != nil && s.Items.Schema != nil {
		n += walk(path+"[]", s.Items.Schema, mute)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		n += walk(path+"{}", s.AdditionalProperties.Schema, mute)
	}
	return n
}

// told says that a description is a sentence or more.
func told(description string) bool {
	d := strings.TrimSpace(description)
	return len(strings.Fields(d)) >= 2 && strings.ContainsAny(d[len(d)-1:], ".)`:")
}

// copies compares what the chart carries with what it was made from.
func copies(root string) (string, error) {
	var wrong []error
	n := 0
	for from, to := range map[string]string{
		"config/crd/*.yaml":       "charts/metalfleet/files/crds",
		"config/rbac/role.yaml":   "charts/metalfleet/files/rbac",
		"config/rbac/agents.yaml": "charts/metalfleet/files/rbac",
	} {
		files, err := filepath.Glob(filepath.Join(root, from))
		if err != nil || len(files) == 0 {
			return "", errors.Join(fmt.Errorf("no file %s", from), err)
		}
		for _, f := range files {
			n++
			a, err := os.ReadFile(f)
			b, err2 := os.ReadFile(filepath.Join(root, to, filepath.Base(f)))
			if err = errors.Join(err, err2); err != nil || string(a) != string(b) {
				wrong = append(wrong, fmt.Errorf("%s differs in the chart, run make generate: %w", filepath.Base(f), cmpError(err)))
			}
		}
	}
	return fmt.Sprintf("%d files of the chart are those of config", n), errors.Join(wrong...)
}

var errOther = errors.New("other content")

func cmpError(err error) error {
	if err == nil {
		return errOther
	}
	return err
}
