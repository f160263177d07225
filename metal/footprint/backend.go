package footprint

import "slices"

// The back ends, by the names that engines say and MacNode.status.backend
// shows. MLXCPU is MLX where it has no GPU: no Mac, but tests and benchmarks.
const (
	Ref    = "ref"
	MLX    = "mlx"
	MLXCPU = "mlx-cpu"
)

// backend is what of the arithmetic depends on who computes.
type backend struct {
	name string
	// chunk is how many tokens of a prompt one step takes at most
	// (tensor.Backend.Chunk).
	chunk   int64
	kernels Kernels
	// wide: weights take model.Facts.WideWeightBytes.
	wide bool
	// drafts: the draft head of a model is used (tensor.Backend.Ahead).
	drafts bool
	// pools: the memory of a cache before it grew may stay pooled. Activations
	// of a step may stay pooled with any backend: those of shorter chunks have
	// their own sizes, each half as large, and so at most as much again.
	pools bool
	// touched is how much of what is pooled has pages, in thousandths: metal/ref
	// pools mappings of powers of two bytes, and arrays of all sizes touch three
	// quarters of theirs on average.
	touched int64
	// process is what the process takes by itself: a Go runtime with gRPC and
	// what its collector leaves takes 4 MB when idle and up to 3 more when asked,
	// libmlx on a processor 4 more (bench footprint, on vocabularies of 512).
	// What Metal takes on a Mac is not measured yet: its share is a guess on the
	// safe side. It and the slack of EngineLimit contain the texts that are received and wait,
	// the one long render of a chat template (one of 30 MB took 47 MiB), and constraints on
	// output (grammar.MostBytes): 16 clients that sent the largest schemas at once took 36 MiB.
	// In an embedding model or reranker they contain texts that wait, and the tokens of others.
	// The garbage of all is bounded by Terms.Heap: texts of 16 MB that three clients sent again
	// and again took 70 MiB in all, 152 without that bound.
	// tokenBytes is what each token of the vocabulary takes.
	process, tokenBytes int64
}

// table holds every constant that depends on the back end.
func table() []backend {
	return []backend{
		{
			name: Ref, chunk: 128, process: 7 * MiB, tokenBytes: tokenBytes, touched: 750,
			kernels: Kernels{
				ScoreBytes: 4, ScoreRows: refThreads, TowerRounding: 2, ElementBytes: 4, BlockTokens: blockTokens, LogitBytes: 3 * 4,
				Rotates: true, WindowSlack: 128,
			},
		},
		{
			name: MLX, chunk: 512, process: 128 * MiB, tokenBytes: tokenBytes, wide: true, drafts: true, pools: true, touched: 1000,
			kernels: mlxKernels(metalFusions(), 1, 512),
		},
		{
			name: MLXCPU, chunk: 32, process: 11 * MiB, tokenBytes: tokenBytes, wide: true, drafts: true, pools: true, touched: 1000,
			kernels: onProcessor(mlxKernels(nil, 2, rotatingSlack)),
		},
	}
}

// onProcessor is for a processor, on which MLX has no fused kernels: norms, ropes
// and attention compute in float32 (mlx/fast.cpp, the fallbacks). SmolLM2 in
// bfloat16 took 8 MB more than its activations' own width. Small slabs are copied
// as a step gets to their layers: 28 layers of which 7 or all attend took 9 and
// 16 MB in addition to their caches of 29 and 117 MB, with what is pooled. A product
// copies values that lie within keys, for each of the heads that share them: four
// heads by 1,024 tokens of 576 numbers, 9 MB, took 21 MB (bench footprint). A softmax
// writes into its operand if nothing else reads it (mlx/backend/cpu/softmax.cpp): layers of
// vision towers took their scores once, for 1 to 12 heads and 225 to 4,096 patches.
func onProcessor(k Kernels) Kernels {
	k.WidenedBytes, k.GrowWhole, k.GrowInStep, k.LatentCopies, k.SoftmaxInPlace = 4, 0, k.GrowWhole, 2, true
	return k
}

