//go:build !race

package weights

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

// sparseFolder is a model of a configuration and one file of weights, whose data take no
// disk.
func sparseFolder(t *testing.T, config, header string, data int64) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, configFile), []byte(config), 0o600),
		os.WriteFile(file, shard("{"+header+"}", 0), 0o600),
		os.Truncate(file, 8+int64(len(header))+2+data),
	); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The parts of the models under attack.
const (
	mixture    = `"num_experts_per_tok":1,"moe_intermediate_size":1,"norm_topk_prob":true,"decoder_sparse_step":1,"num_experts":`
	latentKeys = `"kv_lora_rank":2,"qk_nope_head_dim":1,"qk_rope_head_dim":2,"v_head_dim":1,"n_routed_experts":1,"num_experts_per_tok":1,"moe_intermediate_size":1`
	llama4Keys = `"head_dim":32,"intermediate_size_mlp":64,"num_local_experts":16`
)

func small(kind string, layers, heads int, more string) string {
	return fmt.Sprintf(`{"model_type":%q,"num_hidden_layers":%d,"num_attention_heads":%d,"hidden_size":4096,"intermediate_size":64,"vocab_size":64,"rms_norm_eps":1e-5,"rope_theta":10000,"max_position_embeddings":128,%s}`, kind, layers, heads, more)
}

// described is the entries of a header, and the size of the data.
type described struct {
	header string
	data   int64
}

// rowOf is a tensor of each layer: its name, its shape and its number of elements.
type rowOf struct {
	name, shape string
	elements    int
}

// layered describes tensors of BF16 in each of several layers.
func layered(layers int, tensors ...rowOf) described {
	at := 0
	header := many(layers*len(tensors), func(i int) string {
		of, begin := tensors[i%len(tensors)], at
		at += 2 * of.elements
		return tensorJSON(fmt.Sprintf(of.name, i/len(tensors)), "BF16", of.shape, begin, at)
	})
	return described{header, int64(at)}
}

// expansions describes a quantised kv_b_proj in each of several layers.
func expansions(layers, rows int) described {
	at, parts := 0, []rowOf{{"weight", "%d,4", 16}, {"scales", "%d,1", 2}, {"biases", "%d,1", 2}}
	header := many(3*layers, func(i int) string {
		of, begin := parts[i%3], at
		at += rows * of.elements
		return tensorJSON(fmt.Sprintf("model.layers.%d.self_attn.kv_b_proj.%s", i/3, of.name), map[bool]string{true: "U32", false: "BF16"}[i%3 == 0], fmt.Sprintf(of.shape, rows), begin, at)
	})
	return described{header, int64(at)}
}

// whole describes every tensor of a model, after others that are empty.
func whole(t *testing.T, config string, others described) described {
	t.Helper()
	d, err := dimensionsOf(config)
	if err != nil {
		t.Fatal(err)
	}
	slots, err := d.Slots(math.MaxInt32)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	header := many(len(slots), func(i int) string {
		begin := at
		at += 2 * int(elementsOf(slots[i].Shape))
		return tensorJSON(slots[i].Path, "BF16", strings.Trim(strings.ReplaceAll(fmt.Sprint(slots[i].Shape), " ", ","), "[]"), begin, at)
	})
	return described{others.header + "," + header, int64(at)}
}

// TestAttackSmallHeadersTakeLittleMemory: numbers in a configuration or in a header make a
// small file cost much only as far as a budget counts it.
func TestAttackSmallHeadersTakeLittleMemory(t *testing.T) {
	draft := small("deepseek_v3", 1, 2, latentKeys)
	for name, c := range map[string]struct {
		config string
		file   described
		want   error
		most   uint64 // MiB that are allocated, also what is freed meanwhile
	}{
		"experts of no columns": {
			small("qwen3_moe", 1, 2, mixture+"128"),
			layered(1, rowOf{"model.layers.%d.mlp.experts.gate_up_proj", "1000000,2,0", 0}, rowOf{"model.layers.%d.mlp.experts.down_proj", "1000000,0,0", 0}), ErrInvalid, 2,
		},
		"turned experts of no columns": {
			small("llama4_text", 1, 2, llama4Keys),
			layered(1, rowOf{"model.layers.%d.feed_forward.experts.gate_up_proj", "1000000,0,2", 0}, rowOf{"model.layers.%d.feed_forward.experts.down_proj", "1000000,0,0", 0}), ErrInvalid, 2,
		},
		"experts of a dense model": {
			small("llama", 1, 2, `"head_dim":32`),
			layered(1, rowOf{"model.layers.%d.mlp.experts.gate_up_proj", "1000000,2,0", 0}, rowOf{"model.layers.%d.mlp.experts.down_proj", "0", 0}), ErrInvalid, 2,
		},
		"all experts of many layers": {
			small("qwen3_moe", 200, 2, mixture+"4096"),
			layered(200, rowOf{"model.layers.%d.mlp.experts.gate_up_proj", "4096,2,1", 8192}, rowOf{"model.layers.%d.mlp.experts.down_proj", "4096,1,1", 4096}), ErrInvalid, 128,
		},
		"heads of latent attention": {
			small("deepseek_v3", 200, 4096, latentKeys),
			layered(200, rowOf{"model.layers.%d.self_attn.kv_b_proj.weight", "8192,2", 16384}), ErrInvalid, 128,
		},
		"heads of quantised latent attention": {
			small("deepseek_v2", 200, 4096, strings.Replace(latentKeys, `"kv_lora_rank":2`, `"kv_lora_rank":32,"quantization":{"bits":4,"group_size":32}`, 1)),
			expansions(200, 8192), ErrInvalid, 128,
		},
		"quantised layers by name": {
			small("phi3", 4096, 2, fmt.Sprintf(`"quantization":{"bits":4,"group_size":64,%s}`, many(4096, func(i int) string { return fmt.Sprintf(`"model.layers.%d.self_attn.qkv_proj":true`, i) }))),
			layered(1, rowOf{"model.layers.%d.input_layernorm.weight", "1", 1}), ErrInvalid, 16,
		},
		"a text in place of a number": {
			small("llama", 1, 2, `"head_dim":32`), described{`"a":{"dtype":"BF16","shape":["` + strings.Repeat("x", 4<<20) + `"],"data_offsets":[0,2]}`, 2}, ErrInvalid, 32,
		},
		"drafts":                     {draft, whole(t, draft, layered(10_000, rowOf{"model.layers.1%d.norm.weight", "0", 0})), nil, 64},
		"parts of a model that sees": {strings.Replace(qwenSeeing(), `"deepstack`, `"deep`, 1), layered(10_000, rowOf{"model.language_model.layers.%d.norm.weight", "0", 0}), ErrMissing, 64},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sparseFolder(t, c.config, c.file.header, c.file.data)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Open(dir)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if err == nil {
				f.Close()
			}
			if made := after.TotalAlloc - before.TotalAlloc; made > c.most<<20 {
				t.Errorf("%d KiB are allocated for a header of %d bytes, want at most %d", made>>10, len(c.file.header), c.most<<10)
			}
		})
	}
}

