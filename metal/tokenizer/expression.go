package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Expressions are read as the reference's library (Oniguruma) reads them:
// possessive repeats, sets in sets, its own Unicode version and its own idea of
// letter case. What it knows and we do not is refused by name.

// node is a part of an expression.
type node struct {
	kind nodeKind
	is   class   // of one character
	subs []*node // of a sequence or alternatives; one for the others
	// A repeat takes from least to most; lazy takes few first, possessive does
	// not give back.
	least, most      int
	lazy, possessive bool
	// negated looks for no match; width is how many characters before it may
	// begin, from least to most.
	negated bool
	anchor  rune
}

type nodeKind uint8

const (
	nodeCharacter nodeKind = iota
	nodeSequence
	nodeAlternatives
	nodeRepeat
	nodeAtomic
	nodeAhead
	nodeBehind
	nodeAnchor
)

const (
	maxPattern = 1 << 12 // bytes
	maxGroups  = 64      // nested
	maxRepeat  = 1000
	// maxFolded sets may be nested where letters of either case match: each of them asks
	// those in it for every case of a letter.
	maxFolded = 4
)

// expression is an expression that is read.
type expression struct {
	c     *categories
	in    []rune
	at    int
	depth int
	sets  int  // that are open
	fold  bool // letters of either case match
	all   bool // a dot matches line breaks, too
}

// readExpression reads an expression.
func readExpression(expr string, c *categories) (*node, error) {
	if len(expr) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, more than %d: %w", len(expr), maxPattern, ErrUnsupported)
	}
	e := &expression{c: c, in: []rune(expr)}
	n, err := e.alternatives()
	if err == nil && e.at < len(e.in) {
		err = fmt.Errorf(") without (: %w", ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %.80q: %w", expr, err)
	}
	return n, nil
}

func (e *expression) refuse(what string) error {
	return fmt.Errorf("%.40s at character %d is not supported: %w", what, e.at, ErrUnsupported)
}

func (e *expression) peek() rune {
	if e.at < len(e.in) {
		return e.in[e.at]
	}
	return 0
}

// take steps over text if it comes next.
func (e *expression) take(text string) bool {
	at := e.at
	for _, r := range text {
		if at == len(e.in) || e.in[at] != r {
			return false
		}
		at++
	}
	e.at = at
	return true
}

func (e *expression) alternatives() (*node, error) {
	var all []*node
	for {
		n, err := e.sequence()
		if err != nil {
			return nil, err
		}
		all = append(all, n)
		if !e.take("|") {
			break
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return &node{kind: nodeAlternatives, subs: all}, nil
}

func (e *expression) sequence() (*node, error) {
	s := &node{kind: nodeSequence}
	for e.at < len(e.in) && e.peek() != ')' && e.peek() != '|' {
		n, err := e.atom()
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue // (?i) and other flags
		}
		if n, err = e.repeats(n); err != nil {
			return nil, err
		}
		s.subs = append(s.subs, n)
	}
	return s, nil
}

// repeats reads the quantifier of n. A plus after * + ? makes it possessive;
// after braces it repeats once more.
func (e *expression) repeats(n *node) (*node, error) {
	for {
		r := &node{kind: nodeRepeat, subs: []*node{n}, most: many}
		braces := false
		switch {
		case e.take("*"):
		case e.take("+"):
			r.least = 1
		case e.take("?"):
			r.most = 1
		case e.peek() == '{':
			var err error
			if braces, err = e.braces(r); err != nil {
				return nil, err
			}
			if !braces {
				return n, nil // a brace that stands for itself comes next
			}
		default:
			return n, nil
		}
		if n.kind == nodeAnchor || n.kind == nodeAhead || n.kind == nodeBehind {
			return nil, e.refuse("repetition of an assertion")
		}
		switch {
		case braces && r.least == r.most && e.peek() == '?':
			return nil, e.refuse("? after a fixed repetition")
		case e.take("?"):
			r.lazy = true
		case !braces && e.take("+"):
			r.possessive = true
		}
		n = r
	}
}

// braces reads {2}, {2,}, {,2} or {2,5}; anything else stands for itself.
func (e *expression) braces(r *node) (bool, error) {
	end := e.at
	for end < len(e.in) && e.in[end] != '}' {
		end++
	}
	if end == len(e.in) {
		return false, nil
	}
	low, high, ranged := strings.Cut(string(e.in[e.at+1:end]), ",")
	if low == "" && high == "" || strings.Trim(low+high, "0123456789") != "" {
		return false, nil
	}
	numbers := [2]int{0, many}
	for i, text := range []string{low, high} {
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n > maxRepeat {
			return false, e.refuse("repetition " + string(e.in[e.at:end+1]))
		}
		numbers[i] = n
	}
	if r.least, r.most = numbers[0], numbers[1]; !ranged {
		r.most = r.least
	}
	if r.least > r.most {
		return false, e.refuse("repetition " + string(e.in[e.at:end+1]))
	}
	e.at = end + 1
	return true, nil
}

func (e *expression) atom() (*node, error) {
	c := e.in[e.at]
	switch c {
	case '(':
		return e.group()
	case '[':
		e.at++
		is, err := e.set()
		return &node{is: is}, err
	case '\\':
		return e.escape()
	case '^', '$':
		e.at++
		return &node{kind: nodeAnchor, anchor: c}, nil
	case '.':
		e.at++
		if e.all {
			return &node{is: anyCharacter}, nil
		}
		return &node{is: notLineFeed}, nil
	case '*', '+', '?':
		return nil, e.refuse("repetition of nothing")
	}
	e.at++
	return &node{is: e.literal(c)}, nil
}

func anyCharacter(rune) bool  { return true }
func notLineFeed(r rune) bool { return r != '\n' }

// literal is a character that stands for itself, or for all its cases.
func (e *expression) literal(c rune) class {
	if e.fold {
		return folded(func(r rune) bool { return r == c })
	}
	return func(r rune) bool { return r == c }
}

// folded takes a character also where another case of it belongs.
func folded(is class) class {
	return func(r rune) bool {
		if is(r) {
			return true
		}
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			if is(other) {
				return true
			}
		}
		return false
	}
}

