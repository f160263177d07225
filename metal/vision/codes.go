package vision

import "errors"

// codes is what a decoder of lossless WebP allocates for its Huffman codes. An image has a
// group of five codes for each kind of tile that it has.
type codes struct {
	groups int
	// cache is the number of colors that were seen lately and have symbols of their own.
	cache int
}

const (
	// maxGroups and maxCache are the most that package vp8l decodes.
	maxGroups, maxCache = 2600, 1 << 11
	// otherGroups are those of the transforms, and of the image that assigns groups to tiles.
	otherGroups = 4
	// literals, lengths and distances are numbers of symbols.
	literals, lengths, distances = 256, 24, 40
	// groupBytes is what a group takes in addition to its symbols, and symbolBytes what
	// each of them takes: two nodes of 8 bytes, a length and a code of 4, and what the
	// allocator adds.
	groupBytes, symbolBytes = 5 << 10, 28
	// maxWalked bounds the pixels of the images of tiles that are read to count groups.
	// libwebp's are a fraction of that.
	maxWalked = 1 << 19
)

// bytes is what the decoder allocates for the codes.
func (c codes) bytes() float64 {
	return float64(c.groups+otherGroups) * float64(groupBytes+symbolBytes*(4*literals+lengths+distances+c.cache))
}

// codesOf reads how many codes a lossless WebP of a size has. data begins after its header
// with the size. What is damaged, unusual or takes long to read counts as the most that the
// decoder accepts.
func codesOf(data []byte, width, height int) codes {
	r := lossless{data: data}
	c, err := r.codes(width, height)
	if err != nil {
		c = codes{groups: min(maxGroups, tiles(width, 2)*tiles(height, 2)), cache: maxCache}
	}
	return c
}

// errCodes means that codes cannot be counted.
var errCodes = errors.New("the codes cannot be counted")

// tiles is the number of tiles of 1<<bits pixels on a side.
func tiles(side, bits int) int { return (side + 1<<bits - 1) >> bits }

// lossless reads a lossless WebP up to the codes of its pixels (RFC 9649, 3).
type lossless struct {
	data []byte
	at   int // in bits
	// walked are the pixels of images of tiles that were read.
	walked int
}

// bits reads a number; after the end it is 0.
func (r *lossless) bits(n int) (v int) {
	for i := range n {
		v |= r.bit() << i
	}
	return v
}

func (r *lossless) bit() int {
	if r.at>>3 >= len(r.data) {
		r.at = 8*len(r.data) + 1
		return 0
	}
	v := int(r.data[r.at>>3]>>(r.at&7)) & 1
	r.at++
	return v
}

func (r *lossless) ended() bool { return r.at > 8*len(r.data) }

// codes reads the transforms, and the image that assigns groups of codes to tiles.
func (r *lossless) codes(width, height int) (codes, error) {
	const predictor, color, green, palette = 0, 1, 2, 3
	for seen := [4]bool{}; r.bits(1) == 1; {
		kind := r.bits(2)
		if seen[kind] {
			return codes{}, errCodes
		}
		seen[kind] = true
		var err error
		switch kind {
		case predictor, color:
			bits := r.bits(3) + 2
			_, err = r.image(tiles(width, bits), tiles(height, bits))
		case green:
		case palette:
			n := r.bits(8) + 1
			_, err = r.image(n, 1)
			width = tiles(width, packing(n))
		}
		if err != nil {
			return codes{}, err
		}
	}
	c := codes{groups: 1}
	bits, err := r.cache()
	if err != nil {
		return c, err
	}
	if bits > 0 {
		c.cache = 1 << bits
	}
	if r.bits(1) == 1 {
		bits := r.bits(3) + 2
		last, err := r.image(tiles(width, bits), tiles(height, bits))
		if err != nil {
			return c, err
		}
		c.groups = min(last+1, tiles(width, bits)*tiles(height, bits))
	}
	if r.ended() || c.groups > maxGroups {
		return c, errCodes
	}
	return c, nil
}

// packing is how many pixels of a palette's indexes are one pixel, as a power of two.
func packing(colors int) int {
	switch {
	case colors <= 2:
		return 3
	case colors <= 4:
		return 2
	case colors <= 16:
		return 1
	}
	return 0
}

// cache reads the size of a cache of colors, as a power of two; 0 means that there is none.
func (r *lossless) cache() (bits int, err error) {
	if r.bits(1) == 0 {
		return 0, nil
	}
	if bits = r.bits(4); bits < 1 || 1<<bits > maxCache {
		return 0, errCodes
	}
	return bits, nil
}

