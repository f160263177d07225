//go:build !goexperiment.simd || !amd64

package ref

// hasVectors reports that there are none: everything is looked up.
func hasVectors() bool { return false }

func hasWideVectors() bool { return false }

func vectorDots(*vector, []byte, int, int, int, int, bool) { noVectors() }

func vectorScales(*vector, *column, int) { noVectors() }

func vectorScaled([]float32, []int32, []float32, []float32, float32, float32, int32, bool) {
	noVectors()
}

func vectorSpread(*[digits]repeated, *[groupSize]int32, int) { noVectors() }

func vectorScaledPlanes([]float32, []int32, []int32, []float32, []float32, float32, float32, int32, float64) {
	noVectors()
}

func noVectors() {
	if !hasVectors() {
		panic("ref: this build has no vector kernels")
	}
}

func vectorDotRows([]float32, []float32, []float32, int, float32) { noVectors() }

func vectorAddRows([]float32, []float32, []float32, int) { noVectors() }

func vectorAccumulate([]float32, []float32, []float32) { noVectors() }

func vectorMax([]float32, float32) float32 { noVectors(); return 0 }

func vectorExp([]float32, float32) { noVectors() }

func vectorSwiGLU([]float32, []float32, []float32) { noVectors() }

func vectorFixed(*[groupSize]int32, []float32, float32) int32 { noVectors(); return 0 }

func vectorTop([]float32) float32 { noVectors(); return 0 }
