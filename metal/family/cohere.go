package family

import "fmt"

// cohere is Command R: both halves of a block read the same LayerNorm without
// bias; rotated pairs are interleaved, logits are scaled.
func cohere() Family {
	return Family{
		Name: "cohere", Models: "Command R", Types: []string{"cohere"}, Context: 1 << 13, Interleaved: true, Eps: "layer_norm_eps",
		Read:  readCohere,
		Block: parallelBlock,
	}
}

// cohere2 is Command R7B and Command A: Command R with a sliding window in
// three of four layers; only those layers rotate heads.
func cohere2() Family {
	return Family{
		Name: "cohere2", Models: "Command R7B, Command A", Types: []string{"cohere2"}, Context: 1 << 13, Interleaved: true, Eps: "layer_norm_eps",
		Read: func(c *Config, d *Dimensions) {
			readCohere(c, d)
			c.windows(d, c.integerOr(4, 1, 1<<12, "sliding_window_pattern"))
			d.Still = d.Everywhere
		},
		Block: parallelBlock,
	}
}

// readCohere reads the options that both families share.
func readCohere(c *Config, d *Dimensions) {
	d.MeanNorm = true
	d.Bias = c.flag("attention_bias")
	d.OutBias = d.Bias
	d.LogitScale = c.number(1e-9, 1e9, "logit_scale") // the references' defaults differ
	for _, name := range []string{"use_qk_norm", "layer_norm_bias"} {
		if c.flag(name) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
		}
	}
}

// parallelBlock has one norm, which both halves read.
func parallelBlock(d Dimensions, i int) Block {
	b := preNorm(d, i)
	b.Parallel, b.BeforeFeed = true, Norm{}
	return b
}
