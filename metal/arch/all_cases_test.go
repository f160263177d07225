//go:build !race && (!amd64 || goexperiment.simd)

package arch_test

// everyCase: all recorded cases run.
const everyCase = 1
