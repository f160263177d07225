package toolcall

const (
	pythonTag        = "<|python_tag|>"
	tagPython symbol = firstTag
)

// llama reads objects at the start of an answer or after <|python_tag|>, one after another
// or with semicolons or commas between them.
type llama struct {
	tools Tools
	lex   *lexer
	in    *object
	some  bool // calls came
}

func newLlama(l *lexer, tools Tools) *marked {
	m := newMarked(l, []symbol{tagPython}, func(symbol) body { return &llama{tools: tools, lex: l} })
	m.in = &llama{tools: tools, lex: l}
	return m
}

func (l *llama) rest() []symbol { return nil }

func (l *llama) begun() bool {
	if l.in == nil {
		return false
	}
	begun, _ := l.in.reported()
	return begun
}

func (l *llama) meant() bool { return l.in != nil && l.in.name != "" }

func (l *llama) push(s symbol, out *sink) verdict {
	if l.in == nil {
		switch {
		case s < firstTag && isBlank(byte(s)), l.some && (s == ';' || s == ','):
			return more
		case s == '{':
			l.in = newObject(l.tools)
			return l.in.push('{', out)
		case l.some:
			return over
		}
		return bad
	}
	_, whole := l.in.reported()
	for _, b := range []byte(l.lex.letters(s)) {
		v := l.in.push(b, out)
		switch {
		case v == done:
			l.in, l.some = nil, true
			return more
		case v != more && whole:
			out.whole()
			l.in, l.some = nil, true
			return over
		case v != more:
			return bad
		}
	}
	return more
}

func (l *llama) end(_ bool, out *sink) bool {
	if l.in == nil {
		return l.some
	}
	_, whole := l.in.reported()
	if whole {
		out.whole()
	}
	return whole
}
