package vision

import (
	"fmt"
	"math"
)

// Sizing is how a processor chooses the size of an image.
type Sizing int

const (
	// Fixed scales every image to Width x Height and does not keep its shape.
	Fixed Sizing = iota + 1
	// Bounded keeps the shape, and the number of pixels from MinPixels to MaxPixels
	// (Qwen).
	Bounded
	// Filled keeps the shape, and makes as many tokens as fit into MaxTokens
	// (Gemma 4).
	Filled
)

// Processor prepares images for one model's vision tower.
type Processor struct {
	Sizing Sizing
	// Width and Height are for Fixed, MinPixels and MaxPixels for Bounded, MaxTokens
	// for Filled.
	Width, Height        int
	MinPixels, MaxPixels int
	MaxTokens            int
	Filter               Filter
	// Patch is the side of a patch in pixels, and Merge the side of a block of patches
	// that become one token.
	Patch, Merge int
	// Frames is how many times a patch is repeated: a still image is a video of as
	// many equal frames.
	Frames int
	// ChannelsLast is the order of values in a patch: [Patch, Patch, 3] for each frame
	// instead of [3, Frames, Patch, Patch].
	ChannelsLast bool
	// Values of pixels are multiplied by Rescale; then Mean is subtracted and the
	// result divided by Std.
	Rescale   float64
	Mean, Std [3]float64
}

// Patches are an image as its tower reads it: rows of values, block after block of
// Merge x Merge patches. Blocks, and patches in a block, follow in rows from the top.
type Patches struct {
	// Rows and Columns of patches in the image.
	Rows, Columns int
	// Values has Width numbers for each patch.
	Values []float32
	Width  int
}

// maxRatio is the longest shape that Bounded accepts.
const maxRatio = 200

// Grid returns how many rows and columns of patches an image of a size becomes. The
// error is ErrShape.
func (p Processor) Grid(width, height int) (rows, columns int, err error) {
	if width < 1 || height < 1 {
		return 0, 0, fmt.Errorf("%w: %d x %d pixels", ErrShape, width, height)
	}
	w, h := p.Width, p.Height
	switch p.Sizing {
	case Bounded:
		w, h, err = p.bounded(float64(width), float64(height))
	case Filled:
		w, h, err = p.filled(float64(width), float64(height))
	}
	return h / p.Patch, w / p.Patch, err
}

// Tokens returns how many tokens an image of a size becomes.
func (p Processor) Tokens(width, height int) (int, error) {
	rows, columns, err := p.Grid(width, height)
	return rows * columns / (p.Merge * p.Merge), err
}

// bounded is transformers' smart_resize (models/qwen2_vl, 5.23): both sides become
// multiples of a block.
func (p Processor) bounded(width, height float64) (int, int, error) {
	if max(width, height)/min(width, height) > maxRatio {
		return 0, 0, fmt.Errorf("%w: %.0f x %.0f pixels, want a ratio of at most %d", ErrShape, width, height, maxRatio)
	}
	block := float64(p.Patch * p.Merge)
	least, most := float64(p.MinPixels), float64(p.MaxPixels)
	w, h := math.RoundToEven(width/block)*block, math.RoundToEven(height/block)*block
	switch {
	case w*h > most:
		by := math.Sqrt(height * width / most)
		w, h = max(block, math.Floor(width/by/block)*block), max(block, math.Floor(height/by/block)*block)
	case w*h < least:
		by := math.Sqrt(least / (height * width))
		w, h = math.Ceil(width*by/block)*block, math.Ceil(height*by/block)*block
	}
	return int(w), int(h), nil
}

// filled is transformers' get_aspect_ratio_preserving_size (models/gemma4, 5.23).
func (p Processor) filled(width, height float64) (int, int, error) {
	block := float64(p.Patch * p.Merge)
	pixels := float64(p.MaxTokens*p.Merge*p.Merge) * float64(p.Patch*p.Patch)
	by := math.Sqrt(pixels / (height * width))
	h, w := math.Floor(by*height/block)*block, math.Floor(by*width/block)*block
	longest := float64(p.MaxTokens) * block
	switch {
	case h == 0 && w == 0:
		return 0, 0, fmt.Errorf("%w: %.0f x %.0f pixels", ErrShape, width, height)
	case h == 0:
		h, w = block, min(math.Floor(width/height)*block, longest)
	case w == 0:
		w, h = block, min(math.Floor(height/width)*block, longest)
	}
	if w*h > pixels {
		return 0, 0, fmt.Errorf("%w: %.0f x %.0f pixels", ErrShape, width, height)
	}
	return int(w), int(h), nil
}

