package family

import (
	"math"
	"slices"
)

// gemma3n is the text part of Gemma 3n. Every token has several residuals, of which a layer
// computes one (AltUp); a learned connection of low rank bypasses the attention (LAuReL);
// each layer has its own embedding of the tokens; the gates of early layers keep only values
// far above their mean; and the last layers read the keys and values of earlier ones. Each
// reference has one bound that the other lacks, and we have both: transformers divides by a
// residual's mean square of at least 1e-5, and mlx-lm clips the weights of coefficients to
// altup_coef_clip, as training does.
func gemma3n() Family {
	return Family{
		Name: "gemma3n_text", Models: "Gemma 3n, text only", Types: []string{"gemma3n_text"}, Context: 1 << 15, Theta: 1e6,
		Activations: []string{"gelu_pytorch_tanh"},
		Prepare: func(text map[string]any) {
			if list, byLayer := text["intermediate_size"].([]any); byLayer && len(list) > 0 {
				text["intermediate_size"], text["intermediate_size_by_layer"] = list[0], list
			}
		},
		Read: readGemma3n,
		Block: func(d Dimensions, i int) Block {
			b := sandwich(d, i)
			b.Attention.HeadNorm, b.Attention.ValueNorm = EachHead, true
			b.Inner, b.Streams = d.Inner, d.Streams
			b.Feed.Activation, b.Feed.Sparsity = GELUTanh, at(d.Sparsities, i)
			if i < len(d.Widths) {
				b.Feed.Width = d.Widths[i]
			}
			return b
		},
		Layout: Layout{Wide: true, Ignored: gemma4().Layout.Ignored},
	}
}

func readGemma3n(c *Config, d *Dimensions) {
	c.windows(d, 5)
	readGemmaRope(c, d)
	d.Scale, d.EmbedScale = 1, math.Sqrt(float64(d.Hidden))
	d.LogitCap = c.cap(30, "final_logit_softcapping")
	c.borrowed(d, c.integer(0, 1<<12, "num_kv_shared_layers"))
	d.Inner = c.integerOr(256, 1, 1<<16, "hidden_size_per_layer_input")
	d.InnerVocabulary = c.integerOr(1<<18, 1, 1<<24, "vocab_size_per_layer_input")
	s := Streams{
		Count: c.integerOr(4, 2, 64, "altup_num_inputs"), Rank: c.integerOr(64, 1, 1<<16, "laurel_rank"),
		Clip: c.numberOr(0, 1e-9, 1e9, "altup_coef_clip"), Scaled: c.flagOr(true, "altup_correct_scale"),
	}
	s.Active = c.integerOr(0, 0, int64(s.Count)-1, "altup_active_idx")
	d.Streams = &s
	c.widths(d)
	d.Sparsities = c.numbers("activation_sparsity_pattern")
	if len(d.Sparsities) != d.Layers { // the references' defaults differ
		c.fail(Invalidf("%sactivation_sparsity_pattern has %d values, want %d", c.inside, len(d.Sparsities), d.Layers))
	}
	if most := slices.Max(append(d.Sparsities, 0)); most >= 1 {
		c.fail(Invalidf("%sactivation_sparsity_pattern contains %v, want numbers less than 1", c.inside, most))
	}
}

// widths reads an intermediate_size that has a number for each layer; FeedForward becomes
// the largest.
func (c *Config) widths(d *Dimensions) {
	list := c.list("intermediate_size_by_layer")
	if len(list) == 0 {
		return
	}
	if len(list) != d.Layers {
		c.fail(Invalidf("%sintermediate_size has %d values, want %d", c.inside, len(list), d.Layers))
		return
	}
	for _, v := range list {
		n, ok := WholeNumber(v)
		if !ok || n < 1 || n > 1<<22 {
			c.fail(Invalidf("%sintermediate_size contains %s, want whole numbers from 1 to %d", c.inside, Shown(v), 1<<22))
			return
		}
		d.Widths = append(d.Widths, int(n))
	}
	d.FeedForward = slices.Max(d.Widths)
}
