//go:build !goexperiment.simd || !amd64

package ref

// hasVectors reports that there are none: everything is looked up.
func hasVectors() bool { return false }

func vectorDots(*vector, []byte, int, int, int, int, bool) { noVectors() }

func vectorScales(*vector, *column, int) { noVectors() }

func vectorScaled([]float32, []int32, []float32, []float32, float32, float32) { noVectors() }

func vectorScaledPlanes([]float32, []int32, []int32, []float32, []float32, float32, float32, float64) {
	noVectors()
}

func noVectors() { panic("ref: vector kernels are not in this program") }
