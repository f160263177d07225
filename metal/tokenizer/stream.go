package tokenizer

import "strings"

// Decoder converts a stream of ids to text. The concatenation of its pieces
// equals Decode of all ids, and no piece ends inside a character. It is not
// safe for concurrent use.
type Decoder struct {
	t           *Tokenizer
	skipSpecial bool
	stages      []stage
}

// NewDecoder returns a decoder for one stream of ids.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *Decoder {
	d := &Decoder{t: t, skipSpecial: skipSpecial}
	for _, s := range t.decode.steps {
		d.stages = append(d.stages, s())
	}
	return d
}

// Continue decodes what comes next as the middle of a text: what a tokenizer puts before a text
// does not stand there.
func (d *Decoder) Continue() {
	for _, s := range d.stages {
		if s, ok := s.(interface{ follow() }); ok {
			s.follow()
		}
	}
}

// Push adds one id and returns the text that is complete now, which is often
// empty.
func (d *Decoder) Push(id int32) (string, error) {
	var text joined
	err := d.push(id, text.add)
	return text.String(), err
}

func (d *Decoder) push(id int32, out func(string)) error {
	token, ok, err := d.t.shown(id, d.skipSpecial)
	if err == nil && ok {
		d.through(0, token, out)
	}
	return err
}

// through sends a token through the stages from one on.
func (d *Decoder) through(from int, token string, out func(string)) {
	switch from {
	case len(d.stages):
		out(token)
	case len(d.stages) - 1:
		d.stages[from].push(token, out)
	default:
		d.stages[from].push(token, func(s string) { d.through(from+1, s, out) })
	}
}

// Flush ends the stream and returns the text held back: an incomplete character
// becomes U+FFFD. The decoder can then be used again.
func (d *Decoder) Flush() string {
	var text joined
	d.flush(text.add)
	return text.String()
}

func (d *Decoder) flush(out func(string)) {
	for i, s := range d.stages {
		s.flush(func(s string) { d.through(i+1, s, out) })
	}
}

// joined is text in parts, of which most tokens have one: that is not copied. A run of byte
// tokens that turns out to be broken has one for each of them.
type joined struct {
	first string
	all   strings.Builder // unless there is only the first
}

func (j *joined) add(s string) {
	switch {
	case j.all.Len() > 0:
		j.all.WriteString(s)
	case j.first == "":
		j.first = s
	default:
		j.all.WriteString(j.first)
		j.all.WriteString(s)
	}
}

func (j *joined) String() string {
	if j.all.Len() > 0 {
		return j.all.String()
	}
	return j.first
}
