// Package mlx computes through MLX, Apple's array framework: on the GPU of a
// Mac, on an NVIDIA GPU, or on a processor, whichever libmlx is linked. It is
// built with the tag mlx and cgo alone (make mlx); without the tag there is
// nothing in it.
//
// It owns the C++ files that call libmlx (bridge_*.cpp, declared to Go in
// bridge.h) and the one thread that may: a back end belongs to the goroutine that attached it, the
// bridge refuses every other thread (tensor.ErrThread), and every C++ exception
// becomes a Go error. It refuses to allocate past its own limit
// (tensor.ErrMemory): the framework's limit only makes it wait.
//
// Operations build a graph; it is computed when something is read or started.
// What nobody holds by then is reused while computing, so handles are released
// first: a replaced key or value cache at once, everything else when its scope
// closes.
//
// Where the framework is slow and a Mac is not concerned, there is something
// beside it: on NVIDIA GPUs kernels for a few rows (few_rows.h) and one for
// attention of pieces and answers of a step (ragged.h, ragged.go), on a processor
// a second core for large products (bridge_ops.cpp, multiply_in_halves).
//
// Start reading at Backend, then scope.go and cache.go.
package mlx
