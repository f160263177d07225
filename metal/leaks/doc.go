// Package leaks looks for memory that is not given back: it runs a tiny random
// model on each back end of this build through many ragged forward passes,
// through a fault at every operation of one pass, and through requests that
// are cancelled at any moment. After each part the back end must hold what it
// held before, and the process at most a bound more; a step may never take more
// than a formula allows.
//
// It owns the measurement and the bounds. It measures no speed.
//
//	go test ./metal/leaks                                 a small part, in seconds
//	go test -count=1 -v -timeout 0 ./metal/leaks -long    10,000 passes, 1,000 cancelled requests
//	bash hack/mlx/go.sh test ./metal/leaks                the same with MLX
//
// Start reading at TestNothingLeaks.
package leaks
