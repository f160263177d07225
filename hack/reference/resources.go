package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// kind is one CRD and how deep its fields are listed: fields for users in full, fields that
// programs write for each other only by their top level.
type kind struct {
	file string
	// depth is how many levels are listed under a path; the longest prefix applies.
	depth map[string]int
}

const full = 99

func kinds() []kind {
	return []kind{
		{"modeldeployments", map[string]int{"spec": full, "spec.model.huggingFace": 0, "spec.model.s3": 0, "spec.model.oci": 0,
			"spec.model.https": 0, "spec.model.local": 0, "spec.placement.affinity": 0, "spec.placement.tolerations": 0, "spec.placement.topologySpreadConstraints": 0, "spec.sampling": 0, "spec.routing.split": 0, "spec.replicaMetadata": 0, "status": 1, "status.conditions": 0}},
		{"macnodes", map[string]int{"spec": full, "spec.taints": 0, "spec.settings": 0, "spec.clearCache": 0, "status": 1}},
		{"macclasses", map[string]int{}},
		{"macassignments", map[string]int{}},
		{"modelreplicas", map[string]int{"status": 1}},
		{"modelprofiles", map[string]int{}},
		{"namespacerules", map[string]int{}},
	}
}

// resources lists the fields of all kinds and the values of the chart.
func resources(root string) (string, error) {
	var b strings.Builder
	for _, k := range kinds() {
		raw, err := os.ReadFile(filepath.Join(root, "config", "crd", "metalfleet.dev_"+k.file+".yaml"))
		if err != nil {
			return "", err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
			return "", fmt.Errorf("%s: %w", k.file, err)
		}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		first, _ := cutSentence(strings.Join(strings.Fields(schema.Description), " "))
		fmt.Fprintf(&b, "\n## %s\n\n%s. Short name `%s`, %s.\n", crd.Spec.Names.Kind, first, strings.Join(crd.Spec.Names.ShortNames, "`, `"), strings.ToLower(string(crd.Spec.Scope)))
		if k.depth["spec"]+k.depth["status"] == 0 {
			fmt.Fprintf(&b, "\n`kubectl explain %s` lists the fields.\n", strings.ToLower(crd.Spec.Names.Kind))
			continue
		}
		for _, part := range []string{"spec", "status"} {
			if k.depth[part] == 0 {
				fmt.Fprintf(&b, "\n`kubectl explain %s.%s` lists the %s.\n", strings.ToLower(crd.Spec.Names.Kind), part, part)
				continue
			}
			fmt.Fprintf(&b, "\n### %s %s\n\n", crd.Spec.Names.Kind, part)
			s := schema.Properties[part]
			if err := k.list(&b, part, "", &s); err != nil {
				return "", fmt.Errorf("%s: %w", k.file, err)
			}
		}
	}
	values, err := helmValues(root)
	return b.String() + values, err
}

// limit returns how many levels are listed at a path.
func (k kind) limit(path string) int {
	for at := path; at != ""; {
		if n, ok := k.depth[at]; ok {
			return n + strings.Count(at, ".")
		}
		i := strings.LastIndexByte(at, '.')
		if i < 0 {
			break
		}
		at = at[:i]
	}
	return 1
}

// list writes the fields under a path, each by its path from spec or status.
func (k kind) list(b *strings.Builder, path, prefix string, s *apiextensionsv1.JSONSchemaProps) error {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		at := path + "." + name
		if strings.Count(at, ".") > k.limit(at) {
			continue
		}
		if strings.TrimSpace(p.Description) == "" {
			return fmt.Errorf("%s has no description", at)
		}
		fmt.Fprintf(b, "- `%s%s` (%s%s): %s.\n", prefix, name, typeOf(&p), requirement(s, name, &p), sentence(name, p.Description))
		for _, item := range items(p.Description) {
			fmt.Fprintf(b, "  - %s\n", item)
		}
		inner, suffix := &p, "."
		switch {
		case p.Items != nil && p.Items.Schema != nil:
			inner, suffix = p.Items.Schema, "[]."
		case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
			inner, suffix = p.AdditionalProperties.Schema, ".KEY."
		}
		if err := k.list(b, at, prefix+name+suffix, inner); err != nil {
			return err
		}
	}
	return nil
}

