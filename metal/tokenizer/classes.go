package tokenizer

import (
	"strconv"
	"strings"
	"unicode"
)

// The parts of the reference know characters by Unicode versions of their own:
// its expressions 16, Rust's methods 17, \w of Rust's expressions 16, BERT's
// punctuation and marks 8, normal forms 9. Go has 15. What differs is listed
// here; a test compares every character with what the reference says.

// category is what a character is to expressions, one bit.
type category uint16

const (
	upper       category = 1 << iota // Lu
	lower                            // Ll
	title                            // Lt
	modifier                         // Lm
	otherLetter                      // Lo
	mark                             // M
	number                           // N
	punctuation                      // P
	sign                             // S
	space                            // \s
	other                            // none of these

	letter = upper | lower | title | modifier | otherLetter
	// capital and small are what words in mixed case consist of.
	capital = upper | title | modifier | otherLetter | mark
	small   = lower | modifier | otherLetter | mark
)

// since15 lists by category what version 16 has and 15 has not.
func since15() map[category]string {
	return map[category]string{
		upper:    "1c89 a7cb-a7cc a7da a7dc 10d50-10d65",
		lower:    "1c8a a7cd a7db 10d70-10d85",
		modifier: "10d4e 10d6f 16d40-16d42 16d6b-16d6c",
		otherLetter: "105c0-105f3 10d4a-10d4d 10d4f 10ec2-10ec4 11380-11389 1138b 1138e 11390-113b5 113b7 113d1 113d3 " +
			"11bc0-11be0 13460-143fa 16100-1611d 16d43-16d6a 18cff 1e5d0-1e5ed 1e5f0 2ebf0-2ee5d",
		mark:        "897 10d69-10d6d 10efc 113b8-113c0 113c2 113c5 113c7-113ca 113cc-113d0 113d2 113e1-113e2 11f5a 1611e-1612f 1e5ee-1e5ef",
		number:      "10d40-10d49 116d0-116e3 11bf0-11bf9 16130-16139 16d70-16d79 1ccf0-1ccf9 1e5f1-1e5fa",
		punctuation: "1b4e-1b4f 1b7f 10d6e 113d4-113d5 113d7-113d8 11be1 16d6d-16d6f 1e5ff",
		sign: "2427-2429 2ffc-2fff 31e4-31e5 31ef 10d8e-10d8f 1cc00-1ccef 1cd00-1ceb3 1f8b2-1f8bb 1f8c0-1f8c1 1fa89 1fa8f 1fabe 1fac6 " +
			"1fadc 1fadf 1fae9 1fbcb-1fbef",
	}
}

// categories tells characters apart: 128 KiB of answers for the first plane,
// since most text lies there.
type categories struct {
	first [1 << 16]category
	kinds []kindOfCharacter
}

type kindOfCharacter struct {
	category
	table, late *unicode.RangeTable
}

func newCategories() *categories {
	c := new(categories)
	late := since15()
	for _, k := range []kindOfCharacter{
		{category: otherLetter, table: unicode.Lo}, {category: lower, table: unicode.Ll}, {category: upper, table: unicode.Lu}, {category: sign, table: unicode.S},
		{category: mark, table: unicode.M}, {category: punctuation, table: unicode.P}, {category: number, table: unicode.N},
		{category: modifier, table: unicode.Lm}, {category: title, table: unicode.Lt}, {category: space, table: unicode.White_Space},
	} {
		k.late = ranges(late[k.category])
		c.kinds = append(c.kinds, k)
		for _, r := range append(k.table.R16[:len(k.table.R16):len(k.table.R16)], k.late.R16...) {
			for x := int(r.Lo); x <= int(r.Hi); x += int(r.Stride) {
				c.first[x] = k.category
			}
		}
	}
	for i, k := range c.first {
		if k == 0 {
			c.first[i] = other
		}
	}
	return c
}

func (c *categories) of(r rune) category {
	if r < 1<<16 {
		return c.first[r]
	}
	for _, k := range c.kinds {
		if unicode.Is(k.table, r) || unicode.Is(k.late, r) {
			return k.category
		}
	}
	return other
}

// any is a class of categories.
func (c *categories) any(bits category) class {
	return func(r rune) bool { return c.of(r)&bits != 0 }
}

