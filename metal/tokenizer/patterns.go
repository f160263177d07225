package tokenizer

import (
	"strconv"
	"strings"
	"unicode"
)

// many is no bound on the length of a run.
const many = 1 << 30

// knownScanner finds the scanner of an expression; a line break may stand in it
// as itself.
func knownScanner(c *categories, expr string) (scanner, bool) {
	make, ok := knownPatterns()[strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(expr)]
	if !ok {
		return nil, false
	}
	return make(c), true
}

// Expressions of the known families.
const (
	contractionPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	leadPattern        = `[^\r\n\p{L}\p{N}]?`
	smallPattern       = leadPattern + `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	capitalPattern     = leadPattern + `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	spacePattern       = `\s*[\r\n]+|\s+(?!\S)|\s+`
	otherPattern       = ` ?[^\s\p{L}\p{N}]+[\r\n]*|` + spacePattern
	otherSlashPattern  = ` ?[^\s\p{L}\p{N}]+[\r\n/]*|` + spacePattern

	gpt2Pattern      = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern    = contractionPattern + `|` + leadPattern + `\p{L}+|\p{N}{1,3}|` + otherPattern
	qwen2Pattern     = contractionPattern + `|` + leadPattern + `\p{L}+|\p{N}|` + otherPattern
	qwen35Pattern    = contractionPattern + `|` + leadPattern + `[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + spacePattern
	o200kPattern     = smallPattern + contractionPattern + `?|` + capitalPattern + contractionPattern + `?|\p{N}{1,3}|` + otherSlashPattern
	tekkenPattern    = smallPattern + `|` + capitalPattern + `|\p{N}|` + otherSlashPattern
	deepseek3Pattern = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|` + spacePattern
	breakPattern     = `[\r\n]`

	chineseAndKana = "4e00-9fa5 3040-309f 30a0-30ff"
	deepseekMarks  = "21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002"
)

func asianPattern() string { return set("4e00-9fa5 800-4e00 ac00-d7ff") + "+" }

// knownPatterns are the expressions that have a scanner written by hand, as
// they stand in tokenizer.json.
func knownPatterns() map[string]func(*categories) scanner {
	return map[string]func(*categories) scanner{
		gpt2Pattern: (*categories).gpt2, llama3Pattern: (*categories).llama3, qwen2Pattern: (*categories).qwen2, qwen35Pattern: (*categories).qwen35,
		o200kPattern: (*categories).o200k, tekkenPattern: (*categories).tekken, deepseek3Pattern: (*categories).deepseek3,

		`\p{N}`:           stretches(0, number, 1, 1),
		`\p{N}+`:          stretches(0, number, 1, many),
		`\p{N}{1,3}`:      stretches(0, number, 1, 3),
		`\s?\p{L}+`:       stretches(space, letter, 1, many),
		`\s?\p{P}+`:       stretches(space, punctuation, 1, many),
		`\s+$`:            func(c *categories) scanner { return c.trailing },
		` {2,}`:           listed(0, "20", 2, many),
		breakPattern:      listed(0, "a d", 1, 1),
		`[0-9][0-9][0-9]`: listed(0, "30-39", 3, 3),

		set(chineseAndKana) + "+":          listed(0, "3040-309f 30a0-30ff 4e00-9fa5", 1, many),
		asianPattern():                     listed(0, "800-9fa5 ac00-d7ff", 1, many),
		`\s?` + set(deepseekMarks) + "+":   listed(space, "21-2f 3a-7e 2018-201f 3000-3002 ff01-ff0f ff1a-ff5e", 1, many),
		`\s?` + set(deepseekLetters) + "+": listed(space, deepseekLetters, 1, many),
	}
}

// stretches finds runs of a category, listed runs of listed characters; see
// runs.
func stretches(lead, any category, least, most int) func(*categories) scanner {
	return func(c *categories) scanner {
		return runs{c: c, lead: lead, any: any, least: least, most: most}.scanner()
	}
}

func listed(lead category, list string, least, most int) func(*categories) scanner {
	return func(c *categories) scanner {
		t := ranges(list)
		return runs{c: c, lead: lead, is: func(r rune) bool { return unicode.Is(t, r) }, least: least, most: most}.scanner()
	}
}

// deepseekLetters are the letters that DeepSeek's first models list.
const deepseekLetters = "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f " +
	"531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 " +
	"1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 " +
	"2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d " +
	"a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 " +
	"10cc0-10cf2 118a0-118df 1e900-1e943"

// set writes a list of characters and ranges as an expression does.
func set(list string) string {
	b := []rune{'['}
	for _, f := range strings.Fields(list) {
		for i, end := range strings.Split(f, "-") {
			if i > 0 {
				b = append(b, '-')
			}
			r, err := strconv.ParseUint(end, 16, 32)
			if err != nil {
				panic("tokenizer: character list contains " + f)
			}
			b = append(b, rune(r))
		}
	}
	return string(append(b, ']'))
}
