//go:build !mlx

package arch_test

func frameworks() []backend { return nil }
