package tokenizer

import "unicode"

// Classes of characters as the reference's parts know them.

func isNumeric(r rune) bool { return unicode.IsNumber(r) }

func isSpace(r rune) bool { return unicode.IsSpace(r) }

// isWord is \w: letters, marks, decimal digits, connecting punctuation.
func isWord(r rune) bool {
	return r == '_' || unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc, unicode.Nl, unicode.Other_Alphabetic, unicode.Join_Control)
}
