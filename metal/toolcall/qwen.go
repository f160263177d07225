package toolcall

// Tags of the formats Hermes and QwenXML. Both are read in either: models mix them up.
const (
	openCall       = "<tool_call>"
	closeCall      = "</tool_call>"
	openFunction   = "<function="
	closeFunction  = "</function>"
	openParameter  = "<parameter="
	closeParameter = "</parameter>"
)

// Tags of MiniMax M2 (its chat template; vLLM 0.33, parser/minimax_m2.py) and of DeepSeek V3.2
// (its encoding; vLLM 0.33, parser/deepseek_v32.py): the same with names as attributes.
const (
	miniCall, miniCallEnd           = "<minimax:tool_call>", "</minimax:tool_call>"
	miniFunction, miniFunctionEnd   = "<invoke name=", "</invoke>"
	miniParameter, miniParameterEnd = "<parameter name=", "</parameter>"
	dsmlCall, dsmlCallEnd           = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
	dsmlFunction, dsmlFunctionEnd   = "<｜DSML｜invoke name=", "</｜DSML｜invoke>"
	dsmlParameter, dsmlParameterEnd = "<｜DSML｜parameter name=", "</｜DSML｜parameter>"
)

// Tags of GLM-4.5 to 4.7 (their chat templates; vLLM 0.33,
// parser/glm47_moe.py): a name, then pairs of a key and a value.
const (
	openKey, closeKey     = "<arg_key>", "</arg_key>"
	openValue, closeValue = "<arg_value>", "</arg_value>"
)

// further are the tags of a format after those of a call: of a function, its end, a parameter
// and its end, and in pairs the end of a name and the beginning of a value.
func (f Format) further() []string {
	switch f {
	case Hermes, QwenXML:
		return []string{openFunction, closeFunction, openParameter, closeParameter}
	case MiniMax:
		return []string{miniFunction, miniFunctionEnd, miniParameter, miniParameterEnd}
	case DeepSeekV32:
		return []string{dsmlFunction, dsmlFunctionEnd, dsmlParameter, dsmlParameterEnd}
	case GLM: // functions have no tags of their own
		return []string{"", "", openKey, closeValue, closeKey, openValue}
	}
	return nil
}

const (
	tagCall symbol = firstTag + iota
	tagCallEnd
	tagFunction
	tagFunctionEnd
	tagParameter
	tagParameterEnd
	tagNameEnd
	tagValue
)

// qwen reads what follows <tool_call>: calls as objects, in a list or not, or as
// functions with tags.
type qwen struct {
	tools Tools
	lex   *lexer
	state qwenState
	json  *object
	xml   *function
	// stray are symbols after a call, which are dropped where the tag ends.
	stray []symbol
	over  []symbol
}

type qwenState uint8

const (
	qwenOpens  qwenState = iota // no call came yet
	qwenObject                  // in an object
	qwenTags                    // in a function with tags
	qwenAfter                   // after a call
)

func newQwen(l *lexer, tools Tools, tag symbol) body {
	q := &qwen{tools: tools, lex: l}
	if tag == tagFunction {
		q.state, q.xml = qwenTags, newFunction(l, tools)
	}
	return q
}

func (q *qwen) rest() []symbol { return q.over }

func (q *qwen) meant() bool { return q.begun() }

func (q *qwen) begun() bool {
	switch q.state {
	case qwenObject:
		begun, _ := q.json.reported()
		return begun
	case qwenTags:
		return q.xml.begun
	}
	return false
}

func (q *qwen) push(s symbol, out *sink) verdict {
	switch q.state {
	case qwenObject:
		return q.inObject(s, out)
	case qwenTags:
		return q.inTags(s, out)
	case qwenAfter:
		return q.afterCall(s)
	}
	switch {
	case s < firstTag && isBlank(byte(s)), s == '[' && q.stray == nil:
		if s == '[' {
			q.stray = []symbol{s}
		}
		return more
	case s < firstTag && s != '{' && q.stray == nil: // a name in pairs
		if q.xml = newFunction(q.lex, q.tools); q.xml.pairs {
			q.state = qwenTags
			return q.inTags(s, out)
		}
	}
	return q.open(s)
}

// open begins a call.
func (q *qwen) open(s symbol) verdict {
	switch s {
	case '{':
		q.state, q.json = qwenObject, newObject(q.tools)
		return q.json.push('{', nil)
	case tagFunction:
		q.state, q.xml = qwenTags, newFunction(q.lex, q.tools)
		return more
	}
	return bad
}

// inObject takes a symbol of an object. One that lacks its last bracket ends with the tag.
func (q *qwen) inObject(s symbol, out *sink) verdict {
	_, whole := q.json.reported()
	if whole && s >= firstTag {
		return q.ended(out, s)
	}
	for _, b := range []byte(q.lex.letters(s)) {
		switch v := q.json.push(b, out); {
		case v == done:
			q.state, q.stray = qwenAfter, nil
			return more
		case v == bad && whole && s < firstTag:
			return q.ended(out, s)
		case v != more:
			return bad
		}
	}
	return more
}

// ended ends a call that was not closed, before a symbol.
func (q *qwen) ended(out *sink, s symbol) verdict {
	out.whole()
	q.state, q.stray = qwenAfter, nil
	return q.afterCall(s)
}

// inTags takes a symbol of a function with tags.
func (q *qwen) inTags(s symbol, out *sink) verdict {
	v, further := q.xml.push(s, out)
	if v != done {
		return v
	}
	q.state, q.stray, q.over = qwenAfter, nil, nil
	for i := range further {
		last := i == len(further)-1 // this is s
		switch v := q.afterCall(further[i]); {
		case v == more:
		case v == over:
			q.over = further[:len(further)-1]
			return over
		case !last:
			q.over = further[i+1 : len(further)-1]
			return over
		default:
			return v
		}
	}
	q.over = further
	return more
}

// afterCall takes a symbol after a call: another one, or the end of the tag. Commas and
// brackets too many are dropped before these.
func (q *qwen) afterCall(s symbol) verdict {
	switch {
	case s == tagCallEnd:
		return done
	case s < firstTag && (isBlank(byte(s)) || s == ',' || s == ']' || s == '}'):
		q.stray = append(q.stray, s)
		return more
	case s == '{' || s == tagFunction:
		return q.open(s)
	}
	return over
}

func (q *qwen) end(cut bool, out *sink) bool {
	q.over = nil
	switch q.state {
	case qwenObject:
		if _, whole := q.json.reported(); !whole {
			return false
		}
		out.whole()
		return true
	case qwenTags:
		var ok bool
		q.over, ok = q.xml.end(cut, out)
		return ok
	}
	return q.state == qwenAfter
}
