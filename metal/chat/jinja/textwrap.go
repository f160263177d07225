package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// filterWordWrap wraps each line as Python's textwrap.wrap does, with tabs and
// white space kept.
func filterWordWrap(r *run, v any, a args) (any, error) {
	p, err := a.bind("wordwrap", 0, "width", "break_long_words", "wrapstring", "break_on_hyphens")
	if err != nil {
		return nil, err
	}
	s, err := stringOf("wordwrap", v)
	if err != nil {
		return nil, err
	}
	width, err := wholeNumber("wordwrap", "width", p[0], 79)
	if err != nil {
		return nil, err
	}
	with := "\n"
	if orNil(p[2]) != nil {
		if with, err = stringOf("wordwrap", p[2]); err != nil {
			return nil, err
		}
	}
	w := wrapper{r: r, width: width, breakLong: isAbsent(p[1]) || truth(p[1]), hyphens: isAbsent(p[3]) || truth(p[3])}
	paragraphs, err := r.lines(s, false)
	if err != nil {
		return nil, err
	}
	for i, line := range paragraphs {
		lines, err := w.wrap(line)
		if err != nil {
			return nil, err
		}
		if paragraphs[i], err = r.join(lines, with); err != nil {
			return nil, err
		}
	}
	out, err := r.join(paragraphs, with)
	return out, err
}

type wrapper struct {
	r                  *run
	width              int64
	breakLong, hyphens bool
}

// chunk is what stays together on a line: a word, a part of one up to a hyphen,
// or white space; n counts its characters.
type chunk struct {
	text string
	n    int64
}

func (c chunk) blank() bool { return strings.TrimFunc(c.text, isSpace) == "" }

// wrapSpace is white space as textwrap sees it: ASCII only.
const wrapSpace = "\t\n\v\f\r "

func (w wrapper) wrap(text string) ([]string, error) {
	if w.width <= 0 {
		return nil, failf("wordwrap: the width is %d", w.width)
	}
	if err := w.r.chargeTimes(4*textBytes, int64(len(text)/2+1)); err != nil {
		return nil, err
	}
	chunks := w.chunks(text)
	var lines []string
	for len(chunks) > 0 {
		if err := w.r.step(); err != nil {
			return nil, err
		}
		if len(lines) > 0 && chunks[0].blank() {
			chunks = chunks[1:]
		}
		var line []chunk
		line, chunks = w.line(chunks)
		if n := len(line); n > 0 && line[n-1].blank() {
			line = line[:n-1]
		}
		if len(line) == 0 {
			continue
		}
		var b strings.Builder
		for _, c := range line {
			b.WriteString(c.text)
		}
		if err := w.r.charge(b.Len() + textBytes); err != nil {
			return nil, err
		}
		lines = append(lines, b.String())
	}
	return lines, nil
}

// line fills one line, and returns what is left.
func (w wrapper) line(chunks []chunk) (line, rest []chunk) {
	used, n := int64(0), 0
	for n < len(chunks) && used+chunks[n].n <= w.width {
		used += chunks[n].n
		n++
	}
	line, rest = chunks[:n:n], chunks[n:]
	if len(rest) == 0 || rest[0].n <= w.width {
		return line, rest
	}
	// A chunk that fits into no line.
	if !w.breakLong {
		if n == 0 {
			return rest[:1:1], rest[1:]
		}
		return line, rest
	}
	long, take := rest[0], w.width-used
	end := place(long.text, take)
	if w.hyphens {
		if at := strings.LastIndexByte(long.text[:end], '-'); at > 0 && strings.Trim(long.text[:at], "-") != "" {
			end, take = at+1, int64(utf8.RuneCountInString(long.text[:at+1]))
		}
	}
	rest[0] = chunk{long.text[end:], long.n - take}
	return append(line, chunk{long.text[:end], take}), rest
}

// place is where the n-th character begins, in bytes.
func place(s string, n int64) int {
	for at := range s {
		if n == 0 {
			return at
		}
		n--
	}
	return len(s)
}

func (w wrapper) chunks(text string) []chunk {
	var out []chunk
	for text != "" {
		n := len(text) - len(strings.TrimLeft(text, wrapSpace))
		if n > 0 {
			out = append(out, chunk{text[:n], int64(n)})
			text = text[n:]
			continue
		}
		if n = strings.IndexAny(text, wrapSpace); n < 0 {
			n = len(text)
		}
		if w.hyphens {
			out = hyphenated(out, []rune(text[:n]))
		} else {
			out = append(out, chunk{text[:n], int64(utf8.RuneCountInString(text[:n]))})
		}
		text = text[n:]
	}
	return out
}

// hyphenated cuts a word behind hyphens between letters, and around dashes.
func hyphenated(out []chunk, word []rune) []chunk {
	for from := 0; from < len(word); {
		to := partEnd(word, from)
		out = append(out, chunk{string(word[from:to]), int64(to - from)})
		from = to
	}
	return out
}

func partEnd(word []rune, from int) int {
	if n := dash(word, from); n > 0 {
		return from + n
	}
	at := func(i int) rune {
		if i < 0 || i >= len(word) {
			return ' '
		}
		return word[i]
	}
	letter := func(i int) bool { return isWord(at(i)) && !unicode.IsDigit(at(i)) }
	for i := from + 1; i < len(word); i++ {
		before := letter(i-1) && (letter(i-2) || at(i-2) == '-' && letter(i-3))
		behind := letter(i+1) && (letter(i+2) || at(i+2) == '-' && letter(i+3))
		if word[i] == '-' && before && behind {
			return i + 1
		}
		if dash(word, i) > 0 {
			return i
		}
	}
	return len(word)
}

// dash measures hyphens between a word and the next; 0 where there are not
// two.
func dash(word []rune, from int) int {
	if from == 0 || word[from] != '-' || !(isWord(word[from-1]) || strings.ContainsRune("!\"'&.,?", word[from-1])) {
		return 0
	}
	n := from
	for n < len(word) && word[n] == '-' {
		n++
	}
	if n-from < 2 || n == len(word) || !isWord(word[n]) {
		return 0
	}
	return n - from
}

func isWord(c rune) bool { return c == '_' || isAlnum(c) }
