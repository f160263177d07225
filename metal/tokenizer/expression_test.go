//go:build !race

package tokenizer

import (
	"slices"
	"testing"
)

// TestExpressionsMatchAsInTheReference has what the reference makes of texts:
// split at each match, and what is left without the matches.
func TestExpressionsMatchAsInTheReference(t *testing.T) {
	c := newCategories()
	for _, tc := range []struct {
		expr, text string
		want       []string // pieces, a bar, what is left
	}{
		{expr: `a++a`, text: "aaab", want: []string{"aaab", "|", "aaab"}},
		{expr: `a{1,2}+a`, text: "aaab", want: []string{"aaa", "b", "|", "b"}},
		{expr: `(?:a|ab)++c`, text: "abac", want: []string{"ab", "ac", "|", "ab"}},
		{expr: `(?>a|ab)c`, text: "abc ac", want: []string{"abc ", "ac", "|", "abc "}},
		{expr: `a*?b`, text: "aab", want: []string{"aab", "|"}},
		{expr: `x{1,3}?y`, text: "xxxxy", want: []string{"x", "xxxy", "|", "x"}},
		{expr: `x{2,}?y`, text: "xxxxy", want: []string{"xxxxy", "|"}},
		{expr: `a{,2}b`, text: "aaab", want: []string{"a", "aab", "|", "a"}},
		{expr: `a{x}`, text: "a{x}a", want: []string{"a{x}", "a", "|", "a"}},
		{expr: `a{`, text: "a{a", want: []string{"a{", "a", "|", "a"}},
		{expr: `^b|a$`, text: "a\nb\nab", want: []string{"a", "\n", "b", "\nab", "|", "\n", "\nab"}},
		{expr: `^`, text: "a\nb\n", want: []string{"a\n", "b\n", "|", "a\n", "b\n"}},
		{expr: `$`, text: "a\nb\n", want: []string{"a", "\nb", "\n", "|", "a", "\nb", "\n"}},
		{expr: `a\Z`, text: "a\na\n", want: []string{"a\n", "a", "\n", "|", "a\n", "\n"}},
		{expr: `a\z`, text: "a\na", want: []string{"a\n", "a", "|", "a\n"}},
		{expr: `\Aa`, text: "aa", want: []string{"a", "a", "|", "a"}},
		{expr: `b.`, text: "b\nbc", want: []string{"b\n", "bc", "|", "b\n"}},
		{expr: `(?m:b.)`, text: "b\nbc", want: []string{"b\n", "bc", "|"}},
		{expr: `\h+`, text: "xyz09af", want: []string{"xyz", "09af", "|", "xyz"}},
		{expr: `\R`, text: "a\r\nb\u0085c", want: []string{"a", "\r\n", "b", "\u0085", "c", "|", "a", "b", "c"}},
		{expr: `\N+`, text: "ab\nc", want: []string{"ab", "\n", "c", "|", "\n"}},
		{expr: `\O`, text: "a\n", want: []string{"a", "\n", "|"}},
		{expr: `[a-z&&[^b]]+`, text: "abc1", want: []string{"a", "b", "c", "1", "|", "b", "1"}},
		{expr: `[^a-c&&[b-z]]`, text: "abcxyz1", want: []string{"a", "bc", "x", "y", "z", "1", "|", "bc"}},
		{expr: `[a-c&&[^b]d]`, text: "abcd", want: []string{"a", "b", "c", "d", "|", "b", "d"}},
		{expr: `[[^a]b]`, text: "abc", want: []string{"a", "b", "c", "|", "a"}},
		{expr: `[a[^b]]`, text: "abc", want: []string{"a", "b", "c", "|", "b"}},
		{expr: `[a-z&&b-d&&c-f]`, text: "abcdef", want: []string{"ab", "c", "d", "ef", "|", "ab", "ef"}},
		{expr: `[]a]`, text: "]ab", want: []string{"]", "a", "b", "|", "b"}},
		{expr: `[^]]`, text: "a]", want: []string{"a", "]", "|", "]"}},
		{expr: `[-a-c]`, text: "a-bd", want: []string{"a", "-", "b", "d", "|", "d"}},
		{expr: `[a\-c]`, text: "a-bc", want: []string{"a", "-", "b", "c", "|", "b"}},
		{expr: `[a-]`, text: "a-b", want: []string{"a", "-", "b", "|", "b"}},
		{expr: `[^\W\d]`, text: "aA1_ ", want: []string{"a", "A", "1", "_", " ", "|", "1", " "}},
		{expr: `[\P{L}]`, text: "a1", want: []string{"a", "1", "|", "a"}},
		{expr: `\p{^L}`, text: "a1", want: []string{"a", "1", "|", "a"}},
		{expr: `\P{^L}`, text: "a1", want: []string{"a", "1", "|", "1"}},
		{expr: `\p{l}`, text: "a1", want: []string{"a", "1", "|", "1"}},
		{expr: `[[:^digit:]]`, text: "a1", want: []string{"a", "1", "|", "1"}},
		{expr: `[[:word:]]`, text: "a_\u00b21-", want: []string{"a", "_", "\u00b2", "1", "-", "|", "\u00b2", "-"}},
		{expr: `\w`, text: "a_\u00b21-", want: []string{"a", "_", "\u00b2", "1", "-", "|", "-"}},
		{expr: `[\w]`, text: "a_\u00b21-", want: []string{"a", "_", "\u00b2", "1", "-", "|", "\u00b2", "-"}},
		{expr: `(?i)AB`, text: "xabX", want: []string{"x", "ab", "X", "|", "x", "X"}},
		{expr: `(?i)a(?-i)b|c`, text: "AbABcC", want: []string{"Ab", "ABcC", "|", "ABcC"}},
		{expr: `(?i:[a-z])`, text: "aK\u212a \u017f1", want: []string{"a", "K", "\u212a", " ", "\u017f", "1", "|", " ", "1"}},
		{expr: `(?i:[^a-z])`, text: "aK\u212a \u017f1", want: []string{"aK\u212a", " ", "\u017f", "1", "|", "aK\u212a", "\u017f"}},
		{expr: `(?i:\p{Ll})`, text: "aA1", want: []string{"a", "A1", "|", "A1"}},
		{expr: `(?i:[[:upper:]])`, text: "aA1", want: []string{"a", "A", "1", "|", "1"}},
		{expr: `(?i:\u00e9)`, text: "\u00c9", want: []string{"\u00c9", "|"}},
		{expr: `(?im:a.)`, text: "A\n", want: []string{"A\n", "|"}},
		{expr: `(?<=a)b`, text: "abb", want: []string{"a", "b", "b", "|", "a", "b"}},
		{expr: `(?<!a)b`, text: "abb", want: []string{"ab", "b", "|", "ab"}},
		{expr: `(?<=a|bb)c`, text: "acbbc", want: []string{"a", "c", "bb", "c", "|", "a", "bb"}},
		{expr: `(?<!a.)b`, text: "axb xb", want: []string{"axb x", "b", "|", "axb x"}},
		{expr: `(?<=\s|^)b`, text: "b ab b", want: []string{"b", " ab ", "b", "|", " ab "}},
		{expr: `(?<=ab?)c`, text: "abc ac c", want: []string{"ab", "c", " a", "c", " c", "|", "ab", " a", " c"}},
		{expr: `(?=a)`, text: "bab", want: []string{"b", "ab", "|", "b", "ab"}},
		{expr: `a(?!b)`, text: "abac", want: []string{"ab", "a", "c", "|", "ab", "c"}},
		{expr: `\d{1,3}(?=(?:\d{3})*\b)`, text: "1234567 12", want: []string{"1", "234", "567", " ", "12", "|", " "}},
		{expr: `(?=(\d{3})+(?!\d))`, text: "1234567", want: []string{"1", "234", "567", "|", "1", "234", "567"}},
		{expr: `\b`, text: "ab cd", want: []string{"ab", " ", "cd", "|", "ab", " ", "cd"}},
		{expr: `\Ba`, text: "aa a", want: []string{"a", "a", " a", "|", "a", " a"}},
		{expr: `x*`, text: "aab", want: []string{"a", "a", "b", "|", "a", "a", "b"}},
		{expr: `a|b|`, text: "xab", want: []string{"x", "a", "b", "|", "x"}},
		{expr: `(?:a*)+b`, text: "aaab b", want: []string{"aaab", " ", "b", "|", " "}},
		{expr: `(?:a?)*b`, text: "aaab", want: []string{"aaab", "|"}},
		{expr: `(?:)*a`, text: "aab", want: []string{"a", "a", "b", "|", "b"}},
		{expr: `(a|b)*?c`, text: "ababc x", want: []string{"ababc", " x", "|", " x"}},
		{expr: `(?:a|ab)(?:c|bcd)(?:d*)`, text: "abcdx", want: []string{"abcd", "x", "|", "x"}},
		{expr: `(?:ab){2,3}`, text: "ababababab", want: []string{"ababab", "abab", "|"}},
		{expr: `\x41\u4e2d\x{1f600}`, text: "A\u4e2d\U0001f600", want: []string{"A\u4e2d\U0001f600", "|"}},
		{expr: `a{0}b`, text: "ab", want: []string{"a", "b", "|", "a"}},
		{expr: `\s*?x`, text: "  x", want: []string{"  x", "|"}},
	} {
		find, err := c.compile(tc.expr)
		if err != nil {
			t.Errorf("%s: %v", tc.expr, err)
			continue
		}
		var got []string
		for _, b := range []behavior{isolated, removed} {
			if b == removed {
				got = append(got, "|")
			}
			if err := behaving(find, b, false)(newBudget(len(tc.text)), span{text: tc.text}, func(s span) { got = append(got, s.text) }); err != nil {
				t.Errorf("%s: %v", tc.expr, err)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s on %q gives %q, want %q", tc.expr, tc.text, got, tc.want)
		}
	}
}
