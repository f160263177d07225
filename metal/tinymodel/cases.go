package tinymodel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Case is a tiny model whose logits test/oracle/goldens/tiny records and
// metal/arch compares.
type Case struct {
	// Name is family/format, and the special option if any.
	Name   string
	Config Config
	// Layout of a folder; nil means a GGUF file.
	Layout *Layout
}

// Write writes the model below dir and returns its path: a file or a folder.
func (c Case) Write(dir string) (string, error) {
	if c.Layout != nil {
		path := filepath.Join(dir, "model")
		return path, WriteFolder(path, c.Config, *c.Layout)
	}
	path := filepath.Join(dir, "model.gguf")
	return path, Write(path, c.Config)
}

// Prompts are the inputs of the case: a long, a medium and a short one. They
// only depend on the name.
func (c Case) Prompts() [][]int32 {
	rng := newRandom(7, c.Name)
	var out [][]int32
	for _, n := range []int{40, 17, 3} {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32(controlTokens + rng.next()%uint64(c.Config.Vocabulary-controlTokens))
		}
		out = append(out, p)
	}
	return out
}

// Digest is the SHA-256 of a model: of its file, or of the names and contents
// of the files of its folder, in the order of their names.
func Digest(path string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if file != path {
			fmt.Fprintf(sum, "%s\n", filepath.Base(file))
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// Cases lists all of them. No two share a seed.
func Cases() []Case {
	var out []Case
	for _, family := range []Family{Llama, Qwen3} {
		out = append(out, fileCases(family)...)
		out = append(out, floatCases(family)...)
		out = append(out, affineCases(family)...)
	}
	for _, kind := range []quant.Type{quant.Float32, quant.BFloat16} {
		c := folderCase(Mistral, kind.String()+" window of 16", quant.DenseOf(kind))
		c.Config.Window = 16
		out = append(out, c)
	}
	out = append(out, newerCases(Qwen2)...) // last, so that the seeds of the others do not change
	out = append(append(out, newerCases(Qwen3MoE)...), expertCases()...)
	out = append(append(out, newerCases(Gemma3)...), windowCases()...)
	out = append(append(out, smallFloatCases()...), publishedCases()...)
	out = append(out, seeingCases()...)
	for i := range out {
		out[i].Config.Seed = uint64(i + 1)
	}
	return append(append(append(out, hybridCases()...), blockFileCases()...), groupCases()...)
}

// groupSeeds are where the seeds of those cases begin, apart from others.
const groupSeeds = 3001

// groupCases are the affine formats that affineCases leaves out.
func groupCases() []Case {
	var out []Case
	for i, f := range []quant.Format{
		quant.AffineOf(2, 64, quant.Float32), quant.AffineOf(3, 32, quant.BFloat16), quant.AffineOf(5, 128, quant.BFloat16), quant.AffineOf(8, 128, quant.Float16),
	} {
		c := folderCase(Llama, fmt.Sprintf("%d bits by %d %v", f.Bits, f.Group, f.Type), f)
		c.Config.Seed = groupSeeds + uint64(i)
		out = append(out, c)
	}
	return out
}

// blockFileSeeds are where the seeds of those cases begin, apart from others.
const blockFileSeeds = 2001

// blockFileCases are GPT-OSS in GGUF: experts in mxfp4, the rest in what files
// have.
func blockFileCases() []Case {
	var out []Case
	for i, t := range []weights.Type{weights.F32, weights.BF16, weights.Q8_0} {
		c := fileCase(GPTOSS, t.String()+" with MXFP4 experts", t)
		c.Config.Seed = blockFileSeeds + uint64(i)
		out = append(out, c)
	}
	return out
}

// smallFloatCases are folders with matrices of small floats: in a dense family,
// in a mixture, and mixed with other formats.
func smallFloatCases() []Case {
	var out []Case
	for i, f := range quant.BlockFloats() {
		dense, mixture := folderCase(Llama, f.String(), f), folderCase(Qwen3MoE, f.String(), f)
		dense.Config.Untied, mixture.Config.Untied = i == 1, i != 1
		out = append(out, dense, mixture)
	}
	mixed := folderCase(Qwen3MoE, "mxfp4 experts, others by path", quant.BlockFloats()[0])
	mixed.Config.Untied, mixed.Layout.ShardBytes = true, 60_000
	mixed.Layout.Overrides = map[string]quant.Format{
		"model.embed_tokens":              quant.AffineOf(8, 64, quant.BFloat16),
		"lm_head":                         quant.DenseOf(quant.BFloat16),
		"model.layers.0.self_attn.q_proj": quant.BlockFloats()[1],
		"model.layers.1.self_attn.v_proj": quant.BlockFloats()[2],
		"model.layers.1.mlp.gate":         quant.AffineOf(8, 64, quant.BFloat16),
	}
	return append(out, mixed)
}

// caseConfig has grouped heads and a head size that is not hidden width by
// heads, widths that are whole groups of 128, and norms that matter.
func caseConfig(family Family, special string) Config {
	c := Config{
		Name: string(family) + " " + special, Family: family, Layers: 2, Hidden: 128, FeedForward: 256, QueryHeads: 8, KVHeads: 2, HeadSize: 32,
		Context: 512, Vocabulary: 448, NormEps: 1e-5, Theta: 10000, NormSpread: 0.5,
	}
	switch family {
	case Qwen2:
		c.QueryHeads, c.NormEps, c.Theta = 4, 1e-6, 1e6 // a head is hidden width by heads
	case Qwen3:
		c.NormEps, c.Theta = 1e-6, 1e6
	case Gemma3:
		c.Layers, c.Window, c.Pattern = 3, 16, 3
		c.NormEps, c.Theta = 1e-6, 1e6
	case Qwen3Next:
		c.Layers, c.NormEps, c.Theta = 3, 1e-6, 1e6
		c.Hybrid = Hybrid{Interval: 3, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 32, Taps: 4, Rotary: 0.25}
		c.Experts = Experts{Count: 8, PerToken: 3, FeedForward: 128, Shared: 128}
	case Qwen35:
		c.Layers, c.NormEps, c.Theta = 4, 1e-6, 1e6
		c.Hybrid = Hybrid{Interval: 2, KeyHeads: 2, KeySize: 32, ValueHeads: 8, ValueSize: 16, Taps: 4, Rotary: 0.25}
	case Ministral3: // whose prompts go past twice the length it was trained with
		c.Scaling, c.Growth, c.Theta = Scaling{Kind: "yarn", Factor: 8, Original: 16}, 0.3, 1e6
	case Qwen3MoE:
		c.NormEps, c.Theta = 1e-6, 1e6
		c.Experts = Experts{Count: 8, PerToken: 3, FeedForward: 128}
	case GPTOSS:
		c.Layers, c.Window, c.Theta, c.Untied, c.FeedForward = 4, 16, 150000, true, 96
		c.Experts = Experts{Count: 8, PerToken: 3, FeedForward: 96}
		c.Scaling = Scaling{Kind: "yarn", Factor: 32, Original: 128}
	}
	return c
}

// publishedCases are GPT-OSS as it was published, whose edges of yarn's band lie
// between pairs, and as MLX converts it. mlx-lm rounds those edges in any case.
func publishedCases() []Case {
	var out []Case
	for _, t := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		c := folderCase(GPTOSS, t.String()+" with mxfp4 experts", quant.DenseOf(t))
		c.Layout.Modern = t == quant.Float16
		out = append(out, c)
	}
	edges, sharded := folderCase(GPTOSS, "bfloat16 with mxfp4 experts, yarn as published", quant.DenseOf(quant.BFloat16)), folderCase(GPTOSS, "bfloat16 with mxfp4 experts, sharded", quant.DenseOf(quant.BFloat16))
	edges.Config.Scaling.Fractional, sharded.Layout.ShardBytes = true, 100_000
	sharded.Config.Experts.PerToken, sharded.Config.Experts.Count, sharded.Config.Window = 1, 5, 7
	out = append(out, edges, sharded)
	packed := quant.BlockFloats()
	for _, f := range append(packed, quant.AffineOf(4, 32, quant.BFloat16), quant.AffineOf(8, 32, quant.Float32)) {
		special := f.String()
		if !f.BlockFloat() {
			special = fmt.Sprintf("%d bits by %d %v", f.Bits, f.Group, f.Type)
		}
		out = append(out, folderCase(GPTOSS, special, f))
	}
	mixed := folderCase(GPTOSS, "mixed by path", packed[0])
	mixed.Layout.Overrides = map[string]quant.Format{"model.embed_tokens": quant.AffineOf(8, 64, quant.BFloat16), "lm_head": quant.AffineOf(8, 64, quant.BFloat16)}
	for i := range mixed.Config.Layers {
		mixed.Layout.Overrides[fmt.Sprintf("model.layers.%d.mlp.router", i)] = quant.AffineOf(8, 64, quant.BFloat16)
		mixed.Layout.Overrides[fmt.Sprintf("model.layers.%d.self_attn.q_proj", i)] = quant.AffineOf(8, 32, quant.BFloat16)
	}
	return append(out, mixed)
}

// newerCases are fewer: what a format is does not depend on the family, and the
// first two families have them all.
func newerCases(family Family) []Case {
	var out []Case
	for i, t := range []weights.Type{weights.F32, weights.F16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		c := fileCase(family, t.String(), t)
		c.Config.Untied = i%2 == 1
		out = append(out, c)
	}
	untied := folderCase(family, "float16 untied", quant.DenseOf(quant.Float16))
	untied.Config.Untied = true
	sharded := folderCase(family, "bfloat16 sharded", quant.DenseOf(quant.BFloat16))
	sharded.Layout.ShardBytes, sharded.Layout.Modern = 200_000, true
	out = append(out, folderCase(family, "float32", quant.DenseOf(quant.Float32)), untied, sharded)
	for _, f := range []quant.Format{quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(8, 32, quant.Float16), quant.AffineOf(3, 128, quant.Float32)} {
		out = append(out, folderCase(family, fmt.Sprintf("%d bits by %d %v", f.Bits, f.Group, f.Type), f))
	}
	mixed := folderCase(family, "mixed by path", quant.AffineOf(4, 64, quant.BFloat16))
	mixed.Config.Untied = true
	mixed.Layout.Overrides = map[string]quant.Format{
		"model.embed_tokens":              quant.AffineOf(8, 32, quant.BFloat16),
		"model.layers.0.self_attn.v_proj": quant.AffineOf(6, 64, quant.BFloat16),
		"model.layers.1.self_attn.q_proj": quant.DenseOf(quant.BFloat16),
	}
	return append(out, mixed)
}

// expertCases are mixtures in some layers alone, shares that add up to less than
// one, every expert chosen or one, and experts in other bits than the rest.
func expertCases() []Case {
	f32, packed := quant.DenseOf(quant.Float32), quant.AffineOf(4, 64, quant.BFloat16)
	step := folderCase(Qwen3MoE, "float32 every second layer", f32)
	step.Config.Layers, step.Config.Experts.Step, step.Config.Experts.Unnormalized = 4, 2, true
	dense := folderCase(Qwen3MoE, "4 bits by 64 bfloat16 dense first layer", packed)
	dense.Config.Layers, dense.Config.Experts.Dense = 3, []int{0}
	one := folderCase(Qwen3MoE, "float32 one of two", f32)
	one.Config.Experts.Count, one.Config.Experts.PerToken, one.Config.Experts.Unnormalized = 2, 1, true
	all := folderCase(Qwen3MoE, "6 bits by 32 float16 all of five", quant.AffineOf(6, 32, quant.Float16))
	all.Config.Experts.Count, all.Config.Experts.PerToken, all.Config.Untied = 5, 5, true
	router := folderCase(Qwen3MoE, "router in 8 bits", packed)
	router.Layout.Overrides = map[string]quant.Format{
		"model.layers.0.mlp.gate": quant.AffineOf(8, 64, quant.BFloat16), "model.layers.1.mlp.gate": quant.AffineOf(8, 64, quant.BFloat16),
		"model.layers.1.mlp.switch_mlp.down_proj": quant.AffineOf(6, 32, quant.BFloat16),
	}
	return []Case{step, dense, one, all, router}
}

// windowCases are Gemmas whose numbers are not those that readers take where a
// file is silent.
func windowCases() []Case {
	f32 := quant.DenseOf(quant.Float32)
	scaled := folderCase(Gemma3, "float32 scaled", f32)
	scaled.Config.Theta, scaled.Config.LocalTheta, scaled.Config.QueryScalar, scaled.Config.Scaling = 5e5, 2e4, 24, Scaling{Kind: "linear", Factor: 8}
	modern := folderCase(Gemma3, "bfloat16 layer types", quant.DenseOf(quant.BFloat16))
	modern.Config.Theta, modern.Config.LocalTheta, modern.Config.Scaling, modern.Layout.Modern = 5e5, 2e4, Scaling{Kind: "linear", Factor: 4}, true
	modern.Config.Layers, modern.Config.Pattern, modern.Config.Window = 4, 2, 7
	usual := folderCase(Gemma3, "4 bits by 32 bfloat16 six layers", quant.AffineOf(4, 32, quant.BFloat16))
	usual.Config.Layers, usual.Config.Pattern = 6, 0
	file := fileCase(Gemma3, "linear rope", weights.F32)
	file.Config.Scaling, file.Config.LocalTheta, file.Config.Window = Scaling{Kind: "linear", Factor: 4}, 2e4, 9
	return []Case{scaled, modern, usual, file}
}

// seeingCases are decoders inside models with eyes, in the words of older and of
// newer folders, and a Ministral that is alone.
func seeingCases() []Case {
	f32, packed := quant.DenseOf(quant.Float32), quant.AffineOf(4, 64, quant.BFloat16)
	seeing := func(family Family, special string, f quant.Format) Case {
		c := folderCase(family, special, f)
		c.Layout.Sees, c.Config.Untied = true, family != Gemma3
		return c
	}
	out := []Case{
		folderCase(Ministral3, "float32", f32), folderCase(Ministral3, "8 bits by 32 float16", quant.AffineOf(8, 32, quant.Float16)),
		seeing(Ministral3, "float32 that sees", f32), seeing(Ministral3, "4 bits by 64 bfloat16 that sees", packed),
		seeing(Mistral, "float32 that sees", f32), seeing(Mistral, "4 bits by 64 bfloat16 that sees", packed),
		seeing(Gemma3, "float32 that sees", f32), seeing(Gemma3, "4 bits by 64 bfloat16 that sees", packed),
	}
	modern, mixed := seeing(Gemma3, "bfloat16 that sees, newer names", quant.DenseOf(quant.BFloat16)), seeing(Ministral3, "mixed that sees", packed)
	modern.Layout.Modern = true
	mixed.Layout.Overrides = map[string]quant.Format{
		"model.embed_tokens":              quant.AffineOf(8, 32, quant.BFloat16),
		"model.layers.0.self_attn.v_proj": quant.AffineOf(6, 64, quant.BFloat16),
		"model.layers.1.mlp.up_proj":      quant.DenseOf(quant.BFloat16),
	}
	return append(out, modern, mixed)
}

// fileCase is a GGUF file.
func fileCase(family Family, special string, t weights.Type) Case {
	c := caseConfig(family, "GGUF "+special)
	c.Type = t
	return Case{Name: string(family) + "/gguf " + special, Config: c}
}

func fileCases(family Family) []Case {
	var out []Case
	for i, t := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		c := fileCase(family, t.String(), t)
		c.Config.Untied = i%2 == 1
		out = append(out, c)
	}
	linear, factors := fileCase(family, "linear rope", weights.F32), fileCase(family, "rope factors", weights.Q8_0)
	linear.Config.Scaling = Scaling{Kind: "linear", Factor: 4}
	factors.Config.RopeFactors = true
	return append(out, linear, factors)
}

