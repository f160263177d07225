package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// span is a part of a text on its way to the model.
type span struct {
	text string
	// head is how many of its first bytes stem from the first character of the
	// whole text: what stands at the very start is special to Metaspace.
	head int
}

// part is a piece of a span.
func (s span) part(from, to int) span {
	return span{s.text[from:to], min(max(0, s.head-from), to-from)}
}

// cutter cuts a span into pieces that no token crosses, in order. It may leave
// out and rewrite parts; out gets no empty piece. Only a pattern that is not
// known beforehand can fail, with errTooSlow.
type cutter func(b *budget, in span, out func(span)) error

// then cuts the pieces of a by b.
func (a cutter) then(b cutter) cutter {
	if a == nil {
		return b
	}
	return func(work *budget, in span, out func(span)) error {
		var inner error
		err := a(work, in, func(s span) {
			if inner == nil {
				inner = b(work, s, out)
			}
		})
		if inner != nil {
			return inner
		}
		return err
	}
}

// preTokenizing is a pre-tokenizer in the making.
type preTokenizing struct {
	cut cutter
	c   *categories
	// bytes: the pieces are in the alphabet of byte-level BPE; written: they
	// were already rewritten into it. The model reads bytes, so that rewriting
	// only happens if another step needs it.
	bytes, written bool
}

// then adds a step that reads text as it is written.
func (p *preTokenizing) then(c cutter) {
	if p.bytes && !p.written {
		p.cut, p.written = p.cut.then(writeAlphabet), true
	}
	p.cut = p.cut.then(c)
}

// cutter returns the finished pre-tokenizer; nil if a text is one piece. raw:
// the model reads bytes, not characters of the alphabet.
func (p *preTokenizing) cutter(raw bool) cutter {
	switch {
	case p.written && raw:
		return p.cut.then(readAlphabet)
	case p.bytes && !p.written && !raw:
		return p.cut.then(writeAlphabet)
	}
	return p.cut
}

func writeAlphabet(_ *budget, in span, out func(span)) error {
	text := toAlphabet(in.text)
	head := len(toAlphabet(in.text[:min(in.head, len(in.text))]))
	out(span{text, head})
	return nil
}

func readAlphabet(_ *budget, in span, out func(span)) error {
	raw, ok := appendAlphabet(nil, in.text)
	if !ok {
		return fmt.Errorf("%.80q is not in the alphabet of byte-level BPE: %w", in.text, ErrInvalid)
	}
	if len(raw) > 0 {
		out(span{text: string(raw)})
	}
	return nil
}

// preTokenizerKinds are the components that are known.
func preTokenizerKinds() map[string]func(*preTokenizing, component) error {
	return map[string]func(*preTokenizing, component) error{
		"ByteLevel": (*preTokenizing).byteLevel,
		"Digits":    (*preTokenizing).digits,
		"Split":     (*preTokenizing).split,
		"Metaspace": (*preTokenizing).metaspace, "Whitespace": (*preTokenizing).whitespace, "WhitespaceSplit": (*preTokenizing).whitespaceSplit,
		"BertPreTokenizer": (*preTokenizing).bert, "Punctuation": (*preTokenizing).punctuation,
		"CharDelimiterSplit": (*preTokenizing).delimiter,
	}
}

// readPreTokenizer builds the pre-tokenizer of a tokenizer.json.
func readPreTokenizer(raw json.RawMessage, p *preTokenizing) error {
	steps, err := flatten(raw, "pre_tokenizer", "pretokenizers")
	if err != nil {
		return err
	}
	known := preTokenizerKinds()
	for _, s := range steps {
		build, ok := known[s.kind]
		if !ok {
			return unsupported("pre_tokenizer", s.kind, known)
		}
		if err := build(p, s); err != nil {
			return err
		}
	}
	return nil
}

func (p *preTokenizing) byteLevel(c component) error {
	f := struct {
		AddPrefixSpace bool `json:"add_prefix_space"`
		UseRegex       bool `json:"use_regex"`
	}{AddPrefixSpace: true, UseRegex: true}
	if err := c.into(&f); err != nil {
		return err
	}
	if p.bytes {
		return fmt.Errorf("ByteLevel is applied twice: %w", ErrUnsupported)
	}
	if f.AddPrefixSpace {
		p.cut = p.cut.then(prefixSpace)
	}
	if f.UseRegex {
		p.cut = p.cut.then(isolating(p.c.gpt2()))
	}
	p.bytes = true
	return nil
}

func prefixSpace(_ *budget, in span, out func(span)) error {
	if !strings.HasPrefix(in.text, " ") {
		in.text = " " + in.text
		if in.head > 0 {
			in.head++
		}
	}
	out(in)
	return nil
}

