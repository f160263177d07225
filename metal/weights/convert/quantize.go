package convert

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Target is the format to which a matrix is converted; the zero value keeps its
// format. Affine formats have bits and a group size, those of small floats a
// mode that determines both.
type Target struct {
	mode        quant.Mode
	bits, group int
}

// Affine is an affine format whose scales get the type of the matrix.
func Affine(bits, group int) Target { return Target{quant.Affine, bits, group} }

// keep keeps the format of a matrix.
func keep() Target { return Target{} }

// defaultGroup is MLX's.
const defaultGroup = 64

// targetForms are shown where none was meant.
const targetForms = "BITS or BITS:GROUP, mxfp4, mxfp8, nvfp4, or keep"

// ParseTarget reads "4", "8:32", "mxfp4", "mxfp8", "nvfp4" or "keep".
func ParseTarget(text string) (Target, error) {
	if text == "keep" {
		return keep(), nil
	}
	if f, ok := quant.BlockFloatNamed(text); ok {
		return Target{f.Mode, f.Bits, f.Group}, nil
	}
	bits, group, grouped := strings.Cut(text, ":")
	t := Affine(0, defaultGroup)
	var err error
	if t.bits, err = strconv.Atoi(bits); err == nil && grouped {
		t.group, err = strconv.Atoi(group)
	}
	if err != nil {
		return Target{}, fmt.Errorf("%q: %w; want %s", text, ErrOptions, targetForms)
	}
	return t, t.check()
}

func (t Target) keeps() bool { return t == Target{} }

// format is the target with scales of a type.
func (t Target) format(kind quant.Type) quant.Format {
	if t.mode == quant.Affine {
		return quant.AffineOf(t.bits, t.group, kind)
	}
	return quant.Format{Mode: t.mode, Bits: t.bits, Group: t.group, Type: quant.BFloat16}
}

func (t Target) check() error {
	if t.keeps() || t.format(quant.Float32).Check() == nil {
		return nil
	}
	return fmt.Errorf("%d bits in groups of %d: %w; supported are %v bits in groups of %v", t.bits, t.group, ErrOptions, quant.Bits(), quant.Groups())
}

// Rule is the format of the layers whose path matches a pattern, in which *
// stands for any characters ("model.layers.*.mlp.down_proj", "*embed_tokens").
type Rule struct {
	Layers string
	As     Target
}

// ParseRule reads "PATTERN=TARGET".
func ParseRule(text string) (Rule, error) {
	layers, target, ok := strings.Cut(text, "=")
	layers = strings.TrimSpace(layers)
	if _, err := path.Match(layers, ""); !ok || err != nil || layers == "" || strings.Contains(layers, "/") {
		return Rule{}, fmt.Errorf("%q: %w; want PATTERN=TARGET, such as *embed_tokens=8:64", text, ErrOptions)
	}
	t, err := ParseTarget(strings.TrimSpace(target))
	if err != nil {
		return Rule{}, fmt.Errorf("layers %s: %w", layers, err)
	}
	return Rule{layers, t}, nil
}

// ReadRules reads a rule from each line; what follows a # is for people.
func ReadRules(from io.Reader) ([]Rule, error) {
	var rules []Rule
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		r, err := ParseRule(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		rules = append(rules, r)
	}
	return rules, lines.Err()
}

// Plan selects how matrices are quantized. The zero value keeps all formats.
type Plan struct {
	// Rest is the format of the matrices that no rule matches, if their rows
	// are whole groups; routers become 8 bits in groups of 64, as in mlx-lm.
	Rest Target
	// Rules, of which the first that matches counts.
	Rules []Rule
	// Again allows quantizing matrices that are already quantized, from their
	// present values; otherwise that is an error.
	Again bool
}

func (p Plan) quantizes() bool {
	return !p.Rest.keeps() || slices.ContainsFunc(p.Rules, func(r Rule) bool { return !r.As.keeps() })
}

func (p Plan) check() error {
	for _, r := range p.Rules {
		if err := r.As.check(); err != nil {
			return fmt.Errorf("layers %s: %w", r.Layers, err)
		}
	}
	return p.Rest.check()
}

// rule finds the first rule that names a layer; -1 for none.
func (p Plan) rule(layer string) int {
	return slices.IndexFunc(p.Rules, func(r Rule) bool {
		ok, _ := path.Match(r.Layers, layer) // ParseRule looked at the pattern
		return ok
	})
}

// of returns the target format of a matrix, and the index of the rule that
// decided it.
func (p Plan) of(e weights.Entry) (Target, int, error) {
	layer := strings.TrimSuffix(e.Path, ".weight")
	if len(e.Shape) < 2 || strings.HasSuffix(e.Path, ".bias") || strings.HasSuffix(e.Path, kernelPath) { // experts have biases in rows
		return keep(), -1, nil
	}
	at := p.rule(layer)
	t := p.Rest
	switch {
	case at >= 0:
		t = p.Rules[at].As
		if !t.keeps() && e.Columns()%t.group != 0 {
			return t, at, fmt.Errorf("%s has rows of %d, which are not a multiple of the group size %d: %w; keep it, or use another group size", layer, e.Columns(), t.group, ErrOptions)
		}
	case !t.keeps() && len(e.Shape) == 2 && isRouter(e.Path) && e.Columns()%64 == 0:
		t = Affine(8, 64)
	case !t.keeps() && e.Columns()%t.group != 0:
		t = keep()
	}
	if !t.keeps() && e.Format.Quantized() && !p.Again {
		return t, at, fmt.Errorf("%s is already quantised as %s: %w; pass --dequantize to quantise its values again, or add a rule that keeps it", layer, e.Stored(), ErrOptions)
	}
	return t, at, nil
}

// unused names a rule that no matrix matched, which is a mistake in its pattern.
func (p Plan) unused(used map[int]bool) error {
	for i, r := range p.Rules {
		if !used[i] {
			return fmt.Errorf("%q matches no remaining layer: %w; patterns match whole paths and the first match applies (engine inspect --tensors lists paths)", r.Layers, ErrOptions)
		}
	}
	return nil
}
