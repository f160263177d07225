package grammar

import "testing"

var words = []string{`{"`, `":`, `",`, `"}`, `,"`, `true`, `null`, ` {`, `}}`, `]}`, `the`, ` the`, `hello world`, "é", "日本", `\n`, `\u00`, `12`, `0.`, "\n  ", "\xe6\x97", "a long token of more than sixteen", `a"b`, "]"}

// bytesAlone is a vocabulary of all bytes and a few longer tokens.
func bytesAlone(more ...string) (*Vocabulary, [][]byte) {
	var tokens [][]byte
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	for _, m := range more {
		tokens = append(tokens, []byte(m))
	}
	return NewVocabulary(len(tokens), func(id int32) []byte { return tokens[id] }), tokens
}

func table(t testing.TB, s Spec) *Table {
	t.Helper()
	g, err := Compile(t.Context(), s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	v, _ := bytesAlone()
	return NewTable(g, v)
}

func accepts(t *Table, text string) bool {
	m := t.Match(false)
	return m.Advance([]byte(text)) && m.Accepting()
}

func schema(s string) Spec { return Spec{Kind: JSONSchema, Source: s} }
