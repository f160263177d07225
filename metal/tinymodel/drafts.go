package tinymodel

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Drafts is the draft head of a Qwen3.5, which guesses the token after the next.
type Drafts int

// The heads: none, one that guesses at random, and one that is often right, of a model of
// which the newest token decides most.
const (
	NoDrafts Drafts = iota
	RandomDrafts
	LikelyDrafts
)

// validDrafts says whether the family has such a head.
func (c Config) validDrafts() bool { return c.Drafts == NoDrafts || c.Family == Qwen35 }

// drafted adds the tensors of the head.
func (c Config) drafted(all []tensor) []tensor {
	if c.Drafts == NoDrafts {
		return all
	}
	head := []tensor{
		c.norm("pre_fc_norm_embedding", "", c.Hidden), c.norm("pre_fc_norm_hidden", "", c.Hidden), c.norm("norm", "", c.Hidden),
		matrix("fc", "", c.Hidden, 2*c.Hidden, 1),
	}
	for _, t := range slices.Concat(c.attention(), c.norms(), c.feedForward(c.Hybrid.Interval-1)) {
		t.path = "layers.0." + t.path
		head = append(head, t)
	}
	for i := range head {
		head[i].path = "mtp." + head[i].path
	}
	all = append(all, head...)
	if c.Drafts == LikelyDrafts {
		c.agree(all)
	}
	return all
}

// agree makes the layers of the model add little, and those of the head nothing to the
// embedding of the newest token, from which both then choose alike.
func (c Config) agree(all []tensor) {
	for i := range all {
		t := &all[i]
		ends := slices.ContainsFunc([]string{".o_proj", ".out_proj", ".down_proj"}, func(s string) bool { return strings.HasSuffix(t.path, s) })
		switch {
		case t.path == "mtp.fc":
			t.values = values{}
			for j := range c.Hidden {
				t.ones = append(t.ones, one{j, j, 1})
			}
		case ends && strings.HasPrefix(t.path, "mtp."):
			t.values = values{}
		case ends:
			t.values.std /= float64(c.Layers) * 2 / 3
		}
	}
}

// floatsWith are floats with numbers among them that are not like all others.
func (t tensor) floatsWith(kind quant.Type, fill func([]byte), rowBytes int) func([]byte) {
	from := 0
	return func(rows []byte) {
		fill(rows)
		n := len(rows) / rowBytes
		for _, o := range t.ones {
			if o.row >= from && o.row < from+n {
				kind.Put(rows[(o.row-from)*rowBytes:], o.col, o.value)
			}
		}
		from += n
	}
}

// errDrafts returns the error of a head that cannot be.
func (c Config) errDrafts() error {
	return fmt.Errorf("tiny model: %s has no draft head", c.Family)
}

// DraftCases are models whose draft heads a reference has computed: both layouts, dense and
// with experts, with tied output heads and without.
func DraftCases() []Case {
	f32, packed := quant.DenseOf(quant.Float32), quant.AffineOf(4, 32, quant.Float32)
	experts := func(c *Config, _ *Layout) {
		c.Experts = Experts{Count: 6, PerToken: 2, FeedForward: 128, Shared: 64}
	}
	out := []Case{
		changed(Qwen35, "float32 drafts", f32, nil), changed(Qwen35, "float32 experts drafts", f32, experts),
		changed(Qwen35, "4 bits by 32 float32 drafts", packed, func(c *Config, _ *Layout) { c.Untied = true }), changed(Qwen35, "4 bits by 32 float32 experts drafts", packed, experts),
	}
	for i := range out {
		out[i].Config.Drafts, out[i].Config.Seed = RandomDrafts, hybridSeeds+100+uint64(i)
	}
	return out
}
