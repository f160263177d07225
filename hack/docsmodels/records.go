package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// compared is a family and one reference.
type compared struct {
	family, reference, tolerance, where string
	files                               int
	// stored are the formats by source: gguf, hf, mlx.
	stored map[string]map[string]bool
}

// records are those of all packages, in the order of their files.
type records []compared

// readRecords finds what test/oracle/goldens wrote: any testdata/*.json of metal that names
// its generator and lists cases called "family/source format …" or "family …".
func readRecords(root string) (records, error) {
	paths, err := filepath.Glob(filepath.Join(root, "metal", "*", "testdata", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("find records: %w", err)
	}
	out, err := readFamilies(root)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a record: %w", err)
		}
		var record struct {
			MadeBy string
			Cases  []struct{ Name, SHA256 string }
		}
		if json.Unmarshal(data, &record) != nil || record.MadeBy == "" || len(record.Cases) == 0 || record.Cases[0].SHA256 == "" {
			continue // a record of something other than models
		}
		pkg := filepath.Dir(filepath.Dir(path))
		tolerance, err := toleranceOf(pkg, path)
		if err != nil {
			return nil, err
		}
		where, err := filepath.Rel(root, path)
		if err != nil {
			return nil, fmt.Errorf("find records: %w", err)
		}
		byFamily := map[string]*compared{}
		for _, c := range record.Cases {
			family, source, format := parseCase(c.Name)
			if byFamily[family] == nil {
				byFamily[family] = &compared{family: family, reference: record.MadeBy, tolerance: tolerance.of(family), where: filepath.ToSlash(where)}
			}
			byFamily[family].add(source, format)
		}
		for _, family := range slices.Sorted(maps.Keys(byFamily)) {
			out = append(out, *byFamily[family])
		}
	}
	return out, nil
}

// add counts one model, and what its matrices are stored as, if its name says so.
func (c *compared) add(source, format string) {
	c.files++
	if source == "" {
		return
	}
	if c.stored == nil {
		c.stored = map[string]map[string]bool{}
	}
	if c.stored[source] == nil {
		c.stored[source] = map[string]bool{}
	}
	c.stored[source][format] = true
}

// readFamilies finds the records of single families, each of which has the name
// of its file and may have several references.
func readFamilies(root string) (records, error) {
	paths, err := filepath.Glob(filepath.Join(root, "metal", "arch", "testdata", "families", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("find families: %w", err)
	}
	var out records
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a family: %w", err)
		}
		var record struct {
			MadeBy map[string]string
			Cases  []struct {
				Name    string
				Records map[string]any
			}
		}
		if err := json.Unmarshal(data, &record); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		tolerance, err := toleranceOf(filepath.Join(root, "metal", "arch"), path)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		for _, reference := range slices.Sorted(maps.Keys(record.MadeBy)) {
			c := compared{family: name, reference: record.MadeBy[reference], tolerance: tolerance.of(name), where: "metal/arch/testdata/families/" + name + ".json"}
			for _, one := range record.Cases {
				if one.Records[reference] != nil {
					_, source, format := parseCase(one.Name)
					c.add(source, format)
				}
			}
			if c.files > 0 {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

var (
	affineName = regexp.MustCompile(`^(\d+) bits by \d+`)
	recurring  = regexp.MustCompile(`\brecurring = (\d[0-9.]*)\b`)
	fromFloat  = regexp.MustCompile(`\bfromFloat32 = (\d[0-9.]*)\b`)
	stated     = regexp.MustCompile(`\b(?:ours|tolerance) = (\d[0-9.]*(?:e-?\d+)?)\b`)
)

// parseCase splits the name of a case: "qwen3/mlx 4 bits by 64 bfloat16" is the
// family, the kind of source, and what matrices are stored as, where its name
// says it.
func parseCase(name string) (family, source, format string) {
	family, rest, ok := strings.Cut(name, "/")
	if !ok {
		family, _, _ = strings.Cut(name, " ")
		return alias(family), "", ""
	}
	source, rest, _ = strings.Cut(rest, " ")
	format, _, _ = strings.Cut(rest, " ")
	if m := affineName.FindStringSubmatch(rest); m != nil {
		format = m[1] + " bits"
	}
	switch format {
	case "mixed":
		format = "mixed by path"
	case "linear", "rope", "router", "sharded": // about something else
		source, format = "", ""
	}
	return alias(family), source, format
}

// alias is the family that runs models of another name.
func alias(family string) string {
	if family == "mistral" || family == "ministral3" {
		return "llama"
	}
	return family
}

// tolerance is what tests state, smallest first, and its larger value for families with
// recurrent layers; empty means that they have none of their own. If distance is set, those
// are compared with the reference's own distance from float32 instead.
type tolerance struct{ stated, recurring, distance string }

// of is the tolerance of one family.
func (t tolerance) of(family string) string {
	switch hybrid := family == "qwen3_5" || family == "qwen3_next"; {
	case hybrid && t.distance != "":
		return t.distance + " x the reference's own distance from float32"
	case hybrid && t.recurring != "":
		return t.recurring + " x " + t.stated
	}
	return t.stated
}

// toleranceOf returns what the tests of a package state as a constant; a test that is named
// after a record applies to that record.
func toleranceOf(pkg, record string) (tolerance, error) {
	var out tolerance
	paths, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		return out, fmt.Errorf("find tests: %w", err)
	}
	found := map[string]bool{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), "_test.go")
		own := filepath.Join(pkg, "testdata", name+".json")
		if _, err := os.Stat(own); err == nil && own != record {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return out, fmt.Errorf("read a test: %w", err)
		}
		for _, m := range stated.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
		if m := recurring.FindSubmatch(text); m != nil {
			out.recurring = string(m[1])
		}
		if m := fromFloat.FindSubmatch(text); m != nil {
			out.distance = string(m[1])
		}
	}
	out.stated = cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), " or "), "as the tests say")
	return out, nil
}

// of are the references of a family.
func (r records) of(family string) []compared {
	return slices.DeleteFunc(slices.Clone(r), func(c compared) bool { return c.family != family })
}

// formats of a family by source, over all references.
func (r records) formats(family string) map[string][]string {
	all := map[string]map[string]bool{}
	for _, c := range r.of(family) {
		for source, formats := range c.stored {
			if all[source] == nil {
				all[source] = map[string]bool{}
			}
			maps.Copy(all[source], formats)
		}
	}
	out := map[string][]string{}
	for source, formats := range all {
		out[source] = slices.Sorted(maps.Keys(formats))
	}
	return out
}
