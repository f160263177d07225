package arch_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// check is one way in which a model is held against a record.
type check string

// What every family is compared in, on every back end.
const (
	atOnce       check = "a prompt at once"
	inChunks     check = "a prompt in chunks"
	byToken      check = "an answer token by token"
	inCompany    check = "ragged rows of several requests"
	afterRestore check = "what was saved, and went on"
	hiddenStates check = "hidden states"
	// aModel counts models.
	aModel check = "a model"
)

func checks() []check {
	return []check{aModel, atOnce, inChunks, byToken, inCompany, afterRestore, hiddenStates}
}

// matrix counts what was compared, by family.
type matrix map[string]map[check]int

func (m matrix) of(family string) map[check]int {
	if m[family] == nil {
		m[family] = map[check]int{}
	}
	return m[family]
}

func (m matrix) models() (n int) {
	for _, made := range m {
		n += made[aModel]
	}
	return n
}

// lacks lists the families that were not compared in some way.
func (m matrix) lacks(families []string) (out []string) {
	for _, family := range families {
		for _, c := range checks() {
			if m[family][c] == 0 {
				out = append(out, fmt.Sprintf("of %s no golden is compared in %s", family, c))
			}
		}
	}
	return out
}

// decoders are the families that continue texts and that test/tinymodel writes: no
// encoders, of which metal/embed compares vectors and scores, and none that is
// described (TestEveryFamilyIsDescribed).
func decoders(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "embed", "testdata", "readers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{}
	for _, c := range r.Cases {
		family, _, _ := strings.Cut(c.Name, " ")
		read[family] = true
	}
	written := map[string]bool{}
	for _, c := range tinymodel.Cases() {
		name, _, _ := strings.Cut(c.Name, "/")
		written[name] = true
	}
	var out []string
	for _, family := range arch.Supported() {
		switch {
		case arch.Encodes(family) && !read[family]:
			t.Errorf("no vector or score of a %s is recorded", family)
		case !arch.Encodes(family) && written[family]:
			out = append(out, family)
		}
	}
	return out
}

func TestAFamilyThatIsNotComparedIsSeen(t *testing.T) {
	m := matrix{}
	for _, c := range checks() {
		m.of("a")[c], m.of("b")[c] = 2, 1
	}
	delete(m["b"], byToken)
	want := []string{"of b no golden is compared in an answer token by token"}
	if got := m.lacks([]string{"a", "b"}); !slices.Equal(got, want) || m.models() != 3 {
		t.Errorf("%d models lack %q, want %q", m.models(), got, want)
	}
	if got := m.lacks([]string{"a", "c"}); len(got) != len(checks()) {
		t.Errorf("of a family without a model %q is missed", got)
	}
}

// sources are where a family's weights come from.
func sources(name string) []string {
	out := []string{"hf", "mlx"}
	if slices.Contains(family.GGUFArchitectures(), name) {
		out = append(out, "gguf")
	}
	return out
}

// TestEveryFamilyAndFormatHasAGolden wants a case of every decoder from each kind
// of file that it is read from, one of every type of GGUF, and one of every format
// of matrices. That each case is recorded, and compared on every back end, others
// say.
func TestEveryFamilyAndFormatHasAGolden(t *testing.T) {
	from, formats, types := map[string]bool{}, map[quant.Format]bool{}, map[weights.Type]bool{}
	for _, c := range slices.Concat(tinymodel.Cases(), tinymodel.BlockCases()) {
		family, rest, _ := strings.Cut(c.Name, "/")
		source, _, _ := strings.Cut(rest, " ")
		from[family+" "+source] = true
		if c.Layout == nil {
			types[c.Config.Type], types[c.Config.Finer] = true, true
			types[weights.MXFP4] = types[weights.MXFP4] || c.Config.Family == tinymodel.GPTOSS
			continue
		}
		formats[of(c.Layout.Matrices)] = true
		for _, f := range c.Layout.Overrides {
			formats[of(f)] = true
		}
	}
	for _, family := range decoders(t) {
		for _, source := range sources(family) {
			if !from[family+" "+source] {
				t.Errorf("%s has no golden of a file of kind %s", family, source)
			}
		}
	}
	for _, kind := range weights.Types() {
		if !types[kind] {
			t.Errorf("no golden has matrices in %v", kind)
		}
	}
	for _, f := range everyFormat() {
		if !formats[f] {
			t.Errorf("no golden has matrices in %v", f)
		}
	}
	if t.Failed() {
		t.Logf("there are %v", slices.Sorted(maps.Keys(from)))
	}
}

// of is a format without the type of its scales, which every affine one may have.
func of(f quant.Format) quant.Format {
	if f.Mode == quant.Affine && f.Quantized() {
		f.Type = quant.Float32
	}
	return f
}

func everyFormat() []quant.Format {
	out := append(quant.BlockFloats(), quant.DenseOf(quant.Float32), quant.DenseOf(quant.Float16), quant.DenseOf(quant.BFloat16))
	for _, bits := range quant.Bits() {
		for _, group := range quant.Groups() {
			out = append(out, quant.AffineOf(bits, group, quant.Float32))
		}
	}
	return out
}