// image reads an image of tiles, and returns its largest red and green as one number. All
// other pixels repeat earlier ones, or are 0.
func (r *lossless) image(width, height int) (largest int, err error) {
	pixels := width * height
	if r.walked += pixels; r.walked > maxWalked {
		return 0, errCodes
	}
	bits, err := r.cache()
	if err != nil {
		return 0, err
	}
	size := literals + lengths
	if bits > 0 {
		size += 1 << bits
	}
	var of [5]huffman
	for i, n := range [...]int{size, literals, literals, literals, distances} {
		if of[i], err = r.code(n); err != nil {
			return 0, err
		}
	}
	for pixels > 0 {
		before := r.at
		green := of[0].next(r)
		n := 1
		switch {
		case green < literals:
			red := of[1].next(r)
			of[2].next(r)
			of[3].next(r)
			largest = max(largest, red<<8|green)
		case green < literals+lengths:
			n = r.number(green - literals)
			r.number(of[4].next(r))
		}
		if pixels -= n; pixels < 0 || r.ended() {
			return 0, errCodes
		}
		if r.at == before { // all others are the same
			pixels %= n
		}
	}
	return largest, nil
}

// number reads a length or a distance of a prefix.
func (r *lossless) number(prefix int) int {
	if prefix < 4 {
		return prefix + 1
	}
	extra := (prefix - 2) >> 1
	return (2+prefix&1)<<extra + r.bits(extra) + 1
}

// huffman is a canonical code: how many symbols have each length, and the symbols in order.
type huffman struct {
	count   [16]int
	symbols []int
}

// code reads a code for an alphabet.
func (r *lossless) code(alphabet int) (huffman, error) {
	if r.bits(1) == 1 {
		two := r.bits(1) == 1
		symbols := []int{r.bits(1 + 7*r.bits(1))}
		h := huffman{symbols: symbols}
		if two {
			h.symbols = append(symbols, r.bits(8))
			h.count[1] = 2
		}
		for _, s := range h.symbols {
			if s >= alphabet {
				return h, errCodes
			}
		}
		return h, nil
	}
	order := [...]int{17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	n := r.bits(4) + 4
	if n > len(order) {
		return huffman{}, errCodes
	}
	of := make([]int, len(order))
	for _, symbol := range order[:n] {
		of[symbol] = r.bits(3)
	}
	h, err := newHuffman(of)
	if err != nil {
		return h, err
	}
	all, err := r.lengths(h, alphabet)
	if err != nil {
		return h, err
	}
	return newHuffman(all)
}

// lengths reads the lengths of the symbols of an alphabet, which are in a code themselves.
func (r *lossless) lengths(h huffman, alphabet int) ([]int, error) {
	left := alphabet
	if r.bits(1) == 1 {
		if left = r.bits(2+2*r.bits(3)) + 2; left > alphabet {
			return nil, errCodes
		}
	}
	const again, zeros, manyZeros = 16, 17, 18
	out, before := make([]int, 0, alphabet), 8
	for ; left > 0 && len(out) < alphabet; left-- {
		length, times := h.next(r), 1
		switch length {
		case again:
			length, times = before, r.bits(2)+3
		case zeros:
			length, times = 0, r.bits(3)+3
		case manyZeros:
			length, times = 0, r.bits(7)+11
		}
		if length != 0 {
			before = length
		}
		if len(out)+times > alphabet || r.ended() {
			return nil, errCodes
		}
		for range times {
			out = append(out, length)
		}
	}
	return out, nil
}

// newHuffman returns the code of these lengths. One symbol takes no bits; others have to be
// complete, so that no decoder reads them in another way.
func newHuffman(lengths []int) (h huffman, err error) {
	for _, n := range lengths {
		h.count[n]++
	}
	h.count[0] = 0
	free := 1
	for n := 1; n < len(h.count); n++ {
		free = 2*free - h.count[n]
		for symbol, of := range lengths {
			if of == n {
				h.symbols = append(h.symbols, symbol)
			}
		}
	}
	if len(h.symbols) == 1 {
		h.count = [16]int{}
		return h, nil
	}
	if free != 0 {
		return h, errCodes
	}
	return h, nil
}

// next reads a symbol.
func (h *huffman) next(r *lossless) int {
	if len(h.symbols) == 1 {
		return h.symbols[0]
	}
	code, first, index := 0, 0, 0
	for _, n := range h.count[1:] {
		code |= r.bit()
		if code-first < n {
			return h.symbols[index+code-first]
		}
		index += n
		first = (first + n) << 1
		code <<= 1
	}
	return 0 // not reached: codes are complete
}
