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
		{`a++a`, "aaab", []string{"aaab", "|", "aaab"}},
		{`a{1,2}+a`, "aaab", []string{"aaa", "b", "|", "b"}},
		{`(?:a|ab)++c`, "abac", []string{"ab", "ac", "|", "ab"}},
		{`(?>a|ab)c`, "abc ac", []string{"abc ", "ac", "|", "abc "}},
		{`a*?b`, "aab", []string{"aab", "|"}},
		{`x{1,3}?y`, "xxxxy", []string{"x", "xxxy", "|", "x"}},
		{`x{2,}?y`, "xxxxy", []string{"xxxxy", "|"}},
		{`a{,2}b`, "aaab", []string{"a", "aab", "|", "a"}},
		{`a{x}`, "a{x}a", []string{"a{x}", "a", "|", "a"}},
		{`a{`, "a{a", []string{"a{", "a", "|", "a"}},
		{`^b|a$`, "a\nb\nab", []string{"a", "\n", "b", "\nab", "|", "\n", "\nab"}},
		{`^`, "a\nb\n", []string{"a\n", "b\n", "|", "a\n", "b\n"}},
		{`$`, "a\nb\n", []string{"a", "\nb", "\n", "|", "a", "\nb", "\n"}},
		{`a\Z`, "a\na\n", []string{"a\n", "a", "\n", "|", "a\n", "\n"}},
		{`a\z`, "a\na", []string{"a\n", "a", "|", "a\n"}},
		{`\Aa`, "aa", []string{"a", "a", "|", "a"}},
		{`b.`, "b\nbc", []string{"b\n", "bc", "|", "b\n"}},
		{`(?m:b.)`, "b\nbc", []string{"b\n", "bc", "|"}},
		{`\h+`, "xyz09af", []string{"xyz", "09af", "|", "xyz"}},
		{`\R`, "a\r\nb\u0085c", []string{"a", "\r\n", "b", "\u0085", "c", "|", "a", "b", "c"}},
		{`\N+`, "ab\nc", []string{"ab", "\n", "c", "|", "\n"}},
		{`\O`, "a\n", []string{"a", "\n", "|"}},
		{`[a-z&&[^b]]+`, "abc1", []string{"a", "b", "c", "1", "|", "b", "1"}},
		{`[^a-c&&[b-z]]`, "abcxyz1", []string{"a", "bc", "x", "y", "z", "1", "|", "bc"}},
		{`[a-c&&[^b]d]`, "abcd", []string{"a", "b", "c", "d", "|", "b", "d"}},
		{`[[^a]b]`, "abc", []string{"a", "b", "c", "|", "a"}},
		{`[a[^b]]`, "abc", []string{"a", "b", "c", "|", "b"}},
		{`[a-z&&b-d&&c-f]`, "abcdef", []string{"ab", "c", "d", "ef", "|", "ab", "ef"}},
		{`[]a]`, "]ab", []string{"]", "a", "b", "|", "b"}},
		{`[^]]`, "a]", []string{"a", "]", "|", "]"}},
		{`[-a-c]`, "a-bd", []string{"a", "-", "b", "d", "|", "d"}},
		{`[a\-c]`, "a-bc", []string{"a", "-", "b", "c", "|", "b"}},
		{`[a-]`, "a-b", []string{"a", "-", "b", "|", "b"}},
		{`[^\W\d]`, "aA1_ ", []string{"a", "A", "1", "_", " ", "|", "1", " "}},
		{`[\P{L}]`, "a1", []string{"a", "1", "|", "a"}},
		{`\p{^L}`, "a1", []string{"a", "1", "|", "a"}},
		{`\P{^L}`, "a1", []string{"a", "1", "|", "1"}},
		{`\p{l}`, "a1", []string{"a", "1", "|", "1"}},
		{`[[:^digit:]]`, "a1", []string{"a", "1", "|", "1"}},
		{`[[:word:]]`, "a_\u00b21-", []string{"a", "_", "\u00b2", "1", "-", "|", "\u00b2", "-"}},
		{`\w`, "a_\u00b21-", []string{"a", "_", "\u00b2", "1", "-", "|", "-"}},
		{`[\w]`, "a_\u00b21-", []string{"a", "_", "\u00b2", "1", "-", "|", "\u00b2", "-"}},
		{`(?i)AB`, "xabX", []string{"x", "ab", "X", "|", "x", "X"}},
		{`(?i)a(?-i)b|c`, "AbABcC", []string{"Ab", "ABcC", "|", "ABcC"}},
		{`(?i:[a-z])`, "aK\u212a \u017f1", []string{"a", "K", "\u212a", " ", "\u017f", "1", "|", " ", "1"}},
		{`(?i:[^a-z])`, "aK\u212a \u017f1", []string{"aK\u212a", " ", "\u017f", "1", "|", "aK\u212a", "\u017f"}},
		{`(?i:\p{Ll})`, "aA1", []string{"a", "A1", "|", "A1"}},
		{`(?i:[[:upper:]])`, "aA1", []string{"a", "A", "1", "|", "1"}},
		{`(?i:\u00e9)`, "\u00c9", []string{"\u00c9", "|"}},
		{`(?im:a.)`, "A\n", []string{"A\n", "|"}},
		{`(?<=a)b`, "abb", []string{"a", "b", "b", "|", "a", "b"}},
		{`(?<!a)b`, "abb", []string{"ab", "b", "|", "ab"}},
		{`(?<=a|bb)c`, "acbbc", []string{"a", "c", "bb", "c", "|", "a", "bb"}},
		{`(?<!a.)b`, "axb xb", []string{"axb x", "b", "|", "axb x"}},
		{`(?<=\s|^)b`, "b ab b", []string{"b", " ab ", "b", "|", " ab "}},
		{`(?<=ab?)c`, "abc ac c", []string{"ab", "c", " a", "c", " c", "|", "ab", " a", " c"}},
		{`(?=a)`, "bab", []string{"b", "ab", "|", "b", "ab"}},
		{`a(?!b)`, "abac", []string{"ab", "a", "c", "|", "ab", "c"}},
		{`\d{1,3}(?=(?:\d{3})*\b)`, "1234567 12", []string{"1", "234", "567", " ", "12", "|", " "}},
		{`(?=(\d{3})+(?!\d))`, "1234567", []string{"1", "234", "567", "|", "1", "234", "567"}},
		{`\b`, "ab cd", []string{"ab", " ", "cd", "|", "ab", " ", "cd"}},
		{`\Ba`, "aa a", []string{"a", "a", " a", "|", "a", " a"}},
		{`x*`, "aab", []string{"a", "a", "b", "|", "a", "a", "b"}},
		{`a|b|`, "xab", []string{"x", "a", "b", "|", "x"}},
		{`(?:a*)+b`, "aaab b", []string{"aaab", " ", "b", "|", " "}},
		{`(?:a?)*b`, "aaab", []string{"aaab", "|"}},
		{`(?:)*a`, "aab", []string{"a", "a", "b", "|", "b"}},
		{`(a|b)*?c`, "ababc x", []string{"ababc", " x", "|", " x"}},
		{`(?:a|ab)(?:c|bcd)(?:d*)`, "abcdx", []string{"abcd", "x", "|", "x"}},
		{`(?:ab){2,3}`, "ababababab", []string{"ababab", "abab", "|"}},
		{`\x41\u4e2d\x{1f600}`, "A\u4e2d\U0001f600", []string{"A\u4e2d\U0001f600", "|"}},
		{`a{0}b`, "ab", []string{"a", "b", "|", "a"}},
		{`\s*?x`, "  x", []string{"  x", "|"}},
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
