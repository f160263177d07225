//go:build !mlx

package embed_test

func frameworks() []backend { return nil }
