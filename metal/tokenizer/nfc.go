package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// forms brings text into the normal forms as the reference does. That differs
// from norm in two ways: the reference knows the characters of Unicode 9 only,
// and it inserts nothing into long runs of marks.
type forms struct {
	composed map[[2]rune]rune
	late     *unicode.RangeTable
	// compat are the characters that Unicode gave a compatibility form after
	// version 9.
	compat *unicode.RangeTable
}

// lateMarks are what Unicode gave a combining class, or a composition, after
// version 9, up to the version of the tables in norm.
func lateMarks() *unicode.RangeTable {
	return &unicode.RangeTable{
		R16: []unicode.Range16{
			{0x7fd, 0x7fd, 1}, {0x898, 0x89f, 1}, {0x8ca, 0x8d3, 1}, {0x9fe, 0x9fe, 1}, {0xc3c, 0xc3c, 1}, {0xd3b, 0xd3c, 1},
			{0xeba, 0xeba, 1}, {0x1715, 0x1715, 1}, {0x1abf, 0x1ace, 1}, {0x1df6, 0x1dfa, 1}, {0xa82c, 0xa82c, 1},
		},
		R32: []unicode.Range32{
			{0x10d24, 0x10d27, 1}, {0x10eab, 0x10eac, 1}, {0x10efd, 0x10eff, 1}, {0x10f46, 0x10f50, 1}, {0x10f82, 0x10f85, 1},
			{0x11070, 0x11070, 1}, {0x1133b, 0x1133b, 1}, {0x1145e, 0x1145e, 1}, {0x11839, 0x1183a, 1}, {0x11938, 0x11938, 1},
			{0x1193d, 0x1193e, 1}, {0x11943, 0x11943, 1}, {0x119e0, 0x119e0, 1}, {0x11a34, 0x11a34, 1}, {0x11a47, 0x11a47, 1},
			{0x11a99, 0x11a99, 1}, {0x11d42, 0x11d42, 1}, {0x11d44, 0x11d45, 1}, {0x11d97, 0x11d97, 1}, {0x11f41, 0x11f42, 1},
			{0x16ff0, 0x16ff1, 1}, {0x1e08f, 0x1e08f, 1}, {0x1e130, 0x1e136, 1}, {0x1e2ae, 0x1e2ae, 1}, {0x1e2ec, 0x1e2ef, 1},
			{0x1e4ec, 0x1e4ef, 1},
		},
	}
}

// newForms collects the pairs that compose, which all lie in a few blocks.
func newForms() *forms {
	n := &forms{
		composed: map[[2]rune]rune{}, late: lateMarks(),
		compat: ranges("32ff a7f2-a7f4 ab69 10781-10785 10787-107b0 107b2-107ba 1e030-1e06d 1f16c 1fbf0-1fbf9"),
	}
	for _, block := range [][2]rune{{0xc0, 0x30ff}, {0x11000, 0x11fff}} {
		for r := block[0]; r <= block[1]; r++ {
			s := string(r)
			d := []rune(string(norm.NFC.PropertiesString(s).Decomposition()))
			if len(d) < 2 || norm.NFC.String(s) != s || unicode.Is(n.late, r) {
				continue // no pair, or one that stays apart
			}
			// The decomposition is full; the pair is its last character and
			// what the others compose to.
			first, last := []rune(norm.NFC.String(string(d[:len(d)-1]))), d[len(d)-1]
			if len(first) == 1 {
				n.composed[[2]rune{first[0], last}] = r
			}
		}
	}
	return n
}

// nfc composes s; nfd takes it apart, nfkd and nfkc also what only looks
// different.
func (n *forms) nfc(work *budget, s string) (string, error) {
	if norm.NFC.IsNormalString(s) {
		return s, nil
	}
	return n.formed(work, s, norm.NFD, true)
}

func (n *forms) nfd(work *budget, s string) (string, error) {
	return n.formed(work, s, norm.NFD, false)
}

func (n *forms) nfkd(work *budget, s string) (string, error) {
	return n.formed(work, s, norm.NFKD, false)
}

func (n *forms) nfkc(work *budget, s string) (string, error) {
	return n.formed(work, s, norm.NFKD, true)
}

// formed takes a text apart, orders its marks, and composes it if that is wanted, character by
// character. It asks now and then whether to go on.
func (n *forms) formed(work *budget, s string, by norm.Form, compose bool) (string, error) {
	f := forming{forms: n, compose: compose, starter: -1}
	f.out.Grow(min(len(s), stopSteps))
	var b [maxDecomposed * utf8.UTFMax]byte
	asked := 0
	for i, r := range s {
		if i-asked >= stopSteps {
			if asked == 0 { // most texts go on as they begin
				f.out.Grow(min(f.out.Len()/16+len(s)/i*f.out.Len(), work.most))
			}
			if asked = i; !work.goesOn() || !work.fits(f.out.Len()) {
				return "", errTooLong
			}
		}
		if r < 0xa0 || unicode.Is(n.late, r) {
			f.add(r, 0)
			continue
		}
		if by == norm.NFKD && unicode.Is(n.compat, r) {
			f.add(r, n.class(r))
			continue
		}
		if !isSyllable(r) {
			if p := by.PropertiesString(s[i:]); p.Decomposition() == nil {
				f.add(r, p.CCC())
				continue
			}
		}
		for rest := decomposed(b[:0], r, by); len(rest) > 0; {
			r, size := utf8.DecodeRune(rest)
			f.add(r, n.class(r))
			rest = rest[size:]
		}
	}
	f.join()
	f.write()
	return f.out.String(), nil
}

