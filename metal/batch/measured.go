package batch

import (
	"math"
	"math/bits"
	"slices"
)

const (
	// stale: what pieces of a size took is forgotten after so many steps with
	// prompts that had none of it, so that a size is tried again, rarely.
	stale = 256
	// few steps say little of a size: while a prompt is read in, others keep the
	// machine busy.
	few = 5
	// later: what a larger size took so many steps after a smaller one says more.
	later = 32
	// counting: a size that has less than an eighth of the tokens that were computed
	// without answers does not say how quick that is.
	counting = 8
	// remains: so much of what was measured is left of it at a smaller depth, at least.
	remains = 0.25
)

// measured is what steps took, in seconds. All of it depends on how many tokens are
// looked back at.
type measured struct {
	// alone is what steps of so many answers took without prompts, aloneBy how that
	// grows with what they look back at.
	alone   map[int]*window
	aloneBy trend
	// extra is how much longer steps with pieces of each size took, extraBy how that
	// of a token grows with its depth.
	extra   []size
	extraBy trend
	lengths []float64 // scratch of longer
	// speed is what tokens of prompts took without answers, in pieces of sizes that
	// were computed before, tokenBy how that grows with their depth.
	speed    window
	tokenBy  trend
	computed uint64 // a bit for each size
	// lone are the last of these by size, the oldest overwritten; quickest is what
	// they say a token at depth 0 takes in pieces of the size that suits the machine
	// best.
	lone     [16]lone
	loneAt   int
	quickest float64
	// mixed counts steps with prompts and answers; since is that of those after
	// the last step without prompts.
	mixed, since int
}

// lone is what a token took, in a piece of so many without answers; none for
// nothing.
type lone struct {
	size, tokens int
	point
}

// size is what pieces of about so many tokens took.
type size struct {
	window
	seen int // measured.mixed when it was last measured
}

// add records a step.
func (m *measured) add(l Load, took float64) {
	switch step := m.step(l.Answers, float64(l.Seen)); {
	case l.Tokens == 0:
		if m.alone == nil {
			m.alone = map[int]*window{}
		}
		if m.alone[l.Answers] == nil {
			m.alone[l.Answers] = &window{}
		}
		m.alone[l.Answers].add(float64(l.Seen), took)
		m.aloneBy.add(l.Answers, float64(l.Seen), took)
		m.since = 0
	case l.Answers == 0:
		m.addLone(l, took/float64(l.Tokens))
	case step > 0:
		m.mixed++
		m.since++
		k := sizeBeside(l.Answers, l.Tokens)
		for len(m.extra) <= k {
			m.extra = append(m.extra, size{})
		}
		e := &m.extra[k]
		if e.n > 0 && m.mixed-e.seen > later && m.outdated(k, m.longer(l.Answers, l.depth())) {
			e.window = window{}
		}
		token := max(0, took-step) / float64(l.Tokens)
		e.add(l.depth(), token*float64(beside(l.Answers, k)))
		e.seen = m.mixed
		m.extraBy.add(k, l.depth(), token)
	default:
		m.since++
	}
}

// addLone records what a token took without answers.
func (m *measured) addLone(l Load, token float64) {
	k := sizeOf(l.Tokens)
	if m.computed&(1<<k) == 0 {
		m.computed |= 1 << k // its first step may have compiled kernels
		return
	}
	m.speed.add(l.depth(), token)
	m.tokenBy.add(k, l.depth(), token)
	m.lone[m.loneAt] = lone{k, l.Tokens, point{l.depth(), token}}
	m.loneAt = (m.loneAt + 1) % len(m.lone)
	m.quickest = m.least()
}

// token is what one of a prompt takes alone at some depth; 0 where it is unknown.
func (m *measured) token(depth float64) float64 {
	if m.speed.n == 0 {
		return 0
	}
	return m.quickest + m.tokenBy.slope()*depth
}

