package family

// exaone4 is EXAONE 4: only the results of both halves of a block are normed,
// as is every head of queries and keys. If some layers have a sliding window,
// the others do not rotate heads.
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