// forming is a text on its way to a normal form: what was written, and the last starter with the
// marks after it, by class and within a class in the order of the text.
type forming struct {
	*forms
	compose bool
	out     strings.Builder
	starter rune // -1 before the first
	marks   [256][]byte
	classes []uint8 // that have marks
}

// keptMarks is how many bytes of the marks of a class have their memory kept for others.
const keptMarks = 1 << 10

// add takes the next character and its class.
func (f *forming) add(r rune, class uint8) {
	if class != 0 {
		if len(f.marks[class]) == 0 {
			f.classes = append(f.classes, class)
		}
		f.marks[class] = utf8.AppendRune(f.marks[class], r)
		return
	}
	if f.join(); f.compose && f.starter >= 0 && r >= 0x300 && len(f.classes) == 0 { // no other character joins one before it
		if c, ok := f.pair(f.starter, r); ok {
			f.starter = c
			return
		}
	}
	f.write()
	f.starter = r
}

// join joins the starter with the marks that are not blocked. Of a class, these are the first ones.
// What it leaves is to be written before the next character.
func (f *forming) join() {
	slices.Sort(f.classes)
	if !f.compose || f.starter < 0 {
		return
	}
	left := f.classes[:0]
	for _, class := range f.classes {
		marks := f.marks[class]
		joined := 0
		for joined < len(marks) {
			r, size := utf8.DecodeRune(marks[joined:])
			c, ok := f.pair(f.starter, r)
			if !ok {
				break
			}
			f.starter = c
			joined += size
		}
		f.marks[class] = append(marks[:0], marks[joined:]...)
		if len(f.marks[class]) > 0 {
			left = append(left, class)
		}
	}
	f.classes = left
}

// write writes the starter and its marks.
func (f *forming) write() {
	if f.starter >= 0 {
		f.out.WriteRune(f.starter)
	}
	for _, class := range f.classes {
		f.out.Write(f.marks[class])
		if f.marks[class] = f.marks[class][:0]; cap(f.marks[class]) > keptMarks {
			f.marks[class] = nil
		}
	}
	f.classes, f.starter = f.classes[:0], -1
}

// class is the canonical combining class that the reference knows.
func (n *forms) class(r rune) uint8 {
	if r < 0x300 || unicode.Is(n.late, r) {
		return 0
	}
	var b [utf8.UTFMax]byte
	return norm.NFC.Properties(b[:utf8.EncodeRune(b[:], r)]).CCC()
}

// decomposed appends a character, or what it is taken apart into.
func decomposed(to []byte, r rune, by norm.Form) []byte {
	if s := r - sBase; isSyllable(r) {
		to = utf8.AppendRune(to, lBase+s/(vCount*tCount))
		to = utf8.AppendRune(to, vBase+s%(vCount*tCount)/tCount)
		if t := s % tCount; t > 0 {
			to = utf8.AppendRune(to, tBase+t)
		}
		return to
	}
	to = utf8.AppendRune(to, r)
	if d := by.Properties(to).Decomposition(); d != nil {
		to = append(to[:0], d...)
	}
	return to
}

// maxDecomposed is how many times longer than a character at most what it is taken apart into is:
// U+FDFA, of three bytes, is 33.
const maxDecomposed = 11

// decomposedBytes is how long a text is at most once it is taken apart.
func decomposedBytes(s string) (n int) {
	var b [maxDecomposed * utf8.UTFMax]byte
	for _, r := range s {
		if r < 0xa0 {
			n++
		} else {
			n += len(decomposed(b[:0], r, norm.NFKD))
		}
	}
	return n
}

// Hangul is taken apart and composed by arithmetic (Unicode, section 3.12).
const (
	lBase, vBase, tBase, sBase = 0x1100, 0x1161, 0x11a7, 0xac00
	lCount, vCount, tCount     = 19, 21, 28
)

// isSyllable reports whether a character is a syllable of Hangul.
func isSyllable(r rune) bool { return sBase <= r && r < sBase+lCount*vCount*tCount }

// pair composes two characters.
func (n *forms) pair(a, b rune) (rune, bool) {
	if l, v := a-lBase, b-vBase; 0 <= l && l < lCount && 0 <= v && v < vCount {
		return sBase + (l*vCount+v)*tCount, true
	}
	if s, t := a-sBase, b-tBase; 0 <= s && s < lCount*vCount*tCount && s%tCount == 0 && 0 < t && t < tCount {
		return a + t, true
	}
	c, ok := n.composed[[2]rune{a, b}]
	return c, ok
}
