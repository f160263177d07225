package tensor

// Function is computed for each element by itself (Scope.Map). A new one needs a type here,
// a case in each back end and a test in tensortest.
type Function interface {
	// Function is its name.
	Function() string
}

// SiLU is x * sigmoid(x).
type SiLU struct{}

// Softplus is ln(1 + e^x), computed in float32.
type Softplus struct{}

// ReLU2 is the square of max(0, x).
type ReLU2 struct{}

// Tanh is the hyperbolic tangent.
type Tanh struct{}

// GELU is x/2 * (1 + erf(x/sqrt(2))) or, with Tanh,
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
type GELU struct{ Tanh bool }

// XIELU is Positive*x^2 + Beta*x where x is more than 0, and
// Negative*(e^min(x, Eps) - 1 - x) + Beta*x elsewhere (Eps is 0 or less)
// (https://arxiv.org/abs/2411.13010).
type XIELU struct{ Positive, Negative, Beta, Eps float32 }

// Clip is min(max(x, Low), High); bounds may be infinite.
type Clip struct{ Low, High float32 }

// ScaleShift is Scale*x + Shift.
type ScaleShift struct{ Scale, Shift float32 }

// Function is the name.
func (SiLU) Function() string { return "SiLU" }

// Function is the name.
func (Softplus) Function() string { return "Softplus" }

// Function is the name.
func (ReLU2) Function() string { return "ReLU2" }

// Function is the name.
func (Tanh) Function() string { return "Tanh" }

// Function is the name.
func (GELU) Function() string { return "GELU" }

// Function is the name.
func (XIELU) Function() string { return "XIELU" }

// Function is the name.
func (Clip) Function() string { return "Clip" }

// Function is the name.
func (ScaleShift) Function() string { return "ScaleShift" }

// GLU is a gated linear unit (https://arxiv.org/abs/2002.05202): how the elements of a gate
// and of the values that it lets through make a result (Scope.GLU). A new one needs what a
// Function needs.
type GLU interface {
	// GLU is its name.
	GLU() string
}

// SwiGLU is SiLU(gate) * up.
type SwiGLU struct{}

// GeGLU is GELU(gate) * up, with the GELU that uses tanh.
type GeGLU struct{}

// ClampedSwiGLU is g * sigmoid(Alpha*g) * (u + 1), where g = min(gate, Limit) and u is up
// clamped to [-Limit, Limit]: the gate of GPT-OSS.
type ClampedSwiGLU struct{ Alpha, Limit float32 }

// LimitedSwiGLU is min(SiLU(gate), Limit) * u, where u is up clamped to [-Limit, Limit].
type LimitedSwiGLU struct{ Limit float32 }

// GLU is the name.
func (SwiGLU) GLU() string { return "SwiGLU" }

// GLU is the name.
func (GeGLU) GLU() string { return "GeGLU" }

// GLU is the name.
func (ClampedSwiGLU) GLU() string { return "ClampedSwiGLU" }

// GLU is the name.
func (LimitedSwiGLU) GLU() string { return "LimitedSwiGLU" }