func (p *preTokenizing) digits(c component) error {
	var f struct {
		Individual bool `json:"individual_digits"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	b := contiguous
	if f.Individual {
		b = isolated
	}
	p.then(behaving(eachRune(newNumeric()), b, false))
	return nil
}

func (p *preTokenizing) split(c component) error {
	var f struct {
		Pattern  pattern `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	if err := f.Pattern.check(c.kind); err != nil {
		return err
	}
	b, err := readBehavior(f.Behavior)
	if err != nil {
		return err
	}
	if f.Pattern.String != nil {
		p.then(behaving(eachString(*f.Pattern.String), b, f.Invert))
		return nil
	}
	find, err := p.c.finder(*f.Pattern.Regex)
	if err != nil {
		return err
	}
	p.then(behaving(find, b, f.Invert))
	return nil
}

// finder finds the matches of an expression.
func (c *categories) finder(expr string) (finder, error) {
	if scan, ok := knownScanner(c, expr); ok {
		return scan.finder(), nil
	}
	return c.compile(expr)
}

// isolating cuts out each match.
func isolating(s scanner) cutter { return behaving(s.finder(), isolated, false) }

// finder calls found for each place in s that matches, from left to right.
type finder func(b *budget, s string, found func(from, to int)) error

func (scan scanner) finder() finder {
	return func(_ *budget, s string, found func(int, int)) error {
		scan(s, found)
		return nil
	}
}

func eachRune(is class) finder {
	return func(_ *budget, s string, found func(int, int)) error {
		for i := 0; i < len(s); {
			r, n := utf8.DecodeRuneInString(s[i:])
			if is(r) {
				found(i, i+n)
			}
			i += n
		}
		return nil
	}
}

func eachString(what string) finder {
	return func(_ *budget, s string, found func(int, int)) error {
		for i := 0; what != ""; {
			at := strings.Index(s[i:], what)
			if at < 0 {
				break
			}
			found(i+at, i+at+len(what))
			i += at + len(what)
		}
		return nil
	}
}

// behavior is the treatment of the matches of a pattern.
type behavior string

const (
	isolated     behavior = "Isolated"
	removed      behavior = "Removed"
	contiguous   behavior = "Contiguous"
	withPrevious behavior = "MergedWithPrevious"
	withNext     behavior = "MergedWithNext"
)

func readBehavior(s string) (behavior, error) {
	switch b := behavior(s); b {
	case isolated, removed, contiguous, withPrevious, withNext:
		return b, nil
	}
	known := map[string]bool{string(isolated): true, string(removed): true, string(contiguous): true, string(withPrevious): true, string(withNext): true}
	return "", unsupported("behavior", s, known)
}

// stretch is a part of a text that matches or lies between matches.
type stretch struct {
	from, to int
	match    bool
}

// behaving cuts a text at its matches; invert takes what lies between them for
// the matches.
func behaving(find finder, b behavior, invert bool) cutter {
	return func(work *budget, in span, out func(span)) error {
		j := joiner{behavior: b, out: func(s stretch) {
			if s.from < s.to {
				out(in.part(s.from, s.to))
			}
		}}
		at := 0
		err := find(work, in.text, func(from, to int) {
			if at < from {
				j.add(stretch{at, from, invert})
			}
			j.add(stretch{from, to, !invert})
			at = to
		})
		if err != nil {
			return err
		}
		if at < len(in.text) {
			j.add(stretch{at, len(in.text), invert})
		}
		j.flush()
		return nil
	}
}

// joiner joins stretches as a behavior says. The last one waits for what
// follows.
type joiner struct {
	behavior
	out      func(stretch)
	last     stretch
	waiting  bool
	previous bool // whether the stretch before was a match
}

func (j *joiner) add(s stretch) {
	join := false
	switch j.behavior {
	case removed:
		if !s.match {
			j.out(s)
		}
		return
	case isolated:
	case contiguous:
		join = s.match == j.previous
	case withPrevious:
		join = s.match && !j.previous
	case withNext:
		// A match joins what follows it unless that is a match, too.
		join = j.waiting && j.last.match && !s.match
	}
	j.previous = s.match
	if join && j.waiting {
		j.last.to = s.to
		j.last.match = s.match
		return
	}
	j.flush()
	j.last, j.waiting = s, true
}

func (j *joiner) flush() {
	if j.waiting {
		j.out(j.last)
	}
	j.waiting = false
}

// whitespace keeps the matches of \w+|[^\w\s]+.
func (p *preTokenizing) whitespace(component) error {
	word := newWord()
	const nothing, inWord, between = 0, 1, 2
	kind := func(r rune) int {
		switch {
		case word(r):
			return inWord
		case unicode.IsSpace(r):
			return nothing
		}
		return between
	}
	p.then(behaving(func(_ *budget, s string, found func(int, int)) error {
		from, in := 0, nothing
		for i, r := range s {
			if k := kind(r); k != in {
				if in != nothing {
					found(from, i)
				}
				from, in = i, k
			}
		}
		if in != nothing {
			found(from, len(s))
		}
		return nil
	}, removed, true))
	return nil
}

func (p *preTokenizing) whitespaceSplit(component) error {
	p.then(behaving(eachRune(unicode.IsSpace), removed, false))
	return nil
}

func (p *preTokenizing) bert(component) error {
	p.then(behaving(eachRune(unicode.IsSpace), removed, false))
	p.then(behaving(eachRune(newPunctuation()), isolated, false))
	return nil
}

func (p *preTokenizing) punctuation(c component) error {
	f := struct {
		Behavior string `json:"behavior"`
	}{string(isolated)}
	if err := c.into(&f); err != nil {
		return err
	}
	b, err := readBehavior(f.Behavior)
	if err != nil {
		return err
	}
	p.then(behaving(eachRune(newPunctuation()), b, false))
	return nil
}

func (p *preTokenizing) delimiter(c component) error {
	var f struct {
		Delimiter string `json:"delimiter"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	if utf8.RuneCountInString(f.Delimiter) != 1 {
		return fmt.Errorf("%s splits at %.80q, want one character: %w", c.kind, f.Delimiter, ErrInvalid)
	}
	p.then(behaving(eachString(f.Delimiter), removed, false))
	return nil
}