// least is what a token of a prompt at depth 0 takes alone, by the size of pieces
// with which that is least, of those measured lately. A size that has a small part
// of their tokens does not count: a few short prompts do not say what long ones
// have to keep up with.
func (m *measured) least() float64 {
	by, all := m.tokenBy.slope(), 0
	least := m.speed.at(0, by)
	for _, of := range m.lone {
		all += of.tokens
	}
	for _, of := range m.lone {
		var same window
		tokens := 0
		for _, l := range m.lone {
			if l.size == of.size && l.tokens > 0 {
				same.add(l.x, l.y)
				tokens += l.tokens
			}
		}
		if counting*tokens >= all && tokens > 0 {
			least = min(least, same.at(0, by))
		}
	}
	return least
}

// step is what a step of so many answers takes without prompts, at least: as it
// was measured, or that of the nearest number that is no less than half or more
// than twice as many; 0 where none is.
func (m *measured) step(answers int, seen float64) float64 {
	by := m.aloneBy.slope()
	if w := m.alone[answers]; w != nil {
		return w.at(seen, by)
	}
	for d := 1; d <= answers; d++ {
		if w := m.alone[answers-d]; w != nil && 2*(answers-d) >= answers {
			return w.at(seen, by)
		}
		if w := m.alone[answers+d]; w != nil {
			return w.at(seen, by) * float64(answers) / float64(answers+d)
		}
	}
	return 0
}

// explored is the largest size that was measured lately, -1 where none was.
func (m *measured) explored() int {
	for k := len(m.extra) - 1; k >= 0; k-- {
		if m.known(k) {
			return k
		}
	}
	return -1
}

// known says that a size was measured lately, and more than once: its first
// step may have compiled kernels.
func (m *measured) known(k int) bool {
	return k < len(m.extra) && m.extra[k].n > 1 && !m.aged(k)
}

// aged says that a size was measured long ago.
func (m *measured) aged(k int) bool { return m.mixed-m.extra[k].seen >= stale }

// longer is by size how much longer steps with pieces of it take at some depth, as it
// was measured; infinite where it was not. It is good until the next call.
func (m *measured) longer(answers int, depth float64) []float64 {
	by := m.extraBy.slope()
	m.lengths = m.lengths[:0]
	for k := range m.extra {
		length := math.Inf(1)
		if m.known(k) {
			length = m.extra[k].at(depth, by*float64(beside(answers, k)))
		}
		m.lengths = append(m.lengths, length)
	}
	return m.lengths
}

// outdated says that what was measured of a size is no longer true: it was long ago,
// or a larger size took less meanwhile.
func (m *measured) outdated(k int, longer []float64) bool {
	return m.aged(k) || m.less(k, later, longer)
}

// believed says that a size was measured, lately, and that this is no accident: a
// few steps that took longer than those of a larger size are one.
func (m *measured) believed(k int, longer []float64) bool {
	return m.known(k) && !m.outdated(k, longer) && (m.extra[k].n >= few || !m.less(k, math.MinInt, longer))
}

// less says that a larger size than k took less, more than so many steps later.
func (m *measured) less(k, than int, longer []float64) bool {
	for j := k + 1; j < len(longer); j++ {
		if longer[j] < longer[k] && m.extra[j].seen-m.extra[k].seen > than {
			return true
		}
	}
	return false
}

// estimates are by size, which has so many tokens, how much longer steps with pieces of
// it take at some depth: what was measured; beyond the next smaller one that was, at best as
// much more as its further tokens take alone; below the smallest one, the least share
// of a larger one, so that it is tried where it may be quick.
func (m *measured) estimates(tokens []float64, answers int, depth float64, into []float64) []float64 {
	longer, token := m.longer(answers, depth), m.token(depth)
	share := math.Inf(1) // of a token
	for k := range longer {
		if m.believed(k, longer) {
			share = min(share, longer[k]/float64(beside(answers, k)))
		} else {
			longer[k] = math.Inf(1)
		}
	}
	if math.IsInf(share, 1) {
		share = token
	}
	below := -1
	for k, n := range tokens {
		if k < len(longer) && !math.IsInf(longer[k], 1) {
			below = k
		}
		switch {
		case below < 0:
			into = append(into, share*n)
		case token > 0:
			into = append(into, longer[below]+token*(n-tokens[below]))
		default:
			into = append(into, longer[below]*n/tokens[below])
		}
	}
	return into
}

