// Package family is the table of model families: what a configuration means,
// and what every layer of the network is made of.
//
// It owns one file per family: how the numbers of config.json (or of a GGUF
// header) are read, and which blocks follow from them, and the names and
// shapes of all tensors, which are computed from the blocks. It refuses what no
// file can mean: unknown values are typed errors that name what is supported,
// and no key that would change a result is ignored. It holds no tensor and
// computes nothing: package weights finds the tensors, package nn builds layers
// from the blocks.
//
// Start reading at Family, then Block, then a family (llama.go).
package family

import (
	"cmp"
	"slices"
)

// Family is one architecture.
type Family struct {
	// Name is what Dimensions.Architecture, documents and goldens call it.
	Name string
	// Models are those that it runs, for the documents.
	Models string
	// Types are the values of model_type in config.json that mean it.
	Types []string
	// Context is how many positions the family has where config.json does not
	// contain it; Contexts are those of types that differ.
	Context  int
	Contexts map[string]int
	// Eps is the key of the norms' epsilon; empty means rms_norm_eps.
	Eps string
	// Widths are more keys of the width of a feed-forward.
	Widths []string
	// Activations are the names that the activation may have; none means SiLU.
	Activations []string
	// Theta is the base of the rotation where config.json does not contain it;
	// 0 means that it must.
	Theta float64
	// Partial is the part of a head that is rotated where config.json does not
	// contain it; 0 means that all of it always is.
	Partial float64
	// Rotary is the key of how many elements are rotated; empty means part of a head.
	Rotary string
	// Interleaved is set where pairs that are rotated stand next to one another.
	Interleaved bool
	// Dynamic is set where dynamic scaling of the rotation changes nothing within
	// the context.
	Dynamic bool
	// Read reads what the family has besides the numbers of every decoder.
	Read func(c *Config, d *Dimensions)
	// Block describes layer i. It is nil for encoders.
	Block func(d Dimensions, i int) Block
	// Layout is how folders hold its tensors.
	Layout Layout
	// GGUF is how GGUF files hold the family; nil where they are not read.
	GGUF *GGUF
}

// Layout is how folders hold the tensors of a family, where that differs from
// the names and shapes of its blocks.
type Layout struct {
	// Rename lists pairs of parts of names: what files contain, and the name
	// that blocks use. All pairs are tried on every name, in one pass.
	Rename []string
	// Fused are matrices that hold several, whose rows follow one another.
	Fused []Fused
	// NormsLessOne is set for families whose norms are stored less one, and
	// NormsLessOneInHF for those of which mlx-lm stores them as they are meant.
	NormsLessOne, NormsLessOneInHF bool
	// Blocks is set where experts may be stored as blocks of mxfp4.
	Blocks bool
	// Wide is set where residuals exceed what float16 can hold.
	Wide bool
	// Ignored are prefixes of tensors that are not read: vision encoders and
	// draft heads.
	Ignored []string
	// Drafts is set where layers past the last are draft heads, which are not read.
	Drafts bool
	// Unwrap is set where the decoder may lie inside a larger model, under
	// any name in config.json.
	Unwrap bool
	// Kernels are of convolutions, by the ends of their paths: Hugging Face stores
	// them as [channels, 1, taps], mlx-lm as [channels, taps, 1].
	Kernels []string
}

// Fused is a matrix of a layer, by its path in the block, and the matrices that
// it holds, in order, with their numbers of rows.
type Fused struct {
	Path  string
	Parts func(d Dimensions, i int) []Part
}

// Part is one matrix of a Fused.
type Part struct {
	Path string
	Rows int
}

// GGUF is how GGUF files hold a family.
type GGUF struct {
	// Name is that of general.architecture.
	Name string
	// Read reads what the family has besides the keys of every decoder.
	Read func(r *keyReader, d *Dimensions)
	// Names are those of tensors that differ from the common ones, by path.
	Names map[string]string
	// Interleaved is set where files store the rows of queries and keys
	// interleaved for their rotation.
	Interleaved bool
}

// All lists the families, in the order of their names.
func All() []Family {
	all := []Family{
		apertus(), bailingMoE(), bert(), cohere(), cohere2(), deepseekV2(), deepseekV3(), dots1(), ernie45(), ernie45MoE(), exaone4(), gemma(), gemma2(), gemma3(), glm(), glm4(), glm4MoE(), glm4MoELite(), gptoss(),
		granite(), graniteMoE(), graniteHybrid(), hunyuanDense(), internlm3(), llama(), minimaxM2(), mistral4(), mixtral(), olmo2(), olmo3(), olmoe(), phi3(), qwen2(), qwen2MoE(), qwen3(), qwen35(), qwen3MoE(), qwen3Next(), seedOSS(), smollm3(), stableLM(), starcoder2(), xlmRoberta(),
	}
	slices.SortFunc(all, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Of finds a family by its name; ok is false where there is none.
func Of(name string) (f Family, ok bool) {
	for _, f := range All() {
		if f.Name == name {
			return f, true
		}
	}
	return Family{}, false
}

// named finds a family that must be there.
func (d Dimensions) family() Family {
	f, _ := Of(d.Architecture)
	return f
}

// Names lists the families of decoders or of encoders.
func Names(encoders bool) []string {
	var out []string
	for _, f := range All() {
		if (f.Block == nil) == encoders {
			out = append(out, f.Name)
		}
	}
	return out
}

// SupportedModelTypes lists what config.json may call its model_type.
func SupportedModelTypes() []string {
	var out []string
	for _, f := range All() {
		out = append(out, f.Types...)
	}
	for kind := range wrappers() {
		out = append(out, kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// GGUFArchitectures lists the families that are read from GGUF files too.
func GGUFArchitectures() []string {
	var out []string
	for _, f := range All() {
		if f.GGUF != nil {
			out = append(out, f.Name)
		}
	}
	return out
}

// ofType finds the family of a model_type.
func ofType(kind string) (Family, bool) {
	for _, f := range All() {
		if slices.Contains(f.Types, kind) {
			return f, true
		}
	}
	return Family{}, false
}