func folderCase(family Family, special string, f quant.Format) Case {
	kind := "hf "
	if f.Quantized() {
		kind = "mlx "
	}
	return Case{Name: string(family) + "/" + kind + special, Config: caseConfig(family, special), Layout: &Layout{Matrices: f}}
}

// floatCases are folders in Hugging Face's layout.
func floatCases(family Family) []Case {
	f32 := quant.DenseOf(quant.Float32)
	plain := folderCase(family, "float32 plain heads", f32)
	plain.Config.QueryHeads, plain.Config.KVHeads, plain.Config.HeadSize = 4, 4, 32
	untied := folderCase(family, "float16 untied", quant.DenseOf(quant.Float16))
	untied.Config.Untied = true
	sharded := folderCase(family, "bfloat16 sharded", quant.DenseOf(quant.BFloat16))
	sharded.Layout.ShardBytes = 200_000
	out := []Case{folderCase(family, "float32", f32), plain, untied, folderCase(family, "bfloat16", quant.DenseOf(quant.BFloat16)), sharded}
	for _, s := range []Scaling{
		{Kind: "linear", Factor: 4},
		{Kind: "llama3", Factor: 8, Original: 64, Low: 1, High: 4},
		{Kind: "yarn", Factor: 4, Original: 128},
	} {
		c := folderCase(family, "float32 "+s.Kind+" rope", f32)
		c.Config.Scaling = s
		out = append(out, c)
	}
	modern := folderCase(family, "bfloat16 rope_parameters", quant.DenseOf(quant.BFloat16))
	modern.Config.Theta, modern.Config.Scaling, modern.Layout.Modern = 5e5, Scaling{Kind: "llama3", Factor: 8, Original: 64, Low: 1, High: 4}, true
	return append(out, modern)
}

