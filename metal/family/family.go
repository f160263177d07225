// Package family is the table of supported model families: how to read a
// model's configuration, and which blocks its layers consist of.
//
// It has one file per family. A family reads the values of config.json or of a
// GGUF header into Dimensions, and describes each layer as a Block. The names
// and shapes of all tensors are computed from the blocks. Unknown values are
// refused with typed errors that name what is supported, and so is any key that
// would change a result and that the family does not read. The package holds no
// tensors: package weights finds them in files, package nn builds layers from
// the blocks.
//
// Start reading at Family, then Block, then a family (llama.go).
package family

import (
	"cmp"
	"slices"
)

// Family is one model architecture.
type Family struct {
	// Name identifies the family in Dimensions.Architecture, in documents and
	// in goldens.
	Name string
	// Models are example models, for the documents.
	Models string
	// Types are the values of model_type in config.json that select the family.
	Types []string
	// Context is the default context length for a config.json without one;
	// Contexts overrides it by model_type.
	Context  int
	Contexts map[string]int
	// Eps is the key of the epsilon of norms; empty means rms_norm_eps.
	Eps string
	// Widths are additional keys of the feed-forward width.
	Widths []string
	// Activations are the accepted names of the activation; none means SiLU.
	Activations []string
	// Theta is the default base of the rotary embedding; 0 means that
	// config.json must contain it.
	Theta float64
	// Partial is the default fraction of a head that is rotated; 0 means that
	// whole heads are, always.
	Partial float64
	// Rotary is the key of the number of rotated elements; empty means that the
	// fraction is given.
	Rotary string
	// Interleaved means that the two elements of a rotated pair are adjacent.
	Interleaved bool
	// Prepare changes a copy of config.json before anything is read from it.
	Prepare func(text map[string]any)
	// Nested means that rope_parameters of a kind of layer override keys outside.
	Nested bool
	// Read reads the options that only this family has.
	Read func(c *Config, d *Dimensions)
	// Block describes layer i. It is nil for encoders.
	Block func(d Dimensions, i int) Block
	// Draft describes the layer of the draft head; nil means that none is loaded.
	Draft func(d Dimensions) Block
	// Layout describes how model folders store the tensors.
	Layout Layout
	// GGUF describes how GGUF files store the family; nil means that GGUF is
	// not supported.
	GGUF *GGUF
}

// Layout describes how model folders store the tensors of a family, as far as
// that differs from the names and shapes of its blocks.
type Layout struct {
	// Rename lists pairs of name parts: the one in files, and the one in
	// blocks. All pairs are applied to every name, in one pass.
	Rename []string
	// Fused are stored matrices that hold several matrices, one after another
	// by rows.
	Fused []Fused
	// NormsLessOne means that the weights of norms are stored minus one,
	// NormsLessOneInHF that only the original Hugging Face files store them so
	// and files of mlx-lm do not.
	NormsLessOne, NormsLessOneInHF bool
	// Original is a part of names that only original files have, for families
	// without kernels, whose shapes would show it.
	Original string
	// Blocks means that experts may be stored as mxfp4 blocks.
	Blocks bool
	// TurnedExperts means that experts in one tensor have rows and columns exchanged.
	TurnedExperts bool
	// Wide means that residuals exceed the range of float16.
	Wide bool
	// Ignored are prefixes of tensors that are not loaded: vision encoders and
	// draft heads.
	Ignored []string
	// Drafts means that layers past the last are draft heads, which are not
	// loaded.
	Drafts bool
	// Headed means that a stored head is used although config.json has tie_word_embeddings.
	Headed bool
	// KeepsExpansion means that mlx-lm multiplies by a quantised kv_b_proj as it is. In
	// other families with latent attention it cuts it into heads, which it quantises again.
	KeepsExpansion bool
	// Unwrap means that the decoder may be nested in a larger model, under any
	// key of config.json.
	Unwrap bool
	// Kernels are suffixes of the paths of convolution kernels: Hugging Face
	// stores them as [channels, 1, taps], mlx-lm as [channels, taps, 1].
	Kernels []string
}

// Fused is a stored matrix, by its path in the block, and the matrices it
// holds, in order, with their numbers of rows.
type Fused struct {
	Path  string
	Parts func(d Dimensions, i int) []Part
}

// Part is one matrix of a Fused.
type Part struct {
	Path string
	Rows int
}

// GGUF describes how GGUF files store a family.
type GGUF struct {
	// Name is the value of general.architecture.
	Name string
	// Read reads the options that only this family has.
	Read func(r *keyReader, d *Dimensions)
	// Names maps paths to tensor names that differ from the common ones.
	Names map[string]string
	// Interleaved means that files store the rows of queries and keys
	// interleaved for the rotary embedding.
	Interleaved bool
}

// All lists the families, sorted by name.
func All() []Family {
	all := []Family{
		apertus(), bailingMoE(), bert(), cohere(), cohere2(), deepseekV2(), deepseekV3(), deepseekV32(), dots1(), ernie45(), ernie45MoE(), exaone4(), exaoneMoE(), gemma(), gemma2(), gemma3(), gemma3n(), gemma4(), glm(), glm4(), glm4MoE(), glm4MoELite(), glmMoEDSA(), gptoss(),
		granite(), graniteMoE(), graniteHybrid(), helium(), hunyuanDense(), internlm3(), kimiLinear(), laguna(), lfm2(), lfm2MoE(), llama(), llama4(), mimoV2Flash(), minicpm(), minimaxM2(), mistral4(), mixtral(), nemotronH(), olmo2(), olmo3(), olmoe(), phi3(), phimoe(), qwen2(), qwen2MoE(), qwen3(), qwen35(), qwen3MoE(), qwen3Next(), seedOSS(), smollm3(), solarOpen(), stableLM(), starcoder2(), step3p5(), telechat3(), xlmRoberta(),
	}
	slices.SortFunc(all, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Of returns the family with the given name; ok is false if there is none.
func Of(name string) (f Family, ok bool) {
	for _, f := range All() {
		if f.Name == name {
			return f, true
		}
	}
	return Family{}, false
}

// family returns the family of d, which must exist.
func (d Dimensions) family() Family {
	f, _ := Of(d.Architecture)
	return f
}

// Names lists the names of the decoder or of the encoder families.
func Names(encoders bool) []string {
	var out []string
	for _, f := range All() {
		if (f.Block == nil) == encoders {
			out = append(out, f.Name)
		}
	}
	return out
}

// SupportedModelTypes lists the supported values of model_type in config.json.
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

// GGUFArchitectures lists the families that can also be loaded from GGUF files.
func GGUFArchitectures() []string {
	var out []string
	for _, f := range All() {
		if f.GGUF != nil {
			out = append(out, f.Name)
		}
	}
	return out
}

// ofType returns the family of a model_type.
func ofType(kind string) (Family, bool) {
	for _, f := range All() {
		if slices.Contains(f.Types, kind) {
			return f, true
		}
	}
	return Family{}, false
}
