package nn

import (
	"math"
)

// curve is what a layer has learned of its XIELU.
type curve struct{ alphaP, alphaN, beta, eps []float32 }

// positive is the factor of the square.
func (c *curve) positive() float32 { return softplus(c.alphaP[0]) }

// negative is the factor of the exponential.
func (c *curve) negative() float32 { return c.beta[0] + softplus(c.alphaN[0]) }

func softplus(v float32) float32 { return float32(math.Log1p(math.Exp(float64(v)))) }

// newCurve declares the numbers of an XIELU under a path; those that are no weights
// have defaults.
func newCurve(l *Loader, path string) *curve {
	c := &curve{beta: []float32{0.5}, eps: []float32{-1e-6}}
	for _, n := range []struct {
		name string
		to   *[]float32
		must bool
	}{{".alpha_p", &c.alphaP, true}, {".alpha_n", &c.alphaN, true}, {".beta", &c.beta, false}, {".eps", &c.eps, false}} {
		if l.holds(path+n.name, n.must) {
			l.host(path+n.name, n.to)
		}
	}
	return c
}
