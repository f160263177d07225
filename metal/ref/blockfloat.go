package ref

import "metalfleet.dev/metalfleet/metal/quant"

// Small floats lie row by row, as they are loaded, and each row is widened once
// for all tokens of a step, like a dense one of half precision: they are no
// whole numbers that a table of products could serve, and what they mean is
// whole in float32.

// inColumns says whether the words of a matrix lie in columns of groups.
func (m *matrix) inColumns() bool { return m.format.Quantized() && !m.format.BlockFloat() }

// blockRow writes the float32 values of one row of small floats.
//
//go:norace
//go:nocheckptr
func (m *matrix) blockRow(row int, dst []float32) {
	group := m.format.Group
	bytes, groups := m.in*m.format.Bits/8, m.in/group
	raw, scales := m.data[row*bytes:][:bytes], m.scales[row*groups:][:groups]
	for g, s := range scales {
		out, scale := dst[g*group:][:group], m.powers[s]
		if m.format.Mode == quant.MXFP8 {
			for i, b := range raw[g*group:][:group] {
				out[i] = m.elements[b] * scale
			}
			continue
		}
		for i, b := range raw[g*group/2:][:group/2] {
			out[2*i] = m.elements[b&15] * scale
			out[2*i+1] = m.elements[b>>4] * scale
		}
	}
}
