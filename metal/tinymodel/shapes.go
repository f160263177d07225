package tinymodel

import (
	"fmt"
	"slices"
	"strings"
)

// Large returns a configuration whose Q4_1 file has about this many bytes, with
// the proportions of a real model.
func Large(bytes int64) Config { return Sized(bytes, 5) }

// Sized is Large for any format, by the bits that one weight takes in it.
func Sized(bytes int64, bits float64) Config {
	c := Default()
	c.Name, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Vocabulary = "large", 2048, 8192, 32, 8, 64, 32768
	perLayer := int64(float64(c.Hidden*(2*c.QueryHeads*c.HeadSize+2*c.KVHeads*c.HeadSize+3*c.FeedForward)) * bits / 8)
	embed := int64(float64(c.Vocabulary*c.Hidden) * bits / 8)
	c.Layers = int(max(1, (bytes-embed+perLayer/2)/perLayer))
	return c
}

// shape is a named size; bits are those of one weight in the wanted format.
type shape struct {
	name string
	make func(bits float64) Config
}

func shapes() []shape {
	qwen3 := func(name string, hidden, inner, layers, heads int, untied bool) Config {
		return Config{
			Seed: 1, Name: name, Family: Qwen3, Layers: layers, Hidden: hidden, FeedForward: inner, QueryHeads: heads, KVHeads: 8, HeadSize: 128,
			Context: 40960, Vocabulary: 151936, NormEps: 1e-6, Theta: 1e6, Untied: untied,
		}
	}
	mixture := qwen3("qwen3-30b-a3b", 2048, 6144, 48, 32, true)
	mixture.Family, mixture.KVHeads, mixture.Experts = Qwen3MoE, 4, Experts{Count: 128, PerToken: 8, FeedForward: 768}
	gemma := Config{
		Seed: 1, Name: "gemma3-1b", Family: Gemma3, Layers: 26, Hidden: 1152, FeedForward: 6912, QueryHeads: 4, KVHeads: 1, HeadSize: 256,
		Context: 32768, Vocabulary: 262144, NormEps: 1e-6, Theta: 1e6, Window: 512,
	}
	published := Config{
		Seed: 1, Name: "gpt-oss-20b", Family: GPTOSS, Layers: 24, Hidden: 2880, FeedForward: 2880, QueryHeads: 64, KVHeads: 8, HeadSize: 64,
		Context: 131072, Vocabulary: 201088, NormEps: 1e-5, Theta: 150000, Window: 128, Untied: true,
		Experts: Experts{Count: 32, PerToken: 4, FeedForward: 2880}, Scaling: Scaling{Kind: "yarn", Factor: 32, Original: 4096, Fractional: true},
	}
	newer := Config{
		Seed: 1, Name: "qwen3.5-0.8b", Family: Qwen35, Layers: 24, Hidden: 1024, FeedForward: 3584, QueryHeads: 8, KVHeads: 2, HeadSize: 256,
		Context: 262144, Vocabulary: 248320, NormEps: 1e-6, Theta: 1e7,
		Hybrid: Hybrid{Interval: 4, KeyHeads: 16, KeySize: 128, ValueHeads: 16, ValueSize: 128, Taps: 4, Rotary: 0.25},
	}
	sparse := newer
	sparse.Name, sparse.Layers, sparse.Hidden, sparse.FeedForward, sparse.QueryHeads, sparse.Untied = "qwen3.5-35b-a3b", 40, 2048, 512, 16, true
	sparse.Hybrid.ValueHeads, sparse.Experts = 32, Experts{Count: 256, PerToken: 8, FeedForward: 512, Shared: 512}
	return []shape{
		{"qwen3.5-35b-a3b", func(float64) Config { return sparse }},
		{"gpt-oss-20b", func(float64) Config { return published }},
		{"qwen3.5-0.8b", func(float64) Config { return newer }},
		{"tiny", func(float64) Config { return Default() }},
		{"llama-4gb", func(bits float64) Config { return Sized(4e9, bits) }},
		{"gemma3-1b", func(float64) Config { return gemma }},
		{"qwen3-30b-a3b", func(float64) Config { return mixture }},
		{"qwen3-0.6b", func(float64) Config { return qwen3("qwen3-0.6b", 1024, 3072, 28, 16, false) }},
		{"qwen3-8b", func(float64) Config { return qwen3("qwen3-8b", 4096, 12288, 36, 32, true) }},
	}
}

// Shape is a named size: tiny, a Llama of 4 GB in a format with this many bits
// per weight, Qwen3 of 0.6 and 8 billion weights and of 30 billion with
// experts, GPT-OSS of 20 billion, Gemma 3 of 1 billion, or a Qwen3.5 of 0.8
// billion or, with experts, of 35.
func Shape(name string, bits float64) (Config, error) {
	var names []string
	for _, s := range shapes() {
		if s.name == name {
			return s.make(bits), nil
		}
		names = append(names, s.name)
	}
	slices.Sort(names)
	return Config{}, fmt.Errorf("tiny model: shape %q is unknown, want one of %s", name, strings.Join(names, ", "))
}
