package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer rewrites a text before it is cut, step by step.
type normalizer []normalizing

// normalizing is one step; its only error is errTooSlow.
type normalizing func(*budget, string) (string, error)

// Lengthens reports whether the normalizer of the tokenizer makes some texts several times as long
// as they are, as normal forms do.
func (t *Tokenizer) Lengthens() bool {
	const composed, compatible = "\U0001d160", "\u3316" // three characters in NFC, six in NFKC
	for _, s := range []string{composed, compatible} {
		if text, err := t.normalize.text(newBudget(len(s)), s); err != nil || len(text) >= 3*len(s) {
			return true
		}
	}
	return false
}

func pure(f func(string) string) normalizing {
	return func(_ *budget, s string) (string, error) { return f(s), nil }
}

// apart is for a step that takes apart what only looks different: how long that makes a text is
// counted first.
func apart(f normalizing) normalizing {
	return func(work *budget, s string) (string, error) {
		if !work.fits(maxDecomposed*len(s)) && !work.fits(decomposedBytes(s)) {
			return "", errTooLong
		}
		return f(work, s)
	}
}

// maxReplacement bounds what one match becomes, in bytes.
const maxReplacement = 64

func (n normalizer) text(b *budget, s string) (string, error) {
	for _, step := range n {
		var err error
		if s, err = step(b, s); err != nil {
			return "", err
		}
		if !b.fits(len(s)) || !b.spend(len(s)) {
			return "", errTooLong
		}
	}
	return s, nil
}

// errTooLong means that the text grew too much: a few rules that each double it
// would fill memory.
var errTooLong = fmt.Errorf("the normalizer expands this text too much: %w", errTooSlow)

// span normalizes a span. What becomes of its head by itself is its new head.
func (n normalizer) span(b *budget, s span) (span, error) {
	head, err := n.text(b, s.text[:s.head])
	if err != nil {
		return span{}, err
	}
	text, err := n.text(b, s.text)
	return span{text, min(len(head), len(text))}, err
}

// normalizers builds normalizers; their tables are made once.
type normalizers struct {
	forms *forms
	c     *categories
}

func (n *normalizers) tables() *forms {
	if n.forms == nil {
		n.forms = newForms()
	}
	return n.forms
}

// normalizerKinds are the components that are known.
func normalizerKinds() map[string]func(*normalizers, component) (normalizing, error) {
	form := func(of func(*forms) normalizing) func(*normalizers, component) (normalizing, error) {
		return func(n *normalizers, _ component) (normalizing, error) { return of(n.tables()), nil }
	}
	plain := func(f func(string) string) func(*normalizers, component) (normalizing, error) {
		return func(*normalizers, component) (normalizing, error) { return pure(f), nil }
	}
	return map[string]func(*normalizers, component) (normalizing, error){
		"NFC":       form(func(f *forms) normalizing { return f.nfc }),
		"NFD":       form(func(f *forms) normalizing { return f.nfd }),
		"NFKC":      form(func(f *forms) normalizing { return apart(f.nfkc) }),
		"NFKD":      form(func(f *forms) normalizing { return apart(f.nfkd) }),
		"Lowercase": plain(lowerCase), "Nmt": plain(nmt), "ByteLevel": plain(toAlphabet),
		"Strip": (*normalizers).strip, "StripAccents": (*normalizers).stripAccents, "BertNormalizer": (*normalizers).bert,
		"Replace": (*normalizers).replace, "Prepend": (*normalizers).prepend, "Precompiled": (*normalizers).precompiled,
	}
}

// readNormalizer builds the normalizer of a tokenizer.json. alphabet: its
// output is in the alphabet of byte-level BPE.
func readNormalizer(raw json.RawMessage, c *categories) (out normalizer, alphabet bool, err error) {
	steps, err := flatten(raw, "normalizer", "normalizers")
	if err != nil {
		return nil, false, err
	}
	known := normalizerKinds()
	n := normalizers{c: c}
	for i, s := range steps {
		build, ok := known[s.kind]
		if !ok {
			return nil, false, unsupported("normalizer", s.kind, known)
		}
		if alphabet = s.kind == "ByteLevel"; alphabet && i != len(steps)-1 {
			return nil, false, fmt.Errorf("normalizer ByteLevel precedes other normalizers: %w", ErrUnsupported)
		}
		step, err := build(&n, s)
		if err != nil {
			return nil, false, err
		}
		out = append(out, step)
	}
	return out, alphabet, nil
}