// TestPartsOfTensorsCountLikeTensors: in number and in memory, however they are cut.
func TestPartsOfTensorsCountLikeTensors(t *testing.T) {
	experts := family.Experts{Count: 3}
	for name, c := range map[string]struct {
		shapes map[string][]int64
		parts  int
		cut    func(c *collection) error
	}{
		"experts": {
			map[string][]int64{"mlp.experts.gate_up_proj": {3, 4, 8}, "mlp.experts.down_proj": {3, 8, 2}}, 7,
			func(c *collection) error {
				return c.fusedExperts(family.Dimensions{Architecture: "qwen3_5", Experts: experts})
			},
		},
		"turned experts": {
			map[string][]int64{"mlp.experts.gate_up_proj": {3, 8, 4}, "mlp.experts.down_proj": {3, 2, 8}}, 9,
			func(c *collection) error {
				return c.fusedExperts(family.Dimensions{Architecture: "llama4_text", Experts: experts})
			},
		},
		"heads": {
			map[string][]int64{"model.layers.0.self_attn.kv_b_proj.weight": {12, 2}}, 6,
			func(c *collection) error {
				return c.latent(family.Dimensions{Layers: 1, QueryHeads: 3, Latent: &family.Latent{Rank: 2, Plain: 2, Value: 2}}, grouping{})
			},
		},
		"quantised heads": {
			map[string][]int64{"model.layers.0.self_attn.kv_b_proj.weight": {12, 4}, "model.layers.0.self_attn.kv_b_proj.scales": {12, 1}, "model.layers.0.self_attn.kv_b_proj.biases": {12, 1}}, 6,
			func(c *collection) error {
				for name, t := range c.tensors {
					t.kind = element{name: map[bool]string{true: "U32", false: "F32"}[strings.HasSuffix(name, ".weight")]}
					c.tensors[name] = t
				}
				return c.latent(family.Dimensions{Architecture: "deepseek_v2", Layers: 1, QueryHeads: 3, Latent: &family.Latent{Rank: 32, Plain: 2, Value: 2}}, grouping{present: true})
			},
		},
		"fused matrices": {
			map[string][]int64{"model.layers.0.mlp.gate_up_proj.weight": {8, 2}}, 2,
			func(c *collection) error {
				return c.split(family.Dimensions{Architecture: "glm4", Layers: 1, FeedForward: 4}, &grouping{})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			of := gathered(c.shapes)
			parts := func() (n int) {
				for _, e := range of.latents {
					n += len(e.stack)
				}
				return n + len(of.tensors)
			}
			if of.left.tensors = c.parts; c.cut(of) != nil || parts() != c.parts || of.left.tensors != 0 {
				t.Errorf("%d tensors, and room for %d more", parts(), of.left.tensors)
			}
			if used := of.left.memory.used; used < int64(c.parts)*tensorMemory {
				t.Errorf("%d bytes are counted", used)
			}
			of = gathered(c.shapes)
			of.left.tensors = c.parts - 1
			if err := c.cut(of); !errors.Is(err, ErrInvalid) {
				t.Errorf("more tensors than a model may have: error %v", err)
			}
			of = gathered(c.shapes)
			of.left.memory.budget = NewBudget(2 * tensorMemory)
			if err := c.cut(of); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "memory") {
				t.Errorf("more memory than a header may take: error %v", err)
			}
		})
	}
}