const (
	// blockTokens is the granularity of every family's cache (metal/nn).
	blockTokens = 256
	// rotatingSlack is the minimum number of tokens for which rotating layers
	// have room in addition to the window (metal/tensor, Rotation).
	rotatingSlack = 64
	// tokenBytes is the memory of the tokenizer per token: about 70 live bytes
	// (SmolLM2 in a folder and in GGUF, 49,152 tokens with merges; 44 without
	// merges), and half as much again of garbage at GOGC=50.
	tokenBytes = 105
	// loadingBytes is the additional memory per token while the vocabulary is
	// read and all weights are already loaded. headingBytes is the additional
	// memory of each of the first headingTokens. Measured: vocabularies of
	// 32,000, 49,152 and 151,936 tokens with as many merges took at most 16 to
	// 24, 25 to 33 and 61 MB.
	loadingBytes, headingBytes, headingTokens = 200, 440, 32 << 10
	// refThreads compute with ref at most: the largest Mac has 32 cores.
	refThreads = 32
)

// metalFusions are MLX's fused kernels on Metal (mlx/backend/metal,
// scaled_dot_product_attention.cpp, use_fallback): for up to 8 queries one
// family, with at most 32 query rows for a KV head, and for more another.
func metalFusions() []Fusion {
	return []Fusion{
		{HeadSizes: []int64{64, 96, 128, 256}, MinQueries: 1, MaxQueries: 8, MaxRows: 32},
		{HeadSizes: []int64{64, 80, 128}, MinQueries: 9},
	}
}

// mlxKernels describes metal/mlx: slabs of up to 2 GiB are copied four layers
// at a time, two of them when a request moves, and all at once when they are
// small, as far as is known of Metal (bridge_slab.cpp, rearrange). A mask is a
// distance of 4 bytes and two bytes derived from it (attend_alone). Logits are
// widened and copied out. A processor queues up to 100 operations ahead
// (memory_test.go). A layer has about 25, a layer of an encoder, whose norms and
// GELU consist of small operations, twice as many. Metal's queue depth was not
// measured and is assumed to be the same. Eight sequences, whose states are 92 MB,
// took 116 and 105 MB more than weights, caches, pool and process while the last prompt
// was computed, of which a step computes with 28 and 23 (bench footprint): of
// operations that wait for nothing, such as gathers, the framework computes those of all
// layers first.
func mlxKernels(fusions []Fusion, scoreCopies, windowSlack int64) Kernels {
	return Kernels{
		Fusions: fusions, ScoreBytes: 4, ScoreCopies: scoreCopies, MaskBytes: 6, BlockTokens: blockTokens,
		GrowLayers: 4, GrowWhole: 64 * MiB, GrowMost: 4 * GiB, LogitBytes: 3 * 4, LayersAhead: 4, EncoderAhead: 2,
		Rotates: true, WindowSlack: windowSlack, TwiceStates: true,
		RecurrentCopies: 14, // windows and taps, heads of queries, keys and values in several forms, what is written and read, squares of blocks (bridge_recur.cpp, delta_rule)
	}
}

// Backends lists the names that Context.Backend may have.
func Backends() []string {
	var names []string
	for _, b := range table() {
		names = append(names, b.name)
	}
	slices.Sort(names)
	return names
}

// KernelsOf describes the attention kernels of a backend. An unknown backend is
// assumed to write all scores in 4 bytes, and to keep keys and values in
// float32.
func KernelsOf(name string) Kernels {
	for _, b := range table() {
		if b.name == name {
			return b.kernels
		}
	}
	k := mlxKernels(nil, 2, 512)
	k.ElementBytes = 4
	return k
}

// EngineLimit is the ceiling of one engine's process: its reservation, which is
// an estimate, plus slack of a twentieth and at least 64 MiB.
func EngineLimit(reserved int64) int64 { return reserved + max(64*MiB, reserved/20) }

// PooledLimit is the part of a process's ceiling that its back end may keep
// pooled.
func PooledLimit(limit int64) int64 { return limit / 16 }

// pooled is the maximum memory that the backend keeps pooled when all other
// terms add up to base bytes: P = PooledLimit(EngineLimit(base + P)), whose
// solutions for the two kinds of slack are (base + 64 MiB)/15 and 21 base/299.
func pooled(base int64) int64 {
	return max((base+64*MiB+14)/15, (base/299+1)*21)
}