func (e *expression) group() (*node, error) {
	if e.depth++; e.depth > maxGroups {
		return nil, e.refuse("this nesting depth")
	}
	defer func(fold, all bool) { e.depth--; e.fold, e.all = fold, all }(e.fold, e.all)
	n := new(node)
	switch e.at++; {
	case e.take("?:"):
		n = nil
	case e.take("?="):
		n.kind = nodeAhead
	case e.take("?!"):
		n.kind, n.negated = nodeAhead, true
	case e.take("?<="):
		n.kind = nodeBehind
	case e.take("?<!"):
		n.kind, n.negated = nodeBehind, true
	case e.take("?>"):
		n.kind = nodeAtomic
	case e.take("?"):
		return e.options()
	default:
		n = nil // what it captures is not asked for
	}
	inner, err := e.alternatives()
	if err != nil {
		return nil, err
	}
	if !e.take(")") {
		return nil, fmt.Errorf("( without ): %w", ErrInvalid)
	}
	if n == nil {
		return inner, nil
	}
	n.subs = []*node{inner}
	if n.kind == nodeBehind {
		n.least, n.most = inner.width()
		if n.most > maxGroups {
			return nil, e.refuse("a lookbehind of this length")
		}
	}
	return n, nil
}

// options reads (?i:...) and (?i), whose effect goes to the end of the group
// around it.
func (e *expression) options() (*node, error) {
	on := true
	for {
		switch c := e.peek(); c {
		case '-':
			on = false
		case 'i':
			e.fold = on
		case 'm':
			e.all = on
		case ':', ')':
			e.at++
			inner, err := e.alternatives()
			if err != nil {
				return nil, err
			}
			if c == ':' && !e.take(")") {
				return nil, fmt.Errorf("( without ): %w", ErrInvalid)
			}
			return inner, nil
		default:
			return nil, e.refuse("group (?" + string(c))
		}
		e.at++
	}
}

// width is how many characters a node takes.
func (n *node) width() (least, most int) {
	switch n.kind {
	case nodeCharacter:
		return 1, 1
	case nodeSequence:
		for _, s := range n.subs {
			l, m := s.width()
			least, most = least+l, min(many, most+m)
		}
	case nodeAlternatives:
		least = many
		for _, s := range n.subs {
			l, m := s.width()
			least, most = min(least, l), max(most, m)
		}
	case nodeRepeat:
		l, m := n.subs[0].width()
		return l * n.least, min(many, m*min(n.most, maxRepeat*maxRepeat))
	case nodeAtomic:
		return n.subs[0].width()
	}
	return least, most
}

func (e *expression) escape() (*node, error) {
	if e.at+1 == len(e.in) {
		return nil, fmt.Errorf("\\ at the end: %w", ErrInvalid)
	}
	c := e.in[e.at+1]
	switch c {
	case 'b', 'B', 'A', 'z', 'Z':
		e.at += 2
		return &node{kind: nodeAnchor, anchor: c}, nil
	case 'w', 'W': // in addition to the class of sets, the numbers of Latin-1
		e.at += 2
		is := e.c.wordOutside
		if c == 'W' {
			is = not(is)
		}
		return &node{is: is}, nil
	case 'R':
		e.at += 2
		return lineBreak(), nil
	}
	is, single, err := e.member()
	if err != nil {
		return nil, err
	}
	if single >= 0 {
		is = e.literal(single)
	}
	return &node{is: is}, nil
}

// lineBreak is (?>\r\n|[\n-\r\u0085\u2028\u2029]).
func lineBreak() *node {
	one := func(r rune) bool { return '\n' <= r && r <= '\r' || r == 0x85 || r == 0x2028 || r == 0x2029 }
	is := func(c rune) *node { return &node{is: func(r rune) bool { return r == c }} }
	both := &node{kind: nodeSequence, subs: []*node{is('\r'), is('\n')}}
	return &node{kind: nodeAtomic, subs: []*node{{kind: nodeAlternatives, subs: []*node{both, {is: one}}}}}
}
