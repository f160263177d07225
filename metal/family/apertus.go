package family

import "fmt"

// apertus is Apertus: Llama's block with normed query and key heads and an
// ungated feed-forward whose activation (XIELU) has learned parameters per
// layer.
func apertus() Family {
	return Family{
		Name: "apertus", Models: "Apertus", Types: []string{"apertus"}, Context: 1 << 16, Theta: 12e6, Activations: []string{"xielu"},
		Read: func(c *Config, d *Dimensions) {
			d.Bias = c.flag("attention_bias")
			d.OutBias, d.FeedBias, d.HeadNorm = d.Bias, c.flag("mlp_bias"), EachHead
			if !c.flagOr(true, "qk_norm") || c.flag("post_norm") {
				c.fail(fmt.Errorf("%sqk_norm and %spost_norm: %w", c.inside, c.inside, &UnsupportedError{"value", "other than of Apertus", []string{"true and false"}}))
			}
		},
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			b.Before, b.BeforeFeed = rms("attention_layernorm"), rms("feedforward_layernorm")
			b.Feed.Plain, b.Feed.Activation = true, XIELU
			return b
		},
	}
}

// xieluNames are the parameters of an XIELU.
func xieluNames() []string {
	return []string{"act_fn.alpha_p", "act_fn.alpha_n", "act_fn.beta", "act_fn.eps"}
}
