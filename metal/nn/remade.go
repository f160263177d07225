package nn

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// remake loads a stack of matrices that are kept in another form than they lie in
// (weights.Entry.Made). It needs memory for one of them at most: a head of latent
// attention, or an expert.
func (t *tensors) remake(reading *weights.Reading, e weights.Entry, set func(tensor.Matrix)) error {
	made, remade := e.Made()
	if e.Format.Quantized() && !remade {
		return fmt.Errorf("rows of quantised columns: %w", weights.ErrUnsupported)
	}
	rows, columns, fill := e.Rows(), e.Columns(), t.requantised
	if e.Turned() {
		if err := onHost(e, t.file.Bytes()); err != nil {
			return err
		}
		_, taken := e.Taken()
		rows, columns, fill = int(e.Shape[0])*taken, int(e.Shape[1]), t.turned
	}
	m, err := t.backend.LoadMatrix(made, rows, columns, func(put func(int, quant.Row) error) error {
		return fill(reading, e, made, put)
	})
	if err != nil {
		return err
	}
	t.matrices = append(t.matrices, m)
	set(m)
	return nil
}

// requantised quantises each row again.
func (t *tensors) requantised(reading *weights.Reading, e weights.Entry, made quant.Format, put func(int, quant.Row) error) error {
	sizes, err := e.Format.Sizes(e.Columns())
	if err != nil {
		return err
	}
	return reading.Place(e, func(first int, r quant.Row) error {
		n, values := len(r.Raw)/sizes.Raw, make([]float32, e.Columns())
		out, err := made.NewRow(n * e.Columns())
		if err != nil {
			return err
		}
		for i := range n {
			if err := e.Format.DequantizeRounded(r.At(i, sizes), values); err != nil {
				return err
			}
			if err := made.Quantize(values, out.At(i, sizes)); err != nil {
				return err
			}
		}
		return t.putMade(first, out, put)
	})
}

// turned makes rows of the columns of each matrix.
func (t *tensors) turned(reading *weights.Reading, e weights.Entry, made quant.Format, put func(int, quant.Row) error) error {
	in, size := int(e.Shape[1]), e.Format.Type.Bytes()
	first, out := e.Taken()
	matrix, numbers := make([]byte, in*out*size), numbersOf(e, made)
	return reading.Rows(e, func(row int, r quant.Row) error {
		raw, err := numbers(r)
		if err != nil {
			return err
		}
		column := row % in
		for i := range out {
			copy(matrix[(i*in+column)*size:], raw[(first+i)*size:(first+i+1)*size])
		}
		if column < in-1 {
			return nil
		}
		rows, err := rowsOf(matrix, out, made)
		if err != nil {
			return err
		}
		return t.putMade(row/in*out, rows, put)
	})
}

func (t *tensors) putMade(first int, rows quant.Row, put func(int, quant.Row) error) error {
	t.progress(int64(len(rows.Raw) + len(rows.Scales) + len(rows.Biases)))
	return put(first, rows)
}

// numbersOf returns what gives the numbers that a row means, in the type of its format and
// valid until the next row. Those that are quantised again are rounded as MLX rounds them.
func numbersOf(e weights.Entry, made quant.Format) func(quant.Row) ([]byte, error) {
	if !e.Format.Quantized() {
		return func(r quant.Row) ([]byte, error) { return r.Raw, nil }
	}
	kind, dequantize := e.Format.Type, e.Format.Dequantize
	if made.Quantized() {
		dequantize = e.Format.DequantizeRounded
	}
	values, raw := make([]float32, e.Columns()), make([]byte, e.Columns()*kind.Bytes())
	return func(r quant.Row) ([]byte, error) {
		err := dequantize(r, values)
		for i, v := range values {
			kind.Put(raw, i, v)
		}
		return raw, err
	}
}

// rowsOf quantises a matrix of numbers, where made is quantised.
func rowsOf(matrix []byte, rows int, made quant.Format) (quant.Row, error) {
	if !made.Quantized() {
		return quant.Row{Raw: matrix}, nil
	}
	values := make([]float32, len(matrix)/rows/made.Type.Bytes())
	sizes, err := made.Sizes(len(values))
	if err != nil {
		return quant.Row{}, err
	}
	out, err := made.NewRow(rows * len(values))
	if err != nil {
		return quant.Row{}, err
	}
	for row := range rows {
		for i := range values {
			values[i] = made.Type.At(matrix, row*len(values)+i)
		}
		if err := made.Quantize(values, out.At(row, sizes)); err != nil {
			return quant.Row{}, err
		}
	}
	return out, nil
}
