//go:build !mlx

package backends

// frameworks lists the back ends other than ref; this build has none.
func frameworks() []Kind { return nil }
