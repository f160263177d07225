package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// tables are the generated part of the page, from the tree at root.
func tables(root string) (string, error) {
	records, err := readRecords(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n## Families\n\n|family|models|GGUF|Hugging Face|MLX|\n|---|---|---|---|---|\n")
	for _, known := range family.All() {
		f := records.formats(known.Name)
		fmt.Fprintf(&b, "|`%s`|%s|%s|%s|%s|\n", known.Name, known.Models, cell(f["gguf"]), cell(f["hf"]), cell(f["mlx"]))
	}
	b.WriteString("\nFormats are those that were compared with a reference; every family runs in all, except as said above.\n\n" +
		"## References\n\nTolerances are relative to the largest number of the output; a second, larger one is for GGUF types that are requantized.\n\n" +
		"|families|compared with (models), tolerance|\n|---|---|\n")
	var compared []string
	families := map[string][]string{} // by what they were compared with
	for _, known := range family.All() {
		with := references(records.of(known.Name))
		if families[with] == nil {
			compared = append(compared, with)
		}
		families[with] = append(families[with], "`"+known.Name+"`")
	}
	for _, with := range compared {
		fmt.Fprintf(&b, "|%s|%s|\n", strings.Join(families[with], ", "), with)
	}
	b.WriteString("\n## GGUF types\n\n" + formats())
	return b.String(), nil
}

// references lists those of one family, with equal ones merged.
func references(all []compared) string {
	type kind struct{ made, tolerance string }
	var order []kind
	files := map[kind]int{}
	for _, r := range all {
		made, rest, _ := strings.Cut(r.reference, ",")
		k := kind{made, r.tolerance}
		if strings.HasSuffix(rest, "on a processor") {
			k.tolerance += " in half precision"
		}
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
		files[k] += r.files
	}
	var makers []string
	of := map[string][]string{}
	for _, k := range order {
		if of[k.made] == nil {
			makers = append(makers, k.made)
		}
		of[k.made] = append(of[k.made], fmt.Sprintf("(%d) %s", files[k], k.tolerance))
	}
	var out []string
	for _, m := range makers {
		out = append(out, m+" "+strings.Join(of[m], ", "))
	}
	return strings.Join(out, "; ")
}

// numbers of bits stand together: 2, 4 bits.
var numbers = regexp.MustCompile(` bits(, \d)`)

func cell(values []string) string {
	if len(values) == 0 {
		return "–"
	}
	return numbers.ReplaceAllString(strings.Join(values, ", "), "$1")
}

// formats lists what weights are stored as.
func formats() string {
	var b strings.Builder
	b.WriteString("|type|bits per weight in the file|in memory|bits|values|\n|---|---|---|---|---|\n")
	const whole = 256 // elements of whole blocks in every type
	for _, t := range weights.Types() {
		f, err := t.Format()
		if err != nil {
			continue // Types lists what has a format; a test requires each on the page
		}
		bytes, _ := t.RowBytes(whole)
		sizes, _ := f.Sizes(whole)
		values := "exact"
		if !t.Exact() {
			values = "requantized"
		}
		fmt.Fprintf(&b, "|%v|%s|%v|%s|%s|\n", t, bits(int(bytes)), f, bits(sizes.Sum()), values)
	}
	fmt.Fprintf(&b, "\nFolders: float32, float16, bfloat16; affine quantization with %s bits in groups of %s", list(quant.Bits()), list(quant.Groups()))
	for _, f := range quant.BlockFloats() {
		fmt.Fprintf(&b, "; %v (%d bits, groups of %d)", f, f.Bits, f.Group)
	}
	b.WriteString(".\n")
	return b.String()
}

// bits per weight, of 256 weights.
func bits(bytes int) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", float64(bytes)*8/256), "0"), ".")
}

func list(values []int) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ", ")
}
