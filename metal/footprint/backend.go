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
	// wide says that weights take model.Facts.WideWeightBytes.
	wide bool
	// pools says that what a cache was before it grew may stay pooled. Arrays of
	// a step may in any case: those of shorter chunks are of sizes of their own,
	// each half as large, and so as much again at most.
	pools bool
	// touched is how much of what is pooled has pages, in thousandths: metal/ref
	// pools mappings of powers of two bytes, and arrays of all sizes touch three
	// quarters of theirs on average.
	touched int64
	// process is what the process takes by itself: a Go runtime with gRPC and
	// what its collector leaves takes 4 MB when idle and up to 3 more when asked,
	// libmlx on a processor 4 more (bench footprint, on vocabularies of 512).
	// What Metal takes on a Mac is not measured yet: its share is a guess on the
	// safe side. tokenBytes is what each token of the vocabulary takes.
	process, tokenBytes int64
}

// table holds every constant that depends on the back end.
func table() []backend {
	return []backend{
		{
			name: Ref, chunk: 128, process: 7 * MiB, tokenBytes: tokenBytes, touched: 750,
			kernels: Kernels{
				ScoreBytes: 4, ScoreRows: refThreads, ElementBytes: 4, BlockTokens: blockTokens, LogitBytes: 3 * 4,
				Rotates: true, RotatesBeside: 128,
			},
		},
		{
			name: MLX, chunk: 512, process: 128 * MiB, tokenBytes: tokenBytes, wide: true, pools: true, touched: 1000,
			kernels: mlxKernels(metalFusions(), 1, 512),
		},
		{
			name: MLXCPU, chunk: 32, process: 11 * MiB, tokenBytes: tokenBytes, wide: true, pools: true, touched: 1000,
			kernels: widening(mlxKernels(nil, 2, rotatingSlack)),
		},
	}
}

// widening is for a processor, on which MLX has no fused kernels: norms, ropes
// and attention compute in float32 (mlx/fast.cpp, the fallbacks). SmolLM2 in
// bfloat16 took 8 MB more than its activations' own width
// (bench footprint).
func widening(k Kernels) Kernels {
	k.WidenedBytes = 4
	return k
}

const (
	// blockTokens is the granularity of every family's cache (metal/nn).
	blockTokens = 256
	// rotatingSlack is how many tokens rotating layers have room for, at least,
	// beside a window (metal/tensor, Rotation).
	rotatingSlack = 64
	// tokenBytes is what the tokenizer takes for one token: about 70 bytes that
	// live (SmolLM2 in a folder and in GGUF, 49,152 tokens with their merges; 44
	// without merges), half as much again with what the collector lets die beside
	// them at GOGC=50.
	tokenBytes = 105
	// loadingBytes is what each token takes more while the vocabulary is read,
	// beside weights that are all there, and headingBytes what each of the first
	// headingTokens takes in addition: vocabularies of 32,000, 49,152 and 151,936
	// tokens with as many merges took 16 to 24, 25 to 33 and 61 MB at most.
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

// mlxKernels are what metal/mlx does: slabs of up to 2 GiB that are copied four
// layers at a time, two of them where a request moves, and at once where they
// are small (bridge_slab.cpp, rearrange); a mask is a distance of 4 bytes and two
// bytes that come of it (attend_alone); logits are widened, and copied out; a
// processor is told of up to 100 operations ahead of what it computes
// (memory_test.go), and a layer is some 25, one of an encoder, whose norms and GELU
// are made of small ones, twice as many. How far ahead Metal is told was not
// measured: as far.
func mlxKernels(fusions []Fusion, scoreCopies, beside int64) Kernels {
	return Kernels{
		Fusions: fusions, ScoreBytes: 4, ScoreCopies: scoreCopies, MaskBytes: 6, BlockTokens: blockTokens,
		GrowLayers: 4, GrowWhole: 64 * MiB, GrowMost: 4 * GiB, LogitBytes: 3 * 4, LayersAhead: 4, EncoderAhead: 2,
		Rotates: true, RotatesBeside: beside,
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

// KernelsOf says how a back end attends. One that is not known writes all its
// scores out, in 4 bytes, and keeps keys and values in float32.
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

// PooledLimit is how much of a process's ceiling its back end may keep pooled.
func PooledLimit(limit int64) int64 { return limit / 16 }

// pooled is how much the back end may keep pooled beside base bytes of all
// other terms: P = PooledLimit(EngineLimit(base + P)), whose solutions for the
// two kinds of slack are (base + 64 MiB)/15 and 21 base/299.
func pooled(base int64) int64 {
	return max((base+64*MiB+14)/15, (base/299+1)*21)
}