func (c *categories) isLate(k category, r rune) bool {
	for _, kind := range c.kinds {
		if kind.category == k {
			return unicode.Is(kind.late, r)
		}
	}
	return false
}

// digit is \d, word \w as sets have it, wordOutside \w elsewhere.
func (c *categories) digit(r rune) bool { return unicode.Is(unicode.Nd, r) || c.isLate(number, r) }

func (c *categories) word(r rune) bool {
	switch k := c.of(r); {
	case k&(letter|mark) != 0:
		return true
	case k == number:
		return c.digit(r) || unicode.Is(unicode.Nl, r)
	}
	return unicode.In(r, unicode.Pc, unicode.Other_Alphabetic)
}

func (c *categories) wordOutside(r rune) bool {
	return c.word(r) || r == '²' || r == '³' || r == '¹' || '¼' <= r && r <= '¾'
}

// property is \p{name}; nil for one that is not known.
func (c *categories) property(name string) class {
	for of, bits := range map[string]category{
		"L": letter, "Letter": letter, "Lu": upper, "Ll": lower, "Lt": title, "Lm": modifier, "Lo": otherLetter,
		"M": mark, "Mark": mark, "N": number, "Number": number, "P": punctuation, "Punctuation": punctuation, "S": sign, "Symbol": sign,
	} {
		if strings.EqualFold(of, name) {
			return c.any(bits)
		}
	}
	if strings.EqualFold(name, "Nd") {
		return c.digit
	}
	late := ranges("")
	if strings.EqualFold(name, "Han") {
		late = ranges("2ebf0-2ee5d")
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts} {
		for of, table := range tables {
			if strings.EqualFold(of, name) && len(of) > 1 {
				return func(r rune) bool { return unicode.Is(table, r) || unicode.Is(late, r) }
			}
		}
	}
	return nil
}

// ranges reads a list of hexadecimal characters and ranges, in order.
func ranges(list string) *unicode.RangeTable {
	t := new(unicode.RangeTable)
	for _, f := range strings.Fields(list) {
		from, to, ok := strings.Cut(f, "-")
		if !ok {
			to = from
		}
		lo, err1 := strconv.ParseUint(from, 16, 32)
		hi, err2 := strconv.ParseUint(to, 16, 32)
		if err1 != nil || err2 != nil || lo > hi {
			panic("tokenizer: character list contains " + f)
		}
		if hi < 1<<16 {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(lo), Hi: uint16(hi), Stride: 1})
		} else {
			t.R32 = append(t.R32, unicode.Range32{Lo: uint32(lo), Hi: uint32(hi), Stride: 1})
		}
	}
	return t
}

// class reports whether a character belongs to a class.
type class func(rune) bool

// newNumeric is is_numeric of Rust.
func newNumeric() class {
	late := ranges("10d40-10d49 116d0-116e3 11bf0-11bf9 11de0-11de9 16130-16139 16d70-16d79 16ff4-16ff6 1ccf0-1ccf9 1e5f1-1e5fa")
	return func(r rune) bool { return unicode.IsNumber(r) || r >= 0x10000 && unicode.Is(late, r) }
}

// newWord is \w of Rust's expressions.
func newWord() class {
	late := ranges("897 1c89-1c8a a7cb-a7cd a7da-a7dc 105c0-105f3 10d40-10d65 10d69-10d6d 10d6f-10d85 10ec2-10ec4 10efc 11380-11389 1138b 1138e " +
		"11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca 113cc-113d3 113e1-113e2 116d0-116e3 11bc0-11be0 11bf0-11bf9 11f5a 13460-143fa 16100-16139 " +
		"16d40-16d6c 16d70-16d79 18cff 1ccf0-1ccf9 1e5d0-1e5fa 2ebf0-2ee5d")
	return func(r rune) bool {
		return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc, unicode.Nl, unicode.Other_Alphabetic, unicode.Join_Control, late)
	}
}

