package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Hand-written scanners for the expressions that the known families split text
// by. Each finds what the expression in its comment matches, alternatives in
// order.

// scanner calls found for each match, from left to right.
type scanner func(s string, found func(from, to int))

// scanning makes a scanner of what measures the match at a place; a place where
// nothing matches is passed over.
func scanning(match func(s string, i int) int) scanner {
	return func(s string, found func(from, to int)) {
		for i := 0; i < len(s); {
			end := match(s, i)
			if end > i {
				found(i, end)
				i = end
				continue
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			i += n
		}
	}
}

// at returns the category and size of the character at i; size is 0 at the end.
func (c *categories) at(s string, i int) (category, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return c.first[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return c.of(r), n
}

// run returns the end of the characters that are any of these from i on.
func (c *categories) run(s string, i int, any category) int {
	for {
		k, n := c.at(s, i)
		if k&any == 0 {
			return i
		}
		i += n
	}
}

// gpt2 follows
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func (c *categories) gpt2() scanner {
	return scanning(func(s string, i int) int {
		if n := contraction(s[i:], false); n > 0 {
			return i + n
		}
		from := i
		if s[i] == ' ' {
			from++
		}
		switch k, _ := c.at(s, from); {
		case k&letter != 0:
			return c.run(s, from, letter)
		case k&number != 0:
			return c.run(s, from, number)
		case k&space == 0 && k != 0:
			return c.run(s, from, ^(letter | number | space))
		}
		return c.spaces(s, i)
	})
}

// spaces takes a run of white space, but leaves its last character to what
// follows, unless it is the only one: \s+(?!\S)|\s+
func (c *categories) spaces(s string, i int) int {
	end := c.run(s, i, space)
	if end == len(s) || end == i {
		return end
	}
	_, last := utf8.DecodeLastRuneInString(s[i:end])
	if end-last > i {
		return end - last
	}
	return end
}

// modern is a family of expressions that begins with Llama 3's:
// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type modern struct {
	c      *categories
	digits int // most digits in a piece
	// word is what a word consists of.
	word category
	// cased ends words where a capital follows a small letter:
	// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|
	// [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
	// and takes a slash like a line break: [\r\n/]*
	cased bool
	// contracts: contractions such as 's precede words (uncased) or end them
	// (cased).
	contracts bool
}

// llama3 has \p{N}{1,3}, qwen2 \p{N}; qwen35 takes marks for letters, as in
// [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+.
func (c *categories) llama3() scanner {
	return scanning(modern{c: c, digits: 3, word: letter, contracts: true}.match)
}

func (c *categories) qwen2() scanner {
	return scanning(modern{c: c, digits: 1, word: letter, contracts: true}.match)
}

func (c *categories) qwen35() scanner {
	return scanning(modern{c: c, digits: 1, word: letter | mark, contracts: true}.match)
}

// o200k has cased words with (?i:'s|'t|'re|'ve|'m|'ll|'d)? and \p{N}{1,3},
// tekken without contractions and with \p{N}.
func (c *categories) o200k() scanner {
	return scanning(modern{c: c, digits: 3, word: letter, cased: true, contracts: true}.match)
}

func (c *categories) tekken() scanner {
	return scanning(modern{c: c, digits: 1, word: letter, cased: true}.match)
}

func (m modern) match(s string, i int) int {
	if m.contracts && !m.cased {
		if n := contraction(s[i:], true); n > 0 {
			return i + n
		}
	}
	k, n := m.c.at(s, i)
	if end := m.words(s, i, k, n); end > i {
		return end
	}
	if k&number != 0 {
		for digits := m.digits; digits > 0 && k&number != 0; digits-- {
			i += n
			k, n = m.c.at(s, i)
		}
		return i
	}
	from := i
	if s[i] == ' ' {
		from++
	}
	if k, _ := m.c.at(s, from); k != 0 && k&(m.word|number|space|letter) == 0 {
		end := m.c.run(s, from, ^(m.word | letter | number | space))
		for end < len(s) && (newline(s[end]) || m.cased && s[end] == '/') {
			end++
		}
		return end
	}
	return m.c.breaks(s, i)
}

// words measures [^\r\n\p{L}\p{N}]? and a word; k and n are of the character
// at i.
func (m modern) words(s string, i int, k category, n int) int {
	leads := k&(letter|number) == 0 && !newline(s[i])
	if !m.cased {
		if leads {
			if end := m.c.run(s, i+n, m.word); end > i+n {
				return end
			}
		}
		return m.c.run(s, i, m.word)
	}
	for _, measure := range []func(string, int) int{m.c.smallEnd, m.c.capitalStart} {
		end := i
		if leads {
			if end = measure(s, i+n); end == i+n {
				end = i
			}
		}
		if end == i {
			end = measure(s, i)
		}
		if end > i {
			if m.contracts {
				end += contraction(s[end:], true)
			}
			return end
		}
	}
	return i
}

// smallEnd measures [capital]*[small]+. What is both goes to the capitals, save
// one where no other small letter follows.
func (c *categories) smallEnd(s string, i int) int {
	both := i // the end of the last character that is both
	end := i
	for {
		k, n := c.at(s, end)
		if k&capital == 0 {
			break
		}
		end += n
		if k&small != 0 {
			both = end
		}
	}
	if k, _ := c.at(s, end); k&small != 0 {
		return c.run(s, end, small)
	}
	return both
}

// capitalStart measures [capital]+[small]*.
func (c *categories) capitalStart(s string, i int) int {
	end := c.run(s, i, capital)
	if end == i {
		return i
	}
	return c.run(s, end, small)
}

// deepseek3 follows
// [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func (c *categories) deepseek3() scanner {
	return scanning(func(s string, i int) int {
		k, n := c.at(s, i)
		if s[i] < utf8.RuneSelf && k&(punctuation|sign) != 0 {
			end := i + 1
			for end < len(s) && (s[end]|0x20 >= 'a' && s[end]|0x20 <= 'z') {
				end++
			}
			if end > i+1 {
				return end
			}
		}
		if k&(letter|punctuation|sign) == 0 && !newline(s[i]) {
			if end := c.run(s, i+n, letter|mark); end > i+n {
				return end
			}
		}
		if end := c.run(s, i, letter|mark); end > i {
			return end
		}
		from := i
		if s[i] == ' ' {
			from++
		}
		if end := c.run(s, from, punctuation|sign); end > from {
			for end < len(s) && newline(s[end]) {
				end++
			}
			return end
		}
		return c.breaks(s, i)
	})
}

