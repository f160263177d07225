package family

// exaone4 is EXAONE 4: norms stand after both halves of a block and none before,
// every head of queries and keys is normed, and where some layers see a window
// the others are not rotated.
func exaone4() Family {
	return Family{
		Name: "exaone4", Models: "EXAONE 4", Types: []string{"exaone4"}, Context: 1 << 11, Theta: 10000,
		Read: func(c *Config, d *Dimensions) {
			d.HeadNorm = EachHead
			pattern := c.value("sliding_window_pattern")
			if c.value("sliding_window") == nil {
				c.kinds(d.Layers, "full_attention")
				return
			}
			n := 4
			if s, ok := pattern.(string); ok && s != "" { // "LLLG": mlx-lm's words for it
				n = len(s)
			} else if pattern != nil {
				n = c.integer(1, 1<<12, "sliding_window_pattern")
			}
			c.windows(d, n)
			d.Still = d.Everywhere
		},
		Block: postNorm,
	}
}