func (*normalizers) strip(c component) (normalizing, error) {
	var f struct {
		Left  bool `json:"strip_left"`
		Right bool `json:"strip_right"`
	}
	err := c.into(&f)
	return pure(func(s string) string {
		if f.Left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if f.Right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}), err
}

func (*normalizers) stripAccents(component) (normalizing, error) {
	is := newCombining()
	return pure(func(s string) string { return without(s, is) }), nil
}

// without takes characters out of s.
func without(s string, is class) string {
	return strings.Map(func(r rune) rune {
		if is(r) {
			return -1
		}
		return r
	}, s)
}

// bert cleans text as BERT does.
func (n *normalizers) bert(c component) (normalizing, error) {
	f := struct {
		Clean   bool  `json:"clean_text"`
		Chinese bool  `json:"handle_chinese_chars"`
		Accents *bool `json:"strip_accents"`
		Lower   bool  `json:"lowercase"`
	}{Clean: true, Chinese: true, Lower: true}
	if err := c.into(&f); err != nil {
		return nil, err
	}
	control, accent, forms := newControl(), newAccent(), n.tables()
	return func(work *budget, s string) (string, error) {
		if f.Clean {
			s = strings.Map(func(r rune) rune {
				switch {
				case control(r):
					return -1
				case unicode.IsSpace(r):
					return ' '
				}
				return r
			}, s)
		}
		if f.Chinese {
			s = spaceChinese(s)
		}
		if f.Accents == nil && f.Lower || isTrue(f.Accents) {
			var err error
			if s, err = forms.nfd(work, s); err != nil {
				return "", err
			}
			s = without(s, accent)
		}
		if f.Lower {
			s = lowerCase(s)
		}
		return s, nil
	}, nil
}

// spaceChinese puts spaces around what BERT takes for Chinese.
func spaceChinese(s string) string {
	if !strings.ContainsFunc(s, isChinese) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isChinese(r rune) bool {
	switch {
	case 0x4e00 <= r && r <= 0x9fff, 0x3400 <= r && r <= 0x4dbf, 0x20000 <= r && r <= 0x2a6df, 0x2a700 <= r && r <= 0x2b73f,
		0x2b740 <= r && r <= 0x2b81f, 0x2b920 <= r && r <= 0x2ceaf, 0xf900 <= r && r <= 0xfaff, 0x2f800 <= r && r <= 0x2fa1f:
		return true
	}
	return false
}

// nmt is what machine translation models clean away.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 1 <= r && r <= 8, r == 0xb, 0xe <= r && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == 9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, 0x200b <= r && r <= 0x200f, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		}
		return r
	}, s)
}