// newPunctuation is what BERT splits at: ASCII's punctuation and symbols, and
// P as version 8 has it.
func newPunctuation() class {
	early := ranges("166d 111c9")
	late := ranges("61d 9fd a76 c77 c84 1b7d-1b7e 2e43-2e4f 2e52-2e5d 10ead 10f55-10f59 10f86-10f89 1144b-1144f 1145a-1145b 1145d 11660-1166c 116b9 " +
		"1183b 11944-11946 119e2 11a3f-11a46 11a9a-11a9c 11a9e-11aa2 11b00-11b09 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff 12ff1-12ff2 " +
		"16e97-16e9a 16fe2 1e95e-1e95f")
	return func(r rune) bool {
		if r < 0x80 {
			return unicode.In(r, unicode.P, unicode.S)
		}
		return unicode.Is(unicode.P, r) && !unicode.Is(late, r) || unicode.Is(early, r)
	}
}

// newControl is what BERT takes out of a text: Cc, Cf and Co as version 8 has
// them, and U+FFFD.
func newControl() class {
	late := ranges("890-891 8e2 110cd 13430-1343f")
	return func(r rune) bool {
		switch r {
		case '\t', '\n', '\r':
			return false
		case 0, 0xfffd:
			return true
		}
		return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co) && !unicode.Is(late, r)
	}
}

// newAccent is Mn as version 8 has it.
func newAccent() class {
	late := ranges("7fd 898-89f 8ca-8e1 9fe afa-aff b55 c04 c3c d00 d3b-d3c d81 eba ece 180f 1885-1886 1abf-1ace 1df6-1dfb a82c a8c5 a8ff a9bd " +
		"10d24-10d27 10eab-10eac 10efd-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 110c2 111c9 111cf 1123e 11241 1133b 11438-1143f 11442-11444 " +
		"11446 1145e 1182f-11837 11839-1183a 1193b-1193c 1193e 11943 119d4-119d7 119da-119db 119e0 11a01-11a0a 11a33-11a38 11a3b-11a3e 11a47 " +
		"11a51-11a56 11a59-11a5b 11a8a-11a96 11a98-11a99 11c30-11c36 11c38-11c3d 11c3f 11c92-11ca7 11caa-11cb0 11cb2-11cb3 11cb5-11cb6 11d31-11d36 " +
		"11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d90-11d91 11d95 11d97 11ef3-11ef4 11f00-11f01 11f36-11f3a 11f40 11f42 13440 13447-13455 16f4f 16fe4 " +
		"1cf00-1cf2d 1cf30-1cf46 1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024 1e026-1e02a 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e944-1e94a")
	return func(r rune) bool { return unicode.Is(unicode.Mn, r) && !unicode.Is(late, r) || r == 0x1734 }
}

// newCombining is M as version 9 has it.
func newCombining() class {
	late := ranges("7fd 898-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace 1cf7 1df6-1dfa a82c a8ff 10d24-10d27 " +
		"10eab-10eac 10efd-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 110c2 11145-11146 111c9 111ce-111cf 11241 1133b 1145e 1182c-1183a " +
		"11930-11935 11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 119e4 11a01-11a0a 11a33-11a39 11a3b-11a3e 11a47 11a51-11a5b " +
		"11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d8a-11d8e 11d90-11d91 11d93-11d97 11ef3-11ef6 11f00-11f01 11f03 11f34-11f3a " +
		"11f3e-11f42 13440 13447-13455 16f4f 16f7f-16f87 16fe4 16ff0-16ff1 1cf00-1cf2d 1cf30-1cf46 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef")
	return func(r rune) bool {
		return unicode.Is(unicode.M, r) && !unicode.Is(late, r) || r == 0x1cf2 || r == 0x1cf3
	}
}

// lowerCase is to_lowercase of Rust, which has version 17.
func lowerCase(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		switch {
		case r == 0x130:
			b.WriteString("i\u0307")
		case r == 0xa7cb:
			b.WriteRune(0x264)
		case r == 0xa7dc:
			b.WriteRune(0x19b)
		case r == 0x1c89, r == 0xa7cc, r == 0xa7ce, r == 0xa7d2, r == 0xa7d4, r == 0xa7da:
			b.WriteRune(r + 1)
		case 0x10d50 <= r && r <= 0x10d65:
			b.WriteRune(r + 0x20)
		case 0x16ea0 <= r && r <= 0x16eb8:
			b.WriteRune(r + 0x1b)
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}
