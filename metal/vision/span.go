package vision

// Span is an image in a prompt: its first token, and its rows and columns of tokens.
type Span struct{ At, Rows, Columns int }

// Tokens is the number of tokens of the image.
func (s Span) Tokens() int { return s.Rows * s.Columns }

// Place is where a token stands for a rotation by time, row and column.
type Place struct{ Time, Row, Column int }

// Places returns the places of tokens [first, first+n) of a prompt with images, in
// their order, as transformers' get_rope_index does (models/qwen3_vl, 5.23): text
// moves on by one on all axes; an image stands still in time, and as long as its
// longer side is what follows it moves on. flat is true if all axes are equal.
func Places(images []Span, first, n int) (places []Place, flat bool) {
	places, flat = make([]Place, 0, n), true
	shift, next := 0, 0
	for t := first; t < first+n; {
		for next < len(images) && images[next].At+images[next].Tokens() <= t {
			shift += max(images[next].Rows, images[next].Columns) - images[next].Tokens()
			next++
		}
		if next == len(images) || t < images[next].At {
			places = append(places, Place{t + shift, t + shift, t + shift})
			t++
			continue
		}
		m := images[next]
		for end := min(m.At+m.Tokens(), first+n); t < end; t++ {
			start, i := m.At+shift, t-m.At
			places = append(places, Place{start, start + i/m.Columns, start + i%m.Columns})
			flat = flat && m.Tokens() == 1
		}
	}
	return places, flat
}