// Limited is the processor with at most this many tokens for an image, or what MostTokens returns
// then: larger images are scaled down, as the reference processors do with a smaller max_pixels. A
// Fixed size stays.
func (p Processor) Limited(tokens int) Processor {
	block := p.Patch * p.Merge
	p.MaxPixels = min(p.MaxPixels, tokens*block*block)
	p.MinPixels, p.MaxTokens = min(p.MinPixels, p.MaxPixels), min(p.MaxTokens, tokens)
	return p
}

// MostTokens is the largest number of tokens of an image.
func (p Processor) MostTokens() int {
	block := p.Patch * p.Merge
	switch p.Sizing {
	case Fixed:
		return p.Width / block * (p.Height / block)
	case Bounded:
		return p.mostBounded()
	}
	return p.MaxTokens
}

// mostBounded is more than MaxPixels where the reference exceeds them: where one side is the least,
// a block, or where it rounds up both sides to have MinPixels.
func (p Processor) mostBounded() int {
	block := float64(p.Patch * p.Merge)
	most, least := float64(p.MaxPixels)/(block*block), float64(p.MinPixels)/(block*block)
	longest := math.Sqrt(maxRatio) // of sides whose product is 1
	return int(max(most, longest*math.Sqrt(most), least+math.Sqrt(least)*(longest+1/longest)+1))
}

// Prepare scales, normalizes and cuts an image. The error is ErrShape.
func (p Processor) Prepare(m *RGB) (*Patches, error) {
	m, err := p.Scale(m)
	if err != nil {
		return nil, err
	}
	return p.Cut(m), nil
}

// Scale is the first half of Prepare: it scales an image to the size of its patches. The
// result takes 3 bytes per pixel. The error is ErrShape.
func (p Processor) Scale(m *RGB) (*RGB, error) {
	rows, columns, err := p.Grid(m.Width, m.Height)
	if err != nil {
		return nil, err
	}
	return Resize(m, columns*p.Patch, rows*p.Patch, p.Filter), nil
}

// Cut is the second half of Prepare: it normalizes and cuts a scaled image.
func (p Processor) Cut(m *RGB) *Patches {
	rows, columns := m.Height/p.Patch, m.Width/p.Patch
	out := &Patches{Rows: rows, Columns: columns, Width: 3 * max(1, p.Frames) * p.Patch * p.Patch}
	out.Values = make([]float32, rows*columns*out.Width)
	table, at := p.table(), 0
	for row, column := range Order(rows, columns, p.Merge) {
		p.cut(out.Values[at:at+out.Width], m, row*p.Patch, column*p.Patch, table)
		at += out.Width
	}
	return out
}

// Order lists the patches of a grid, by row and column, in the order of Patches.
func Order(rows, columns, merge int) func(yield func(row, column int) bool) {
	return func(yield func(row, column int) bool) {
		for block := range (rows / merge) * (columns / merge) {
			top, left := block/(columns/merge)*merge, block%(columns/merge)*merge
			for i := range merge * merge {
				if !yield(top+i/merge, left+i%merge) {
					return
				}
			}
		}
	}
}

// table has the normalized values of all bytes, for each channel. The arithmetic is
// that of transformers' NumPy processors: float64 for the scale, then float32.
func (p Processor) table() (out [3][256]float32) {
	for c := range out {
		mean, std := float32(p.Mean[c]), float32(p.Std[c])
		for v := range out[c] {
			out[c][v] = (float32(float64(v)*p.Rescale) - mean) / std
		}
	}
	return out
}

// cut copies one patch.
func (p Processor) cut(to []float32, m *RGB, top, left int, table [3][256]float32) {
	side, frames := p.Patch, max(1, p.Frames)
	for y := range side {
		row := m.row(top + y)[3*left:]
		for x := range side {
			for c := range 3 {
				v := table[c][row[3*x+c]]
				for f := range frames {
					if p.ChannelsLast {
						to[((f*side+y)*side+x)*3+c] = v
					} else {
						to[((c*frames+f)*side+y)*side+x] = v
					}
				}
			}
		}
	}
}
