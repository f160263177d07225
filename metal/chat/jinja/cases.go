package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Letters as Python's str sees them.

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// letters counts the work of changing the case of a text: beyond ASCII each character is looked
// up in tables.
func (r *texts) letters(s string) error {
	if isASCII(s) {
		return nil
	}
	return r.spend(2 * len(s))
}

func uppered(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lowered(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func folded(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Fold().String(s)
}

// by changes the case of one character: ascii is the same for ASCII, and makes nothing.
func by(caser cases.Caser, ascii func(rune) rune, c rune) string {
	if c < utf8.RuneSelf {
		return string(ascii(c))
	}
	return caser.String(string(c))
}

// headed is one character in title case, such as "Ss" for ß.
func headed(c rune) string {
	if c < utf8.RuneSelf {
		return string(unicode.ToUpper(c))
	}
	return cases.Title(language.Und, cases.NoLower).String(string(c))
}

func capitalized(s string) string {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	rest := lowered(s)
	// Lower case looks at what stands before: a sigma ends a word or not.
	return headed(c) + strings.TrimPrefix(rest, lowered(s[:n]))
}

// titled begins every run of letters with case in title case.
func titled(s string) string {
	var b strings.Builder
	low, lower := lowered(s), cases.Lower(language.Und)
	inWord := false
	for _, c := range s {
		l := by(lower, unicode.ToLower, c)
		if !strings.HasPrefix(low, l) { // a final sigma
			_, n := utf8.DecodeRuneInString(low)
			l = low[:n]
		}
		low = low[len(l):]
		if inWord {
			b.WriteString(l)
		} else {
			b.WriteString(headed(c))
		}
		inWord = hasCase(c)
	}
	return b.String()
}

func swapped(s string) string {
	var b strings.Builder
	low, lower, upper := lowered(s), cases.Lower(language.Und), cases.Upper(language.Und)
	for _, c := range s {
		l := by(lower, unicode.ToLower, c)
		if !strings.HasPrefix(low, l) { // a final sigma
			_, n := utf8.DecodeRuneInString(low)
			l = low[:n]
		}
		low = low[len(l):]
		switch {
		case isUpper(c):
			b.WriteString(l)
		case isLower(c):
			b.WriteString(by(upper, unicode.ToUpper, c))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func isUpper(c rune) bool { return unicode.IsUpper(c) || unicode.Is(unicode.Other_Uppercase, c) }
func isLower(c rune) bool { return unicode.Is(unicode.Ll, c) || unicode.Is(unicode.Other_Lowercase, c) }
func hasCase(c rune) bool { return isUpper(c) || isLower(c) || unicode.IsTitle(c) }

// cased says whether s has letters with case, all of them in the given one.
func cased(s string, upper bool) bool {
	found := false
	for _, c := range s {
		switch {
		case unicode.IsTitle(c), upper && isLower(c), !upper && isUpper(c):
			return false
		case isUpper(c) || isLower(c):
			found = true
		}
	}
	return found
}

// isTitled says whether capitals begin words, and only they.
func isTitled(s string) bool {
	found, inWord := false, false
	for _, c := range s {
		switch {
		case isUpper(c) || unicode.IsTitle(c):
			if inWord {
				return false
			}
			found, inWord = true, true
		case isLower(c):
			if !inWord {
				return false
			}
			found = true
		default:
			inWord = false
		}
	}
	return found
}

// isDigit is str.isdigit: decimal digits, and those raised, lowered or in
// circles (Unicode's Numeric_Type=Digit).
func isDigit(c rune) bool {
	return unicode.IsDigit(c) || unicode.Is(&unicode.RangeTable{R16: []unicode.Range16{
		{0xb2, 0xb3, 1}, {0xb9, 0xb9, 1}, {0x1369, 0x1371, 1}, {0x19da, 0x19da, 1}, {0x2070, 0x2070, 1}, {0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1}, {0x2460, 0x2468, 1}, {0x2474, 0x247c, 1}, {0x2488, 0x2490, 1}, {0x24ea, 0x24ea, 1}, {0x24f5, 0x24fd, 1},
		{0x24ff, 0x24ff, 1}, {0x2776, 0x277e, 1}, {0x2780, 0x2788, 1}, {0x278a, 0x2792, 1},
	}, R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1}, {0x10e60, 0x10e68, 1}, {0x11052, 0x1105a, 1}, {0x1f100, 0x1f10a, 1},
	}}, c)
}

// isNumeric is str.isnumeric: numbers, and Han characters that stand for one
// (Unicode's Numeric_Type is not None).
func isNumeric(c rune) bool {
	if c < 0x3400 {
		return unicode.IsNumber(c)
	}
	return unicode.IsNumber(c) || strings.ContainsRune("㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁叄参參四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零", c) ||
		strings.ContainsRune("\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd\U00020001\U00020064\U000200e2\U00020121\U0002092a\U00020983\U0002098c\U0002099c"+
			"\U00020aea\U00020afd\U00020b19\U00022390\U00022998\U00023b1b\U0002626d\U0002f890", c)
}

func isAlnum(c rune) bool { return unicode.IsLetter(c) || isNumeric(c) }

func all(s string, f func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return !f(c) }) < 0
}

// isIdentifier is str.isidentifier, nearly: what NFKC would change is not
// looked at.
func isIdentifier(s string) bool {
	for i, c := range s {
		start := c == '_' || unicode.IsLetter(c) || unicode.Is(unicode.Nl, c) || unicode.Is(unicode.Other_ID_Start, c)
		if !start && (i == 0 || !unicode.In(c, unicode.Nd, unicode.Mn, unicode.Mc, unicode.Pc, unicode.Other_ID_Continue)) {
			return false
		}
	}
	return s != ""
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f
}
