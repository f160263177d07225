//go:build !race

package arch_test

// everyCase: under the race detector only some of the recorded cases run.
const everyCase = 1