// breaks takes white space up to its last line break, or what spaces takes
// where there is none: \s*[\r\n]+|\s+(?!\S)|\s+
func (c *categories) breaks(s string, i int) int {
	for end := c.run(s, i, space); end > i; end-- {
		if newline(s[end-1]) {
			return end
		}
	}
	return c.spaces(s, i)
}

// trailing follows \s+$, where lines end before each \n. Within a run of white
// space that goes up to the last line feed, or to the end of the text.
func (c *categories) trailing(s string, found func(from, to int)) {
	for i := 0; i < len(s); {
		k, n := c.at(s, i)
		if k&space == 0 {
			i += n
			continue
		}
		end := c.run(s, i, space)
		to := end
		if end < len(s) {
			to = i + strings.LastIndexByte(s[i:end], '\n')
		}
		if to > i {
			found(i, to)
		}
		i = end
	}
}

func newline(b byte) bool { return b == '\r' || b == '\n' }

// contraction measures 's 't 're 've 'm 'll 'd at the start of s. The long s
// folds to s.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		b := s[i]
		if fold && 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	a, b := lower(1), lower(2)
	switch {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case fold && a == 0xc5 && b == 0xbf:
		return 3
	}
	return 0
}

// runs finds stretches of one class: an optional lead, then least to most
// characters that are any of a category or in a list.
type runs struct {
	c           *categories
	lead        category // of one character that may stand in front
	any         category
	is          class // allowed in addition; may be nil
	least, most int
}

func (r runs) scanner() scanner { return scanning(r.match) }

func (r runs) match(s string, i int) int {
	k, n := r.c.at(s, i)
	if r.lead&k != 0 {
		if end := r.count(s, i+n); end > i+n {
			return end
		}
	}
	return r.count(s, i)
}

func (r runs) count(s string, i int) int {
	end := i
	for had := 0; ; had++ {
		k, n := r.c.at(s, end)
		if n == 0 || had == r.most || k&r.any == 0 && !r.has(s[end:]) {
			if had < r.least {
				return i
			}
			return end
		}
		end += n
	}
}

func (r runs) has(s string) bool {
	if r.is == nil {
		return false
	}
	x, _ := utf8.DecodeRuneInString(s)
	return r.is(x)
}
