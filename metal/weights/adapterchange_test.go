package weights

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

// manyExperts is a model of layers that each stack this number of experts.
func manyExperts(layers, experts int) *File {
	f := &File{Dim: family.Dimensions{Architecture: "qwen3_moe", Layers: layers}, entries: map[string]Entry{}}
	for i := range layers {
		f.entries[fmt.Sprintf("model.layers.%d.mlp.switch_mlp.up_proj.weight", i)] = Entry{Shape: []int64{int64(experts), 8, 4}}
	}
	return f
}

// expertFactors are both factors of experts of a layer, by their names in the module list.
func expertFactors(rank int64, names ...string) map[string]*[2]shardTensor {
	kind := element{"F32", 4}
	out := map[string]*[2]shardTensor{}
	for _, n := range names {
		out[n] = &[2]shardTensor{{name: n, kind: kind, shape: []int64{rank, 4}}, {name: n, kind: kind, shape: []int64{8, rank}}}
	}
	return out
}

// readChanges reads the changes of modules of an adapter in the layout of peft.
func readChanges(ctx context.Context, of *File, modules map[string]*[2]shardTensor) ([]Change, error) {
	memory := account{budget: NewBudget(HeaderMemory)}
	defer memory.close()
	return newChangeReader(&AdapterConfig{peft: true, rank: 2, alpha: 4}, of, &memory).read(ctx, modules)
}

func TestChangesOfSingleExperts(t *testing.T) {
	const first, second = "model.layers.0.mlp.experts.1.up_proj", "model.layers.0.mlp.experts.3.up_proj"
	changes, err := readChanges(t.Context(), manyExperts(1, 4), expertFactors(2, first, second))
	if err != nil || len(changes) != 1 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	var named []string
	for _, f := range changes[0].a.stack {
		named = append(named, f.tensor.name)
	}
	if c := changes[0]; !slices.Equal(named, []string{"", first, "", second}) || c.Experts != 4 || c.Scale != 2 || c.Layer != "model.layers.0.mlp.switch_mlp.up_proj" {
		t.Errorf("%+v", c)
	}
	for name, c := range map[string]struct {
		modules map[string]*[2]shardTensor
		err     error
		names   string
	}{
		"an expert past the last": {expertFactors(2, "model.layers.0.mlp.experts.4.up_proj"), ErrInvalid, "has 4 experts"},
		"a negative expert":       {expertFactors(2, "model.layers.0.mlp.experts.-1.up_proj"), ErrInvalid, "has 4 experts"},
		"one under two names":     {expertFactors(2, first, strings.Replace(first, ".1.", ".01.", 1)), ErrInvalid, "two names"},
		"a layer that is not":     {expertFactors(2, "model.layers.1.mlp.experts.1.up_proj"), ErrUnsupported, "layers.1.mlp"},
		"another rank":            {expertFactors(3, first), ErrInvalid, "has rank 3"},
	} {
		if _, err := readChanges(t.Context(), manyExperts(1, 4), c.modules); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAttackOneExpertOfManyLayers: factors of one expert take memory for all experts of the
// layer, which is counted before it is taken.
func TestAttackOneExpertOfManyLayers(t *testing.T) {
	var names []string
	for i := range 128 {
		names = append(names, fmt.Sprintf("model.layers.%d.mlp.experts.0.up_proj", i))
	}
	for experts, refused := range map[int]bool{256: false, 1 << 13: true, 1 << 40: true} {
		_, err := readChanges(t.Context(), manyExperts(len(names), experts), expertFactors(2, names...))
		if errors.Is(err, ErrInvalid) != refused || refused && !strings.Contains(err.Error(), "memory") {
			t.Errorf("%d experts: %v", experts, err)
		}
	}
	if got := reflect.TypeFor[factor]().Size(); got > factorMemory {
		t.Errorf("a factor takes %d bytes, counted %d", got, factorMemory)
	}
	if got := reflect.TypeFor[Change]().Size(); got > changeMemory {
		t.Errorf("a change takes %d bytes, counted %d", got, changeMemory)
	}
}

// TestAModuleIsFoundAmongAnyNumberOfLayers: by its number, not by looking at all layers.
func TestAModuleIsFoundAmongAnyNumberOfLayers(t *testing.T) {
	d := family.Dimensions{Architecture: "glm4", Layers: 1 << 40, FeedForward: 4}
	r := newChangeReader(&AdapterConfig{}, &File{Dim: d}, nil)
	for layer, want := range map[string][]string{
		"model.layers.7.mlp.gate_up_proj":             {"model.layers.7.mlp.gate_proj", "model.layers.7.mlp.up_proj"},
		"model.layers.1099511627775.mlp.gate_up_proj": {"model.layers.1099511627775.mlp.gate_proj", "model.layers.1099511627775.mlp.up_proj"},
		"model.layers.1099511627776.mlp.gate_up_proj": {"model.layers.1099511627776.mlp.gate_up_proj"},
		"model.layers.07.mlp.gate_up_proj":            {"model.layers.07.mlp.gate_up_proj"},
		"model.layers.7.mlp.down_proj":                {"model.layers.7.mlp.down_proj"},
		"model.model.layers.7.mlp.gate_up_proj":       {"model.model.layers.7.mlp.gate_up_proj"},
		"lm_head":                                     {"lm_head"},
	} {
		var got []string
		for _, c := range r.partsOf(layer, Change{Out: 8}) {
			got = append(got, c.Layer)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", layer, got, want)
		}
	}
}

// ending is a context that has ended when it is asked for the third time.
type ending struct {
	context.Context
	asked int
}

func (e *ending) Err() error {
	if e.asked++; e.asked > 2 {
		return context.Canceled
	}
	return nil
}

// TestOpeningAnAdapterEndsWithItsContext: between modules, and between layers of experts.
func TestOpeningAnAdapterEndsWithItsContext(t *testing.T) {
	var plain, experts []string
	f := manyExperts(4, 4)
	for i := range 4 {
		plain = append(plain, fmt.Sprintf("model.layers.%d.mlp.down_proj", i))
		f.entries[plain[i]+".weight"] = Entry{Shape: []int64{8, 4}}
		experts = append(experts, fmt.Sprintf("model.layers.%d.mlp.experts.0.up_proj", i))
	}
	for what, names := range map[string][]string{"modules": plain, "layers": experts[:2]} {
		end := &ending{Context: t.Context()}
		if _, err := readChanges(end, f, expertFactors(2, names...)); !errors.Is(err, context.Canceled) {
			t.Errorf("between %s: %v", what, err)
		}
	}
}