// beside is how many tokens a piece of a size has beside answers: with them as
// many rows as the size has, as devices compute rows in tiles of 8, 32 and more, so
// that a piece of 32 beside an answer would take as long as one of 63. Where
// answers would be an eighth of these rows, the piece has them all.
func beside(answers, k int) int {
	if n := tokensOf(k); 8*answers < n {
		return n - answers
	}
	return tokensOf(k)
}

// sizeBeside is the largest size of which a piece of so many tokens is one.
func sizeBeside(answers, tokens int) int {
	k := sizeOf(tokens)
	for beside(answers, k+1) <= tokens {
		k++
	}
	return k
}

// tokensOf are the sizes 1, 2, 3, 4, 6, 8, 12, 16 and so on.
func tokensOf(k int) int {
	if k%2 == 1 {
		return 1 << ((k + 1) / 2)
	}
	if k == 0 {
		return 1
	}
	return 3 << (k/2 - 1)
}

// sizeOf is the largest size of at most so many tokens.
func sizeOf(tokens int) int {
	high := bits.Len(uint(tokens)) - 1 // the power of two below
	switch {
	case high == 0:
		return 0
	case tokens >= 3<<(high-1):
		return 2 * high
	}
	return 2*high - 1
}

// point is what was measured, y, where x tokens were looked back at.
type point struct{ x, y float64 }

// window holds the last measurements of one thing.
type window struct {
	points  [15]point
	n, next int
}

func (w *window) add(x, y float64) {
	w.points[w.next] = point{x, y}
	w.next = (w.next + 1) % len(w.points)
	w.n = min(w.n+1, len(w.points))
}

// median of what was measured, the lower of two in the middle; 0 where nothing
// was.
func (w *window) median() float64 { return w.at(0, 0) }

// at is the median of what these measurements would have been where x tokens are
// looked back at, each of which costs so much; a part of each remains.
func (w *window) at(x, slope float64) float64 {
	if w.n == 0 {
		return 0
	}
	var sorted [len(w.points)]float64
	for i, p := range w.points[:w.n] {
		sorted[i] = max(p.y+slope*(x-p.x), remains*p.y)
	}
	slices.Sort(sorted[:w.n])
	return sorted[(w.n-1)/2]
}

const (
	// memory of a trend is about so many measurements, and that of what is usual in a
	// group.
	memory, usual = 512, 256
	// doubt is what keeps a trend flat until measurements differ: as if sixteen that
	// are 256 tokens apart from others had shown none.
	doubt = 16 * 256 * 256
)

// trend is how much more something takes for each token that is looked back at:
// least squares over measurements in groups that differ otherwise, older ones
// counting less. It is never less than 0.
type trend struct {
	groups map[int]*mean
	xx, xy float64
}

// mean is what is usual in a group.
type mean struct {
	n int
	point
}

func (t *trend) add(group int, x, y float64) {
	g := t.groups[group]
	switch {
	case t.groups == nil:
		t.groups = map[int]*mean{}
		fallthrough
	case g == nil: // the first may have compiled kernels
		t.groups[group] = &mean{}
		return
	case g.n == 0:
		*g = mean{1, point{x, y}}
		return
	}
	g.n = min(g.n+1, usual)
	part := 1 / float64(g.n)
	dx, dy := x-g.x, min(y-g.y, g.y) // one that took ten times as long is an accident
	g.x += part * dx
	g.y += part * dy
	t.xx += (1-part)*dx*dx - t.xx/memory
	t.xy += (1-part)*dx*dy - t.xy/memory
}

func (t *trend) slope() float64 { return max(0, t.xy/(t.xx+doubt)) }
