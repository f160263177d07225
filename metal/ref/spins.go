//go:build !race

package ref

// spins is how often a worker looks for new work before it sleeps: layers
// follow one another within microseconds, and a wake-up costs as much.
const spins = 4000
