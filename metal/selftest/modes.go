package selftest

import (
	"metalfleet.dev/metalfleet/metal/quant"
)

// mode is the type that weights have, and with them activations.
type mode struct{ t quant.Type }

func modes() []mode { return []mode{{quant.Float32}, {quant.Float16}, {quant.BFloat16}} }

// tolerance is the most that a back end may be off, as a part of the largest
// value: of products with packed matrices, of other products and attention, and
// of everything else.
type tolerance struct {
	packed, product, plain map[quant.Type]float64
	// angle is for each position that a head is turned by: who computes angles
	// in float32 is off by more farther out.
	angle float64
	// wide back ends compute in float32 regardless of the type of the weights.
	wide bool
}

// toleranceOf a back end: about 3 times what was seen of it. Half types round
// every result, float16 to 11 bits and bfloat16 to 8; a processor also sums up
// packed products in them. Where GPUs multiply float32 they may round operands
// to TF32, 11 bits, and compute exp, sin and cos with fewer bits than a
// processor does.
func toleranceOf(about map[string]string) tolerance {
	of := func(float32s, float16s, bfloat16s float64) map[quant.Type]float64 {
		return map[quant.Type]float64{quant.Float32: float32s, quant.Float16: float16s, quant.BFloat16: bfloat16s}
	}
	product, plain := of(5e-6, 4e-3, 2e-2), of(2e-6, 2e-3, 1e-2)
	switch {
	case about["version"] == "":
		all := of(5e-6, 5e-6, 5e-6)
		return tolerance{packed: all, product: all, plain: all, wide: true}
	case about["device"] == "gpu":
		product, plain = of(2e-3, 4e-3, 2e-2), of(2e-5, 2e-3, 1e-2)
		return tolerance{packed: product, product: product, plain: plain, angle: 1e-7}
	}
	return tolerance{packed: of(5e-6, 2e-2, 0.15), product: product, plain: plain, angle: 1e-7}
}

func (x *bench) packed() float64  { return x.tolerance.packed[x.mode.t] }
func (x *bench) product() float64 { return x.tolerance.product[x.mode.t] }
func (x *bench) plain() float64   { return x.tolerance.plain[x.mode.t] }

// checks of all operations and formats in this mode.
func (m mode) checks() []check {
	all := []check{
		{"numbers and ids in and out", transfers},
		{"Add, Multiply, SiLU, SwiGLU", elementwise},
		{"RMSNorm", rmsNorm},
		{"Rope", rope},
		{"Rows, Mean, Unit", pooling},
		{"Argmax", argmax},
	}
	for _, c := range attentions() {
		all = append(all, check{c.name, c.run})
	}
	all = append(all, formats()...)
	for i, c := range all {
		all[i] = check{m.t.String() + ": " + c.name, func(x *bench) {
			if x.start(m) {
				c.run(x)
			}
		}}
	}
	return all
}
