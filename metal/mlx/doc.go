// Package mlx computes with MLX, Apple's array framework: on the GPU of a Mac,
// on an NVIDIA GPU, or on a processor, depending on the linked libmlx. It needs
// the build tag mlx and cgo (make mlx); without the tag the package is empty.
//
// It owns the C++ files that call libmlx (bridge_*.cpp, declared for Go in
// bridge.h) and the one thread that may call them: a backend belongs to the
// goroutine that attached it, the bridge refuses every other thread
// (tensor.ErrThread), and every C++ exception becomes a Go error. Allocations
// beyond the package's own limit fail (tensor.ErrMemory), because the
// framework's limit only makes it wait.
//
// Operations build a graph, which is computed when something is read or
// started. Memory of released handles is reused while computing, so handles are
// released first: a replaced key or value cache at once, everything else when
// its scope closes.
//
// Some operations that are slow in the framework are replaced, on devices other
// than Macs: on NVIDIA GPUs by kernels for a few rows (few_rows.h), for
// attention of decodes and prefill chunks in one step (ragged.h, ragged.go), for
// experts (experts.h), and for decode steps of recurrent layers and of attention by
// latent or large heads (recur_step.h, attend_step.h), on a processor by a second core for large products (bridge_ops.cpp,
// multiply_in_halves).
//
// Start reading at Backend, then scope.go and cache.go.
package mlx
