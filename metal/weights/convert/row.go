package convert

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/quant"
)

// converter rewrites rows of one tensor from one format to another. It is used
// by one goroutine.
type converter struct {
	from, to quant.Format
	kind     quant.Type // that values are rounded to
	columns  int
	less     float32
	out      quant.Row
	values   []float32
}

func newConverter(t tensor) (*converter, error) {
	c := &converter{from: t.entry.Format, to: t.format, kind: t.cast, columns: t.entry.Columns(), less: t.less}
	var err error
	if c.out, err = c.to.NewRow(c.columns); err != nil {
		return nil, err
	}
	if !c.regroups() {
		c.values = make([]float32, c.columns)
	}
	return c, nil
}

// regroups reports whether the words of quantised rows stay as they are.
func (c *converter) regroups() bool {
	return c.from.Quantized() && c.to.Quantized() && !c.from.BlockFloat() && !c.to.BlockFloat() && c.from.Bits == c.to.Bits && c.from.Group == c.to.Group
}

// row gives r in the new format; it is valid until the next call.
func (c *converter) row(r quant.Row) (quant.Row, error) {
	if err := c.from.CheckRow(c.columns, r); err != nil {
		return quant.Row{}, err
	}
	switch {
	case c.from == c.to && c.less == 0:
		return r, nil
	case c.regroups():
		return c.regrouped(r)
	}
	if err := c.from.Dequantize(r, c.values); err != nil {
		return quant.Row{}, err
	}
	for i := range c.values {
		c.values[i] -= c.less
	}
	if !c.to.Quantized() {
		return c.out, c.cast(c.values, c.out.Raw)
	}
	// As if the weights had been cast first, which is what mlx-lm does.
	if err := c.cast(c.values, nil); err != nil {
		return quant.Row{}, err
	}
	if err := c.to.Quantize(c.values, c.out); err != nil {
		return quant.Row{}, err
	}
	return c.out, c.to.CheckRow(c.columns, c.out)
}

// regrouped keeps the words. A symmetric scale * (q - z) is the affine
// scale * q + (-z * scale): z is a power of two, so that the bias is exact.
func (c *converter) regrouped(r quant.Row) (quant.Row, error) {
	groups := c.columns / c.from.Group
	for g := range groups {
		scale := c.from.Type.At(r.Scales, g)
		bias := -scale * float32(int(1)<<(c.from.Bits-1))
		if c.from.Mode == quant.Affine {
			bias = c.from.Type.At(r.Biases, g)
		}
		c.to.Type.Put(c.out.Scales, g, scale)
		c.to.Type.Put(c.out.Biases, g, bias)
	}
	if err := c.to.CheckRow(c.columns, c.out); err != nil {
		return quant.Row{}, fmt.Errorf("%w as %v: %w", errRange, c.to.Type, err)
	}
	return quant.Row{Raw: r.Raw, Scales: c.out.Scales, Biases: c.out.Biases}, nil
}

// cast rounds values to the new type, into raw if it is given. A finite value
// that becomes infinite is errRange.
func (c *converter) cast(values []float32, raw []byte) error {
	var one [4]byte
	for i, v := range values {
		at, k := one[:], 0
		if raw != nil {
			at, k = raw, i
		}
		c.kind.Put(at, k, v)
		values[i] = c.kind.At(at, k)
		if math.IsInf(float64(values[i]), 0) && !math.IsInf(float64(v), 0) {
			return fmt.Errorf("%w: %v as %v; choose a wider type", errRange, v, c.kind)
		}
	}
	return nil
}
