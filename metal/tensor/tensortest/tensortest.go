// Package tensortest is the suite that every back end of package tensor
// passes. It owns plain scalar oracles in float64, written for reading and
// never for speed, and the rules of scopes, limits and caches as tests. It
// refuses to know how a back end works.
//
// Start reading at Run.
package tensortest

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Suite configures what to test and how strictly.
type Suite struct {
	// New makes a back end; the suite closes it and wants no leak.
	New func(t *testing.T) tensor.Backend
	// Tolerance is the largest relative error against the oracles.
	Tolerance float64
	// Angle is the largest error of an angle that Rope turns by, relative to the
	// position: who computes angles in float32 is off by more farther out.
	Angle float64
	// Bitwise wants equal bits for any number of rows and any chunking.
	Bitwise bool
}

// elementSuite has the tests of operations on elements and rows of arrays.
type elementSuite struct{ Suite }

// matrixSuite has the tests of weight matrices and experts.
type matrixSuite struct{ Suite }

// cacheSuite has the tests of attention, recurrence and their caches.
type cacheSuite struct{ Suite }

// Run runs the whole suite.
func Run(t *testing.T, s Suite) {
	elements, matrices, caches := elementSuite{s}, matrixSuite{s}, cacheSuite{s}
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Elementwise", elements.elementwise}, {"UnknownFunctions", elements.unknown}, {"SwiGLU", elements.swiglu}, {"GeGLU", elements.geglu}, {"ClampedSwiGLU", elements.clampedSwiGLU}, {"LimitedSwiGLU", elements.limitedSwiGLU}, {"Softplus", elements.softplus}, {"Exceed", elements.exceed}, {"MixRuns", elements.mixRuns}, {"Level", elements.level}, {"ScaleShift", elements.scaleShift}, {"RMSNorm", elements.rmsNorm}, {"Rope", elements.rope},
		{"Rows", elements.rows}, {"Place", elements.place}, {"Mean", elements.mean}, {"Unit", elements.unit},
		{"IDs", s.ids}, {"Argmax", s.argmax}, {"EmbedWhatWasChosen", s.chosen}, {"JoinIDs", s.joined}, {"IDsAndNumbers", s.kinds}, {"Start", s.start},
		{"LinearBias", matrices.linearBias}, {"Route", matrices.route}, {"RouteTop", matrices.routeTop}, {"RouteBy", matrices.routeBy}, {"ReLU2AndXIELU", elements.curves}, {"LinearOf", matrices.linearOf}, {"LinearOfRowsAreIndependent", matrices.independentOf}, {"Combine", matrices.combine},
		{"LinearAndEmbed", matrices.linear}, {"LinearRowsAreIndependent", matrices.independent}, {"DenseWeightsThatAreNotFinite", matrices.special},
		{"ConcurrentLoad", matrices.concurrent}, {"Vectors", matrices.vectors}, {"MatrixErrors", matrices.matrixErrors},
		{"AttendHistories", caches.attend}, {"CacheErrors", caches.cacheErrors},
		{"RecurHistories", caches.recur}, {"RecurInAnyChunks", caches.recurChunks}, {"RecurErrors", caches.recurErrors}, {"RecurForgets", caches.recurForgets}, {"RecurDrafts", caches.recurDrafts},
		{"Rotating", caches.rotating}, {"RotatingForgets", caches.rotatingForgets}, {"RotatingErrors", caches.rotatingErrors},
		{"SavedIsRestored", caches.savedIsRestored}, {"SavedRanges", caches.savedRanges}, {"SavedInCompany", caches.savedInCompany}, {"SavedWhileComputing", caches.savedWhileComputing},
		{"SaveErrors", caches.saveErrors}, {"HalfAStepIsNotSaved", caches.halfAStepIsNotSaved}, {"RestoreUnderALimit", caches.restoreUnderALimit}, {"Staged", caches.staged}, {"Expected", caches.expected},
		{"Split", elements.split}, {"Join", elements.join}, {"LinearEach", matrices.linearEach}, {"SigmoidGate", elements.sigmoidGate}, {"AddGated", elements.addGated}, {"RMSNormGate", elements.rmsNormGate},
		{"AttendAll", s.attendAll}, {"LayerNorm", elements.layerNorm}, {"GELU", elements.gelu}, {"Clip", elements.clip}, {"EncoderShapes", s.encoderShapes},
		{"ScopeLifetime", s.lifetime}, {"ShapeErrors", s.shapeErrors}, {"UseAfterRelease", s.released},
		{"MemoryLimit", s.memoryLimit}, {"MemoryLimitOfEveryOperation", s.limits}, {"PeakOfAStep", s.peak}, {"Trim", s.trim},
		{"CancelledContext", s.cancelled}, {"ThreadThatAttached", s.thread},
	} {
		t.Run(c.name, c.run)
	}
}

// RunMatrices runs what depends on how matrices lie, for back ends that know
// more than one way.
func RunMatrices(t *testing.T, s Suite) {
	matrices := matrixSuite{s}
	t.Run("LinearAndEmbed", matrices.linear)
	t.Run("LinearRowsAreIndependent", matrices.independent)
	t.Run("LinearBias", matrices.linearBias)
	t.Run("LinearOf", matrices.linearOf)
}

// bench is a back end under test with one scope.
type bench struct {
	t   *testing.T
	b   tensor.Backend
	s   tensor.Scope
	rng *rand.Rand
}

func (s Suite) open(t *testing.T) *bench {
	t.Helper()
	b := s.New(t)
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	x := &bench{t: t, b: b, s: b.NewScope(context.Background()), rng: rand.New(rand.NewPCG(1, 2))}
	t.Cleanup(func() {
		x.s.Close()
		if m := b.Memory(); m.Live != 0 {
			t.Errorf("%d arrays are alive after the scope closed", m.Live)
		}
		if err := b.Close(); err != nil {
			t.Errorf("close back end: %v", err)
		}
	})
	return x
}

func (x *bench) random(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(x.rng.NormFloat64())
	}
	return v
}

// read returns the values and fails the test on a fault in the scope.
func (x *bench) read(a tensor.Array) []float32 {
	x.t.Helper()
	n := 1
	for _, d := range a.Shape() {
		n *= d
	}
	out := make([]float32, n)
	x.s.Read(a, out)
	if err := x.s.Err(); err != nil {
		x.t.Fatalf("scope failed: %v", err)
	}
	return out
}

// near compares with an oracle; the error is relative to the largest value.
func (s Suite) near(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	top := 0.0
	for _, v := range want {
		top = max(top, math.Abs(v))
	}
	s.nearOf(t, what, got, want, top)
}

// nearOf checks that errors are small relative to top.
func (s Suite) nearOf(t *testing.T, what string, got []float32, want []float64, top float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i])-want[i]) / max(top, 1e-30); !(d <= s.Tolerance) {
			t.Fatalf("%s: value %d is %v, want %v (error %.3g of the largest)", what, i, got[i], want[i], d)
		}
	}
}
