package grammar

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// runeRange is characters from lo to hi, both included.
type runeRange struct{ lo, hi rune }

// runeSet is ranges in order that do not touch.
type runeSet []runeRange

func anyRune() runeSet { return newRuneSet(runeRange{0, utf8.MaxRune}) }

// newRuneSet puts ranges in order; surrogates are no characters.
func newRuneSet(ranges ...runeRange) runeSet {
	var cut []runeRange
	for _, r := range ranges {
		r.lo, r.hi = max(r.lo, 0), min(r.hi, utf8.MaxRune)
		if r.lo < 0xd800 && r.hi >= 0xd800 {
			cut = append(cut, runeRange{r.lo, 0xd7ff})
			r.lo = 0xe000
		} else if r.lo >= 0xd800 && r.lo <= 0xdfff {
			r.lo = 0xe000
		}
		if r.hi >= 0xd800 && r.hi <= 0xdfff {
			r.hi = 0xd7ff
		}
		if r.lo <= r.hi {
			cut = append(cut, r)
		}
	}
	slices.SortFunc(cut, func(a, b runeRange) int { return cmp.Compare(a.lo, b.lo) })
	var out runeSet
	for _, r := range cut {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

// not is every other character.
func (s runeSet) not() runeSet {
	var out []runeRange
	next := rune(0)
	for _, r := range s {
		out = append(out, runeRange{next, r.lo - 1})
		next = r.hi + 1
	}
	return newRuneSet(append(out, runeRange{next, utf8.MaxRune})...)
}

// both are the characters of two sets.
func (s runeSet) both(o runeSet) runeSet {
	var ranges []runeRange
	for _, a := range s {
		for _, b := range o {
			if lo, hi := max(a.lo, b.lo), min(a.hi, b.hi); lo <= hi {
				ranges = append(ranges, runeRange{lo, hi})
			}
		}
	}
	return newRuneSet(ranges...)
}

func (s runeSet) has(c rune) bool {
	i, found := slices.BinarySearchFunc(s, c, func(r runeRange, c rune) int { return cmp.Compare(r.lo, c) })
	return found || i > 0 && c <= s[i-1].hi
}

func (s runeSet) key(prefix string) string {
	out := []byte(prefix)
	for _, r := range s {
		out = binary.AppendUvarint(out, uint64(r.lo))
		out = binary.AppendUvarint(out, uint64(r.hi))
	}
	return string(out)
}

// emitRunes joins two nodes by the UTF-8 of characters.
func (b *builder) emitRunes(s runeSet, from, to int32) {
	for _, r := range s {
		splitUTF8(r.lo, r.hi, func(way []byteRange) {
			at := from
			for i, br := range way {
				next := to
				if i < len(way)-1 {
					next = b.node()
				}
				b.join(at, edge{kind: edgeBytes, lo: br.lo, hi: br.hi, to: next})
				at = next
			}
		})
	}
}

// splitUTF8 gives the ways of bytes that spell the characters from lo to hi.
func splitUTF8(lo, hi rune, out func([]byteRange)) {
	if lo > hi {
		return
	}
	for _, last := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= last && last < hi {
			splitUTF8(lo, last, out)
			splitUTF8(last+1, hi, out)
			return
		}
	}
	for tail := rune(6); tail < 6*rune(utf8.RuneLen(lo)); tail += 6 {
		m := rune(1)<<tail - 1
		if lo&^m == hi&^m {
			continue
		}
		if lo&m != 0 {
			splitUTF8(lo, lo|m, out)
			splitUTF8((lo|m)+1, hi, out)
			return
		}
		if hi&m != m {
			splitUTF8(lo, hi&^m-1, out)
			splitUTF8(hi&^m, hi, out)
			return
		}
	}
	var first, last [4]byte
	n := utf8.EncodeRune(first[:], lo)
	utf8.EncodeRune(last[:], hi)
	way := make([]byteRange, n)
	for i := range way {
		way[i] = byteRange{first[i], last[i]}
	}
	out(way)
}

// spelling is how a character is written: as itself or as an escape.
type spelling int

const (
	plainText spelling = iota
	inJSON
)

// shortEscapes of JSON.
var shortEscapes = map[rune]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// emitSpelt joins two nodes by characters as they are written: the plain ones of
// ASCII directly, all others by a rule that is made once.
func (b *builder) emitSpelt(s runeSet, how spelling, from, to int32) {
	var rest []runeRange
	for _, r := range s {
		for c := r.lo; c <= min(r.hi, 0x7f); c++ {
			last := c
			if how == inJSON && (c < 0x20 || c == '"' || c == '\\') {
				rest = append(rest, runeRange{c, c})
				continue
			}
			for last < min(r.hi, 0x7f) && (how == plainText || last+1 != '"' && last+1 != '\\') {
				last++
			}
			b.join(from, edge{kind: edgeBytes, lo: byte(c), hi: byte(last), to: to})
			c = last
		}
		if r.hi > 0x7f {
			rest = append(rest, runeRange{max(r.lo, 0x80), r.hi})
		}
	}
	if len(rest) > 0 {
		b.join(from, edge{kind: edgeCall, rule: b.spelt(newRuneSet(rest...), how), to: to})
	}
}

// spelt is the rule of characters beyond plain ASCII.
func (b *builder) spelt(s runeSet, how spelling) int32 {
	b.meter.spend(len(s))
	key := s.key(fmt.Sprintf("%d:", how))
	if r, ok := b.sets[key]; ok {
		return r
	}
	r := b.rule()
	b.hold(len(key) + entryBytes)
	b.sets[key] = r
	first, end := b.rules[r], b.node()
	if b.err != nil {
		return r
	}
	b.nodes[end].final = true
	if how == plainText {
		b.emitRunes(s, first, end)
		return r
	}
	for _, part := range s {
		for c := part.lo; c <= part.hi && c < 0x80; c++ {
			if short, ok := shortEscapes[c]; ok {
				b.empty(b.emit(literal([]byte{'\\', short}), first), end)
			} else {
				b.empty(b.emit(literal(fmt.Sprintf(`\u%04x`, c)), first), end)
			}
		}
		b.emitRunes(newRuneSet(runeRange{max(part.lo, 0x80), part.hi}), first, end)
	}
	return r
}