func (n *normalizers) replace(c component) (normalizing, error) {
	var f struct {
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := c.into(&f); err != nil {
		return nil, err
	}
	if err := f.Pattern.check(c.kind); err != nil {
		return nil, err
	}
	if len(f.Content) > maxReplacement {
		return nil, fmt.Errorf("normalizer Replace inserts %d bytes, more than %d: %w", len(f.Content), maxReplacement, ErrUnsupported)
	}
	if f.Pattern.String != nil {
		if *f.Pattern.String == "" {
			return nil, fmt.Errorf("normalizer Replace replaces an empty string: %w", ErrUnsupported)
		}
		return replacing(*f.Pattern.String, f.Content), nil
	}
	find, err := n.c.finder(*f.Pattern.Regex)
	if err != nil {
		return nil, err
	}
	return func(work *budget, s string) (string, error) {
		var b strings.Builder
		at := 0
		fits := true
		err := find(work, s, func(from, to int) {
			if fits = fits && work.fits(b.Len()+from-at+len(f.Content)); !fits {
				return
			}
			b.WriteString(s[at:from])
			b.WriteString(f.Content)
			at = to
		})
		if err == nil && !fits {
			err = errTooLong
		}
		if err != nil {
			return "", err
		}
		b.WriteString(s[at:])
		return b.String(), nil
	}, nil
}

// replacing counts the matches before it makes a text of them.
func replacing(from, to string) normalizing {
	return func(work *budget, s string) (string, error) {
		if !work.fits(len(s) + strings.Count(s, from)*(len(to)-len(from))) {
			return "", errTooLong
		}
		return strings.ReplaceAll(s, from, to), nil
	}
}

func (*normalizers) prepend(c component) (normalizing, error) {
	var f struct {
		Prepend string `json:"prepend"`
	}
	if err := c.into(&f); err != nil {
		return nil, err
	}
	if len(f.Prepend) > maxReplacement {
		return nil, fmt.Errorf("normalizer Prepend inserts %d bytes, more than %d: %w", len(f.Prepend), maxReplacement, ErrUnsupported)
	}
	return pure(func(s string) string {
		if s == "" {
			return s
		}
		return f.Prepend + s
	}), nil
}

func (*normalizers) precompiled(c component) (normalizing, error) {
	var f struct {
		Map []byte `json:"precompiled_charsmap"`
	}
	if err := c.into(&f); err != nil {
		return nil, err
	}
	m, err := newCharsMap(f.Map)
	if err != nil {
		return nil, err
	}
	return m.text, nil
}

// charsMap rewrites characters as SentencePiece does: a double array trie of
// what is rewritten, and what becomes of it.
type charsMap struct {
	trie  []uint32
	texts string
	graphemes
}

// newCharsMap reads a map: the bytes of the trie, the trie in little-endian
// words, and texts that end in a zero.
func newCharsMap(raw []byte) (*charsMap, error) {
	if len(raw) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap has %d bytes: %w", len(raw), ErrInvalid)
	}
	word := func(i int) uint32 {
		return uint32(raw[i]) | uint32(raw[i+1])<<8 | uint32(raw[i+2])<<16 | uint32(raw[i+3])<<24
	}
	n := word(0)
	if n%4 != 0 || int64(n) > int64(len(raw)-4) || n == 0 {
		return nil, fmt.Errorf("precompiled_charsmap of %d bytes has a trie of %d: %w", len(raw), n, ErrInvalid)
	}
	m := &charsMap{texts: string(raw[4+n:]), graphemes: newGraphemes()}
	for i := 4; i < int(4+n); i += 4 {
		m.trie = append(m.trie, word(i))
	}
	if !utf8.ValidString(m.texts) {
		return nil, fmt.Errorf("precompiled_charsmap contains invalid UTF-8: %w", ErrInvalid)
	}
	return m, nil
}

// maxRewritten bounds what one character becomes.
const maxRewritten = 1 << 10

// replaced finds what the shortest part at the start of s that is in the map
// becomes. The reference takes it for all of s.
func (m *charsMap) replaced(s string) (string, bool) {
	at := offset(m.trie[0])
	for i := range len(s) {
		at ^= uint32(s[i])
		if s[i] == 0 || int(at) >= len(m.trie) {
			return "", false
		}
		unit := m.trie[at]
		if unit&(1<<31|0xff) != uint32(s[i]) {
			return "", false
		}
		if at ^= offset(unit); unit>>8&1 == 0 {
			continue
		}
		if int(at) >= len(m.trie) {
			return "", false
		}
		from := int(m.trie[at] & (1<<31 - 1))
		if from >= len(m.texts) || !utf8.RuneStart(m.texts[from]) {
			return "", false
		}
		text, _, ok := strings.Cut(m.texts[from:min(from+maxRewritten, len(m.texts))], "\x00")
		return text, ok
	}
	return "", false
}

// offset is how far the children of a unit are.
func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// text rewrites a text: short clusters of characters at once, then characters.
func (m *charsMap) text(work *budget, s string) (string, error) {
	const short = 6 // bytes, as in the reference
	var b strings.Builder
	b.Grow(len(s))
	for len(s) > 0 {
		if !work.fits(b.Len()) {
			return "", errTooLong
		}
		n := m.cluster(s)
		if n < short {
			if text, ok := m.replaced(s[:n]); ok {
				b.WriteString(text)
				s = s[n:]
				continue
			}
		}
		for _, r := range s[:n] {
			if text, ok := m.replaced(string(r)); ok {
				b.WriteString(text)
			} else {
				b.WriteRune(r)
			}
		}
		s = s[n:]
	}
	return b.String(), nil
}

func trimRight(s string) string { return strings.TrimRightFunc(s, unicode.IsSpace) }

// joinSpaces replaces runs of two spaces or more by one mark, as transformers
// does for SentencePiece models.
func joinSpaces(s string) string {
	if !strings.Contains(s, "  ") {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		before, rest, _ := strings.Cut(s, "  ")
		b.WriteString(before)
		if len(before) < len(s) {
			b.WriteString("▁")
		}
		s = strings.TrimLeft(rest, " ")
	}
	return b.String()
}
