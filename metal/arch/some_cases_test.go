//go:build race || (amd64 && !goexperiment.simd)

package arch_test

// everyCase: without vector instructions arithmetic is some ten times slower,
// and under the race detector fifty times; only every eighth case runs. The
// detector looks at how a step is shared among threads, which depends little on
// the case.
const everyCase = 8
