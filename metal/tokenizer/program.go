package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// program is an expression that is ready to match, by steps that may be taken
// back.
type program struct {
	steps []instruction
	marks int
	// starts are the bytes that a match may begin with.
	starts [256]bool
}

type instruction struct {
	do operation
	is *letters // of opTake and opRun
	// x is where to go on; of opSplit first there, then to y.
	x, y int32
	// least and most count the characters of opRun and the width of opBehind.
	least, most int32
	// few takes as few as possible, negated looks for
	// no match.
	few, negated bool
	anchor       rune
}

type operation uint8

const (
	opMatch    operation = iota
	opTake               // one character
	opRun                // characters of one class
	opSplit              // x, and if that fails y
	opJump               // to x
	opAnchor             // a place
	opMark               // remembers the place in mark x
	opProgress           // to x, unless nothing was taken since mark y
	opAhead              // what follows up to opMatch holds here; then to x
	opBehind             // the same for what ends here
	opAtomic             // the same, and continues after it
)

// letters are a class with its answers for ASCII.
type letters struct {
	first [utf8.RuneSelf]bool
	is    class
}

func newLetters(is class) *letters {
	l := &letters{is: is}
	for r := range l.first {
		l.first[r] = is(rune(r))
	}
	return l
}

// at reports whether s continues with one of the letters at i, and the length
// of the letter.
func (l *letters) at(s string, i int) (int, bool) {
	if i >= len(s) {
		return 0, false
	}
	if s[i] < utf8.RuneSelf {
		return 1, l.first[s[i]]
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return n, l.is(r)
}

const maxProgram = 1 << 15 // instructions

// compile makes a finder of an expression that has no scanner.
func (c *categories) compile(expr string) (finder, error) {
	n, err := readExpression(expr, c)
	if err != nil {
		return nil, err
	}
	p := new(program)
	if p.add(n); len(p.steps) >= maxProgram {
		return nil, fmt.Errorf("pattern %.80q compiles to over %d instructions: %w", expr, maxProgram, ErrUnsupported)
	}
	p.emit(instruction{do: opMatch})
	p.begin(0, map[int32]bool{})
	return func(b *budget, s string, found func(from, to int)) error {
		m := matcher{program: p, c: c, s: s, budget: b}
		if !m.each(found) {
			return fmt.Errorf("pattern %.80q: %w", expr, errTooSlow)
		}
		return nil
	}, nil
}

func (p *program) emit(i instruction) int32 {
	if len(p.steps) < maxProgram {
		p.steps = append(p.steps, i)
	}
	return int32(len(p.steps) - 1)
}

func (p *program) here() int32 { return int32(len(p.steps)) }

func (p *program) add(n *node) {
	switch n.kind {
	case nodeCharacter:
		p.emit(instruction{do: opTake, is: newLetters(n.is)})
	case nodeSequence:
		for _, s := range n.subs {
			p.add(s)
		}
	case nodeAlternatives:
		p.alternatives(n.subs)
	case nodeRepeat:
		if n.possessive {
			inner := *n
			inner.possessive = false
			p.inside(opAtomic, &inner, n)
			return
		}
		p.repeat(n)
	case nodeAnchor:
		p.emit(instruction{do: opAnchor, anchor: n.anchor})
	case nodeAtomic:
		p.inside(opAtomic, n.subs[0], n)
	case nodeAhead:
		p.inside(opAhead, n.subs[0], n)
	case nodeBehind:
		p.inside(opBehind, n.subs[0], n)
	}
}

// inside adds a part that is matched by itself.
func (p *program) inside(do operation, part, n *node) {
	at := p.emit(instruction{do: do, negated: n.negated, least: int32(n.least), most: int32(min(n.most, maxGroups))})
	p.add(part)
	p.emit(instruction{do: opMatch})
	p.steps[at].x = p.here()
}

func (p *program) alternatives(subs []*node) {
	var ends []int32
	for i, s := range subs {
		if i == len(subs)-1 {
			p.add(s)
			break
		}
		split := p.emit(instruction{do: opSplit})
		p.steps[split].x = p.here()
		p.add(s)
		ends = append(ends, p.emit(instruction{do: opJump}))
		p.steps[split].y = p.here()
	}
	for _, at := range ends {
		p.steps[at].x = p.here()
	}
}

// repeat adds a repetition: of one class in one instruction, of all else copy
// by copy.
func (p *program) repeat(n *node) {
	sub := n.subs[0]
	if sub.kind == nodeCharacter {
		p.emit(instruction{do: opRun, is: newLetters(sub.is), least: int32(n.least), most: int32(n.most), few: n.lazy})
		return
	}
	for range n.least {
		from := p.here()
		if p.add(sub); len(p.steps) >= maxProgram {
			return
		}
		if p.here() == from { // it takes nothing, however often it is repeated
			break
		}
	}
	if n.most == many {
		p.loop(n)
		return
	}
	var splits []int32
	for range n.most - n.least {
		splits = append(splits, p.emit(instruction{do: opSplit}))
		first := p.here()
		if p.add(sub); len(p.steps) >= maxProgram {
			return
		}
		p.steps[splits[len(splits)-1]].x = first
	}
	for _, at := range splits {
		p.choose(at, p.steps[at].x, p.here(), n.lazy)
	}
}

// loop repeats without end, but no longer than text is taken.
func (p *program) loop(n *node) {
	mark := int32(p.marks)
	p.marks++
	split := p.emit(instruction{do: opSplit})
	body := p.emit(instruction{do: opMark, x: mark})
	p.add(n.subs[0])
	p.emit(instruction{do: opProgress, x: split, y: mark})
	if len(p.steps) < maxProgram {
		p.choose(split, body, p.here(), n.lazy)
	}
}

// choose sets what a split tries first.
func (p *program) choose(at, again, on int32, lazy bool) {
	if lazy {
		again, on = on, again
	}
	p.steps[at].x, p.steps[at].y = again, on
}

// begin finds the bytes that a match from an instruction on may begin with.
func (p *program) begin(at int32, seen map[int32]bool) {
	if seen[at] {
		return
	}
	seen[at] = true
	switch i := &p.steps[at]; i.do {
	case opTake, opRun:
		for b := range p.starts {
			p.starts[b] = p.starts[b] || b >= utf8.RuneSelf || i.is.first[b]
		}
		if i.do == opRun && i.least == 0 {
			p.begin(at+1, seen)
		}
	case opSplit:
		p.begin(i.x, seen)
		p.begin(i.y, seen)
	case opJump:
		p.begin(i.x, seen)
	case opMark:
		p.begin(at+1, seen)
	default:
		for b := range p.starts {
			p.starts[b] = true
		}
	}
}
