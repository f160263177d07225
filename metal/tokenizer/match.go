package tokenizer

import (
	"unicode/utf8"
)

// budget is the work that one text may cost: steps of expressions and bytes
// that normalizers write. It makes a hostile model fail on the same texts on
// every machine.
type budget struct {
	left int
	// most is how many bytes normalizers may make of a text.
	most int
	// stop, unless nil, is called when no more than look is left; stopped is its error.
	stop    func() error
	look    int
	stopped error
}

// stopSteps is how much work passes between two calls of stop.
const stopSteps = 1 << 16

// freeSteps is what a text may cost besides the steps for its bytes.
const freeSteps = 1 << 24

// newBudget is what a text of n bytes may cost: three times the steps of an
// ordinary expression, 20 for a byte, and a text that is longer than normal forms
// make it.
func newBudget(n int) *budget { return &budget{left: freeSteps + 64*n, most: 1<<20 + 8*n} }

// excess is how many of freeSteps are taken.
func (b *budget) excess() int { return max(0, freeSteps-b.left) }

// fits reports whether normalizers may make a text of n bytes.
func (b *budget) fits(n int) bool { return n <= min(b.left, b.most) }

// stoppable has the work end with the error of stop.
func (b *budget) stoppable(stop func() error) *budget {
	b.stop, b.look = stop, b.left-stopSteps
	return b
}

// spend takes work from the budget; it returns false if none is left, or the work is stopped.
func (b *budget) spend(n int) bool {
	b.left -= n
	if b.left < 0 || b.stopped != nil {
		return false
	}
	if b.stop != nil && b.left <= b.look {
		b.look = b.left - stopSteps
		b.stopped = b.stop()
	}
	return b.stopped == nil
}

// goesOn asks stop, within work that is taken from the budget once it is done.
func (b *budget) goesOn() bool {
	if b.stop != nil && b.stopped == nil {
		b.stopped = b.stop()
	}
	return b.stopped == nil
}

// matcher is a program on a text.
type matcher struct {
	*program
	c      *categories
	s      string
	budget *budget
	back   []retreat
	marks  []int32
	stuck  bool // the budget or the memory is used up
}

// retreat is what to do where a way fails: go on elsewhere, let an opRun give
// back characters down to low or take up to low more, or set mark at back to
// pos.
type retreat struct {
	at, pos, low int32
	kind         retreatKind
}

type retreatKind uint8

const (
	goElsewhere retreatKind = iota
	giveBack
	takeMore
	resetMark
)

// maxRetreats bounds the memory of a match; ordinary expressions need a few
// for each repetition.
const maxRetreats = 1 << 22

// each finds all matches. As in the reference, an empty match directly after
// another match does not count. It returns false if the budget is used up.
func (m *matcher) each(found func(from, to int)) bool {
	m.marks = make([]int32, m.program.marks)
	last := -1
	for at := 0; at <= len(m.s); {
		if !m.budget.spend(1) {
			return false
		}
		end := -1
		if at == len(m.s) || m.starts[m.s[at]] {
			if end = m.run(0, at, -1); m.stuck {
				return false
			}
		}
		if end > at || end == at && at != last {
			found(at, end)
			last = end
		}
		if end > at {
			at = end
			continue
		}
		_, n := utf8.DecodeRuneInString(m.s[at:])
		at += max(n, 1)
	}
	return true
}

// run matches from an instruction on up to its opMatch, from pos on. It returns
// the end of the match, which has to be target unless that is negative; -1 where
// there is none.
func (m *matcher) run(at int32, pos, target int) int {
	base := len(m.back)
	defer func() { m.back = m.back[:base] }()
	for {
		if !m.budget.spend(1) || len(m.back) > maxRetreats {
			m.stuck = true
			return -1
		}
		ok := true
		switch i := &m.steps[at]; i.do {
		case opMatch:
			if target < 0 || pos == target {
				return pos
			}
			ok = false
		case opTake:
			var n int
			n, ok = i.is.at(m.s, pos)
			pos += n
			at++
		case opRun:
			pos, ok = m.takeRun(at, i, pos)
			at++
		case opSplit:
			m.back = append(m.back, retreat{at: i.y, pos: int32(pos)})
			at = i.x
		case opJump:
			at = i.x
		case opAnchor:
			ok = m.holds(i.anchor, pos)
			at++
		case opMark:
			m.back = append(m.back, retreat{at: i.x, pos: m.marks[i.x], kind: resetMark})
			m.marks[i.x] = int32(pos)
			at++
		case opProgress:
			if at++; m.marks[i.y] != int32(pos) {
				at = i.x
			}
		default:
			pos, ok = m.inside(at, i, pos)
			at = i.x
		}
		if m.stuck {
			return -1
		}
		if !ok {
			if at, pos = m.retreat(base); at < 0 {
				return -1
			}
		}
	}
}