// items are the entries of the list in a description, such as the meaning of
// each value of an enum.
func items(description string) []string {
	var out []string
	open := false
	for line := range strings.Lines(description) {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "- "):
			out, open = append(out, strings.TrimPrefix(text, "- ")), true
		case open && strings.HasPrefix(line, "  "):
			out[len(out)-1] += " " + text
		default:
			open = false
		}
	}
	return out
}

func typeOf(p *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case len(p.Enum) > 0:
		var words []string
		for _, e := range p.Enum {
			words = append(words, strings.Trim(string(e.Raw), `"`))
		}
		return strings.Join(words, ", ")
	case p.XIntOrString:
		return "quantity"
	case p.Items != nil && p.Items.Schema != nil:
		return "list of " + typeOf(p.Items.Schema)
	case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(p.AdditionalProperties.Schema)
	case p.Format == "date-time":
		return "time"
	}
	return p.Type
}

// requirement is shown next to the type: required, or the default.
func requirement(parent *apiextensionsv1.JSONSchemaProps, name string, p *apiextensionsv1.JSONSchemaProps) string {
	if p.Default != nil && string(p.Default.Raw) != "{}" {
		return ", default " + strings.Trim(string(p.Default.Raw), `"`)
	}
	text := strings.Join(strings.Fields(p.Description), " ")
	if _, after, found := strings.Cut(text, "Default: "); found {
		first, _ := cutSentence(after)
		return ", default " + first
	}
	if slices.Contains(parent.Required, name) {
		return ", required"
	}
	return ""
}

// helmValues lists values.yaml: each value with its default, unless that is empty, and the
// comment before it. Values without a comment share a line.
func helmValues(root string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, "charts", "metalfleet", "values.yaml"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n## Helm values\n\n")
	open := false // a line of values without a comment
	begins, ends := map[bool]string{false: "- ", true: ", "}, map[bool]string{true: "\n"}
	var keys []string    // of the enclosing maps
	var comment []string // before the next key
	for line := range strings.Lines(string(raw)) {
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		name, value, isKey := strings.Cut(text, ":")
		switch {
		case text == "":
			comment = nil
			continue
		case strings.HasPrefix(text, "#"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(text, "#")))
			continue
		case !isKey || indent%2 != 0 || indent/2 > len(keys):
			return "", fmt.Errorf("values.yaml: cannot read %q", text)
		}
		keys = append(keys[:indent/2], name)
		item, value := "`"+strings.Join(keys, ".")+"`", strings.TrimSpace(value)
		if !slices.Contains([]string{"", `""`, "{}", "[]"}, value) {
			item += " (" + value + ")"
		}
		switch {
		case len(comment) > 0:
			b.WriteString(ends[open] + "- " + item + ": " + about(name, comment) + ".\n")
			open = false
		case value != "":
			b.WriteString(begins[open] + item)
			open = true
		}
		comment = nil
	}
	b.WriteString(ends[open])
	return b.String(), checkValues(raw, b.String())
}

// about returns the first sentence of a comment.
func about(name string, comment []string) string { return sentence(name, strings.Join(comment, " ")) }

// checkValues compares the list with the values that a YAML parser reads.
func checkValues(raw []byte, list string) error {
	var all map[string]any
	if err := yaml.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	var lacks []string
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for name, v := range m {
			inner, isMap := v.(map[string]any)
			if isMap && len(inner) > 0 && !strings.Contains(list, "`"+prefix+name+"` ({") {
				walk(prefix+name+".", inner)
				continue
			}
			if !strings.Contains(list, "`"+prefix+name+"`") {
				text, _ := json.Marshal(v)
				lacks = append(lacks, prefix+name+" = "+string(text))
			}
		}
	}
	walk("", all)
	if len(lacks) > 0 {
		return fmt.Errorf("the list of values lacks %s", strings.Join(lacks, ", "))
	}
	return nil
}
