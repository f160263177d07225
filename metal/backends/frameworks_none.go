//go:build !mlx

package backends

// frameworks are the back ends beside ref; this build has none.
func frameworks() []Kind { return nil }