// affineCases are folders in MLX's layout: every number of bits and every size
// of group at least twice (groupCases are the rest), with scales of every type.
func affineCases(family Family) []Case {
	var out []Case
	for i, f := range []quant.Format{
		quant.AffineOf(2, 32, quant.BFloat16), quant.AffineOf(2, 128, quant.Float16),
		quant.AffineOf(3, 64, quant.BFloat16), quant.AffineOf(3, 128, quant.Float32),
		quant.AffineOf(4, 32, quant.Float16), quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(4, 128, quant.Float32),
		quant.AffineOf(5, 32, quant.Float32), quant.AffineOf(5, 64, quant.Float16),
		quant.AffineOf(6, 64, quant.BFloat16), quant.AffineOf(6, 128, quant.Float16),
		quant.AffineOf(8, 32, quant.BFloat16), quant.AffineOf(8, 64, quant.Float32),
	} {
		c := folderCase(family, fmt.Sprintf("%d bits by %d %v", f.Bits, f.Group, f.Type), f)
		c.Config.Untied = i%3 == 2
		out = append(out, c)
	}
	base := quant.AffineOf(4, 64, quant.BFloat16)
	mixed, sharded := folderCase(family, "mixed by path", base), folderCase(family, "sharded", base)
	mixed.Layout.Overrides = map[string]quant.Format{
		"model.embed_tokens":              quant.AffineOf(8, 32, quant.BFloat16),
		"model.layers.0.self_attn.o_proj": quant.DenseOf(quant.BFloat16),
		"model.layers.0.self_attn.v_proj": quant.AffineOf(6, 64, quant.BFloat16),
		"model.layers.1.mlp.down_proj":    quant.AffineOf(3, 128, quant.BFloat16),
		"model.layers.1.mlp.up_proj":      quant.AffineOf(5, 32, quant.BFloat16),
	}
	sharded.Config.Untied, sharded.Layout.ShardBytes = true, 60_000
	return append(out, mixed, sharded)
}