// takeRun takes characters of one class, and remembers how it could have taken
// others.
func (m *matcher) takeRun(at int32, i *instruction, pos int) (int, bool) {
	low, count := pos, int32(0)
	want := i.most
	if i.few {
		want = i.least
	}
	for count < want {
		n, ok := i.is.at(m.s, pos)
		if !ok {
			break
		}
		pos += n
		if count++; count == i.least {
			low = pos
		}
	}
	m.stuck = !m.budget.spend(int(count))
	if count < i.least {
		return pos, false
	}
	switch {
	case i.few && i.most > i.least:
		m.back = append(m.back, retreat{at: at, pos: int32(pos), low: i.most - i.least, kind: takeMore})
	case !i.few && pos > low:
		m.back = append(m.back, retreat{at: at, pos: int32(pos), low: int32(low), kind: giveBack})
	}
	return pos, true
}

// retreat goes back to the last choice above base; at is -1 where there is none.
func (m *matcher) retreat(base int) (at int32, pos int) {
	for len(m.back) > base {
		r := &m.back[len(m.back)-1]
		switch r.kind {
		case resetMark:
			m.marks[r.at] = r.pos
		case giveBack:
			_, n := utf8.DecodeLastRuneInString(m.s[:r.pos])
			if r.pos -= int32(n); r.pos >= r.low {
				at, pos = r.at+1, int(r.pos)
				if r.pos == r.low {
					m.back = m.back[:len(m.back)-1]
				}
				return at, pos
			}
		case takeMore:
			n, ok := m.steps[r.at].is.at(m.s, int(r.pos))
			if ok && r.low > 0 {
				r.pos, r.low = r.pos+int32(n), r.low-1
				return r.at + 1, int(r.pos)
			}
		default:
			at, pos = r.at, int(r.pos)
			m.back = m.back[:len(m.back)-1]
			return at, pos
		}
		m.back = m.back[:len(m.back)-1]
	}
	return -1, 0
}

// inside matches a subexpression by itself: a lookahead, a lookbehind, or an
// atomic group.
func (m *matcher) inside(at int32, i *instruction, pos int) (int, bool) {
	switch i.do {
	case opAhead:
		return pos, (m.run(at+1, pos, -1) >= 0) != i.negated
	case opAtomic:
		end := m.run(at+1, pos, -1)
		return end, end >= 0
	}
	return pos, m.endsAt(at+1, i, pos) != i.negated
}

// endsAt says whether the part matches some text that ends at pos.
func (m *matcher) endsAt(at int32, i *instruction, pos int) bool {
	from := pos
	for width := int32(0); width <= i.most; width++ {
		if width >= i.least && m.run(at, from, pos) == pos {
			return true
		}
		if from == 0 || m.stuck {
			return false
		}
		_, n := utf8.DecodeLastRuneInString(m.s[:from])
		from -= n
	}
	return false
}

// holds says whether a place is what an anchor wants.
func (m *matcher) holds(anchor rune, pos int) bool {
	end := len(m.s)
	switch anchor {
	case '^':
		return pos == 0 || m.s[pos-1] == '\n' && pos < end
	case '$':
		return pos == end || m.s[pos] == '\n'
	case 'A':
		return pos == 0
	case 'z':
		return pos == end
	case 'Z':
		return pos == end || pos == end-1 && m.s[pos] == '\n'
	}
	before, _ := utf8.DecodeLastRuneInString(m.s[:pos])
	next, _ := utf8.DecodeRuneInString(m.s[pos:])
	between := (pos > 0 && m.c.wordOutside(before)) != (pos < end && m.c.wordOutside(next))
	return between == (anchor == 'b')
}
