package tensor

import (
	"fmt"
	"math"
)

// Segment means that Length rows of a flat step belong to Request at the
// positions from Start on. Segments follow one another without gaps.
type Segment struct {
	Request       RequestID
	Start, Length int
	// Draft is how many of the last rows Cache.Truncate may take back, fewer than Length:
	// recurrent layers keep the state before them until their next step.
	Draft int
}

// Tokens is the number of rows that segments cover.
func Tokens(segments []Segment) int {
	n := 0
	for _, s := range segments {
		n += s.Length
	}
	return n
}

// RopeSpec describes a rotary embedding: the pairs (i, i+Size/2) of the first
// Size elements are rotated by position/Linear * Theta^(-2i/Size) / Factors[i],
// and the rotated elements multiplied by Magnitude.
type RopeSpec struct {
	Theta float64
	Size  int
	// Linear and Magnitude 0 mean 1.
	Linear, Magnitude float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
	// Interleaved pairs are (2i, 2i+1) instead.
	Interleaved bool
	// Beta multiplies whole heads by 1 + Beta*ln(1 + floor((position+Lead)/Every)),
	// even if Size is 0 and nothing is rotated. 0 means no scaling; Every and Lead
	// are then ignored.
	Beta        float64
	Every, Lead int
}

// Growth is the factor of a head at a position.
func (s RopeSpec) Growth(position int) float64 {
	position += s.Lead
	if s.Beta == 0 || position < s.Every {
		return 1
	}
	return 1 + s.Beta*math.Log(1+float64(position/s.Every))
}

// Check returns an error if a head of the given size cannot be rotated so.
func (s RopeSpec) Check(headSize int) error {
	switch {
	case headSize <= 0 || s.Size < 0 || s.Size > headSize || s.Size%2 != 0 || s.Size == 0 && s.Beta == 0:
		return fmt.Errorf("%d of %d elements of a head", s.Size, headSize)
	case s.Factors != nil && len(s.Factors) != s.Size/2:
		return fmt.Errorf("%d factors for %d elements", len(s.Factors), s.Size)
	case s.Beta != 0 && (s.Every < 1 || s.Lead < 0):
		return fmt.Errorf("growth every %d positions from %d on", s.Every, s.Lead)
	}
	return nil
}

// AttendSpec is one layer's attention over a flat step. Q is [T, heads*size], K
// and V are [T, kvHeads*size] of their sizes; K and V are appended before
// attending. V is nil where values are within keys. Without K nothing is appended:
// the layer holds the tokens of the step already, and another one reads them.
type AttendSpec struct {
	Cache    Cache
	Layer    int
	Segments []Segment
	Q, K, V  Array
	// Scale multiplies scores.
	Scale float32
	// Window is the number of latest positions that a token sees, including
	// itself; 0 means all. A rotating layer sees no more than the window of its
	// cache.
	Window int
	// Chunk, unless 0, cuts the positions of a request into chunks of this many; a token
	// sees none before its own. Such a step has no Mutual runs and no Indexer.
	Chunk int
	// Sinks is a score per query head that joins the softmax without a value;
	// nil means none.
	Sinks []float32
	// Cap bounds scores, after Scale, to Cap*tanh(score/Cap); 0 means that it does
	// not.
	Cap float32
	// Mutual are runs of rows, each within a segment, whose tokens also see those of their
	// run that come after them. They are in ascending order and do not overlap.
	Mutual []Run
	// Indexer selects the tokens that each row sees; nil means all.
	Indexer *Indexer
}

// Indexer selects, for each row, the TopK tokens up to its own with the highest
// sum over its heads of weight * max(0, q.k): sparse attention of DeepSeek V3.2
// (https://arxiv.org/abs/2512.02556). The keys k are the last Size elements of
// the keys of the layer, which has one KV head and no window; heads of
// AttendSpec.Q are shorter than keys by these elements.
type Indexer struct {
	// Q is [T, heads*Size], Weights are [T, heads].
	Q, Weights Array
	Size, TopK int
}

// Fits reports whether an indexer fits a step of a layer, where nil always does.
// If not, the operands may not be used.
func (x *Indexer) Fits(s AttendSpec, h HeadSpec) bool {
	if x == nil {
		return true
	}
	q, w, tokens := x.Q.Shape(), x.Weights.Shape(), Tokens(s.Segments)
	return h.KVHeads == 1 && s.Window == 0 && len(s.Mutual) == 0 && x.Size > 0 && x.Size < h.HeadSize && h.ValueSize <= h.HeadSize-x.Size && x.TopK > 0 &&
		len(q) == 2 && len(w) == 2 && q[0] == tokens && w[0] == tokens && w[1] > 0 && q[1] == w[1]*x.Size
}

// QuerySize is the size of a head of queries.
func (s AttendSpec) QuerySize(h HeadSpec) int {
	if s.Indexer == nil {
		return h.HeadSize
	}
	return max(1, h.HeadSize-s.Indexer.Size)
}

// First is the first position that a token sees.
func (s AttendSpec) First(position int) int {
	first := 0
	if s.Window > 0 {
		first = max(0, position+1-s.Window)
	}
	if s.Chunk > 0 {
		first = max(first, position/s.Chunk*s.Chunk)
	}
	return first
}

// ChunksFit reports whether chunks fit the rest of a step, where none always do.
func (s AttendSpec) ChunksFit() bool {
	return s.Chunk == 0 || s.Chunk > 0 && len(s.Mutual) == 0 && s.Indexer == nil
}

// Run is rows [First, First+Length) of a step.
type Run struct{ First, Length int }

// Positions are those of each run, start and end, by the segment that it lies in. ok is
// false if a run does not lie in one, or not after the run before it.
func Positions(runs []Run, segments []Segment) (of map[int][][2]int, ok bool) {
	of, row, at := map[int][][2]int{}, 0, 0
	for i, g := range segments {
		for before := row; at < len(runs) && runs[at].First < row+g.Length; at++ {
			r := runs[at]
			if r.Length < 1 || r.First < before || r.First+r.Length > row+g.Length {
				return nil, false
			}
			before = r.First + r.Length
			start := g.Start + r.First - row
			of[i] = append(of[i], [2]int{start, start + r.Length})
		}
		row += g.Length
	}
	return of, at == len(runs)
}

// AttendAllSpec is the bidirectional attention of one layer of an encoder:
// every token sees all of its segment and nothing else, and nothing is kept. Q,
// K and V are [T, heads*size].
type AttendAllSpec struct {
	Segments []Segment
	Q, K, V  Array
	Heads    int
	// Scale multiplies scores.
	Scale float32
}
