//go:build race

package arch_test

// everyCase: the detector makes arithmetic some fifty times slower, and looks at
// how a step is shared among threads, which depends little on the case.
const everyCase = 8
