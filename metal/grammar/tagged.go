package grammar

import (
	"cmp"
	"slices"
)

// Tags are the texts around parameters that are written one after another.
type Tags struct {
	// Open and Then surround a name, and Close follows the value, which may
	// begin and end with a newline that is not part of it.
	Open, Then, Close string
	// TextThen is Then after the names of strings; empty means the same.
	TextThen string
	// End ends the arguments, and Ends does if tags are missing. Both may end a
	// value that was not closed, if one of Begins or nothing follows before
	// Close.
	End, Ends string
	Begins    []string
}

// tagger makes the parameters of one case.
type tagger struct {
	*schemas
	tags  Tags
	names []string
	// thens follow the names.
	thens []string
	// loop is where a parameter may begin, implied where one begins that ends a value, and
	// closed where the arguments end.
	loop, implied, closed int32
	// want numbers the parameters that are required.
	want int
	// values are the nodes at which the value of each name begins.
	values []int32
	// text is where a string that nothing holds begins; -1 until it is made.
	text int32
}

// tagged are the arguments of a goal as parameters between tags, with their end. A closing
// tag may be missing in sloppy arguments: what is looked for then is what ends the value for
// metal/toolcall, and no other value contains it.
func (s *schemas) tagged(g goal, tags Tags) (expr, error) {
	cases, err := s.open(g)
	if err != nil {
		return nil, err
	}
	var all alt
	for _, c := range cases {
		sh, err := s.membersOf(c)
		if err != nil {
			return nil, err
		}
		if len(sh.names) > maxTaken {
			return nil, tooLarge("parameters of one function", maxTaken)
		}
		for _, name := range sh.names {
			if len(name) > maxBareName {
				return nil, s.unsupported("properties", nil, "the name of an argument has %d bytes, and this model's format takes %d; rename it", len(name), maxBareName)
			}
		}
		t := &tagger{schemas: s, tags: tags, names: sh.names, text: -1}
		e, err := t.make(c, sh)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func (t *tagger) make(c oneCase, sh shapeOf) (expr, error) {
	b := t.b
	rule := b.rule()
	t.loop, t.implied, t.closed, t.want = b.node(), b.node(), b.node(), b.newWant()
	between := b.emit(t.between(), t.loop)
	b.empty(b.rules[rule], t.loop)
	for i, name := range t.names {
		value, taken := b.node(), b.node()
		t.values, t.thens = append(t.values, value), append(t.thens, t.then(c, name))
		b.empty(b.emit(literal(t.tags.Open+name+t.thens[i]), taken), value)
		b.join(between, edge{kind: edgeTake, lo: byte(i), to: taken})
		if t.sloppy {
			b.join(t.implied, edge{kind: edgeTake, lo: byte(i), to: taken})
		}
	}
	for i, name := range t.names {
		g, err := t.member(c, name, true, t.matchesName(c, name))
		if err != nil {
			return nil, err
		}
		if err := t.value(i, g, sh.required[name]); err != nil {
			return nil, err
		}
	}
	if sh.open {
		if err := t.others(c, between, sh); err != nil {
			return nil, err
		}
	}
	for i, end := range t.ends() {
		if i == 0 || t.sloppy {
			t.b.empty(t.b.emit(literal(end), t.complete(between)), t.closed)
		}
	}
	if t.sloppy { // a closing tag twice
		b.empty(b.emit(literal(t.tags.Close), between), t.loop)
	}
	if b.err == nil {
		b.nodes[t.closed].final = true
	}
	return ref(rule), b.err
}

// then is what follows the name of a parameter.
func (t *tagger) then(c oneCase, name string) string {
	if t.tags.TextThen == "" {
		return t.tags.Then
	}
	g, err := t.member(c, name, true, t.matchesName(c, name))
	if err == nil {
		var kinds types
		if kinds, err = t.kinds(g); err == nil && kinds == typeString {
			return t.tags.TextThen
		}
	}
	return t.tags.Then
}

// between is what may stand between two parameters.
func (t *tagger) between() expr {
	if t.sloppy {
		return t.space
	}
	return repeat{literal("\n"), 0, 2}
}

// complete is reached from a node once all required parameters were given.
func (t *tagger) complete(from int32) int32 {
	to := t.b.node()
	t.b.wantAll(t.want, from, to)
	return to
}

// value makes the value of parameter i.
func (t *tagger) value(i int, g goal, required bool) error {
	cases, err := t.open(g)
	free, text, err := t.texts(cases, err)
	if err != nil || t.b.err != nil {
		return err
	}
	w := &t.b.wants[t.want]
	if required {
		w.members |= 1 << i
	}
	if free {
		t.b.empty(t.values[i], t.freeText())
		return nil
	}
	held := t.b.define(text)
	if w = &t.b.wants[t.want]; required {
		w.nodes = append(w.nodes, t.b.rules[held])
	}
	t.held(t.values[i], held)
	return nil
}

// texts are how a value is written: as any text, or as an expression.
func (t *tagger) texts(cases []oneCase, failed error) (free bool, held expr, err error) {
	if failed != nil {
		if t.forgives(failed) {
			return true, nil, nil
		}
		return false, nil, failed
	}
	var all alt
	for _, c := range cases {
		kinds, err := t.typesOf(c)
		if err != nil {
			if t.forgives(err) {
				return true, nil, nil
			}
			return false, nil, err
		}
		e, open, err := t.oneText(c, kinds)
		switch {
		case err != nil && t.forgives(err), err == nil && open:
			return true, nil, nil
		case err != nil:
			return false, nil, err
		}
		all = append(all, e)
	}
	return false, all, nil
}

// noTag are the characters of a text that contains no tag, and no tag may follow.
var noTag = newRuneSet(runeRange{0, '\n' - 1}, runeRange{'\n' + 1, '<' - 1}, runeRange{'<' + 1, firstMark - 1}, runeRange{lastMark + 1, 0x10ffff})

// oneText is the values of a case with what may stand around them: blanks around JSON, a
// line end before and after a text. open is set where they are any text.
func (t *tagger) oneText(c oneCase, kinds types) (e expr, open bool, err error) {
	space, line := t.space, repeat{literal("\n"), 0, 1}
	if values, listed, err := t.listed(c); err != nil {
		return nil, false, err
	} else if listed {
		var all alt
		for _, v := range values {
			if ok, err := t.satisfies(v, c); err != nil {
				return nil, false, err
			} else if !ok {
				continue
			}
			around := expr(line)
			text, isText := v.(string)
			if !isText {
				around, text = space, written(v)
			}
			e, err := t.b.anyText([]string{text})
			if err != nil {
				return nil, false, err
			}
			all = append(all, seq{around, e, around})
		}
		return all, false, nil
	}
	if kinds&typeString == 0 {
		e, err := t.emitCase(c)
		return seq{space, e, space}, false, err
	}
	least, err := t.whole(c, "minLength", 0, larger)
	if err != nil {
		return nil, false, err
	}
	most, err := t.whole(c, "maxLength", -1, smaller)
	if err != nil {
		return nil, false, err
	}
	pattern, err := t.shape(c)
	if err != nil || least == 0 && most < 0 && pattern == nil || kinds != typeString {
		return nil, true, err
	}
	if pattern == nil {
		return seq{line, repeat{runes(noTag), least, most}, line}, false, nil
	}
	defer t.b.scratch()()
	length, err := ofLength(t.b.meter, least, most)
	if err != nil {
		return nil, false, err
	}
	if pattern, err = both(t.b.meter, pattern, length); err != nil {
		return nil, false, err
	}
	if pattern, err = both(t.b.meter, pattern, onlyOf(noTag)); err != nil {
		return nil, false, err
	}
	return seq{line, t.b.emitRegular(pattern, plainText), line}, false, nil
}

// onlyOf matches the texts of some characters.
func onlyOf(set runeSet) *regular {
	s := regularState{accept: true}
	for _, r := range set {
		s.ways = append(s.ways, regularWay{r, 0})
	}
	return &regular{states: []regularState{s}}
}

// held makes a value that is no free text.
func (t *tagger) held(from int32, value expr) {
	b := t.b
	end := b.emit(value, from)
	b.empty(b.emit(literal(t.tags.Close), end), t.loop)
	if !t.sloppy {
		return
	}
	b.empty(b.emit(literal("\n"), end), t.implied)
	for _, text := range t.ends() {
		b.empty(b.emit(literal(text), t.complete(end)), t.closed)
	}
}

// freeText is where a text begins that its own closing tag ends, or what stands for it.
func (t *tagger) freeText() int32 {
	if t.text >= 0 {
		return t.text
	}
	b, inner := t.b, newText(t.b)
	t.text = b.node()
	inner.on(t.tags.Close, func(node int32) { b.empty(node, t.loop) })
	for i, name := range t.names {
		var at int
		at = inner.on("\n"+t.tags.Open+name+t.thens[i], func(node int32) {
			// The parameter was given: the tag is text.
			b.join(node, edge{kind: edgeHas, lo: byte(i), to: inner.failed(at)})
			if t.sloppy {
				b.join(node, edge{kind: edgeTake, lo: byte(i), to: t.values[i]})
			}
		})
	}
	rest := b.node()
	for _, end := range t.ends() {
		inner.on(end, func(node int32) {
			if t.sloppy {
				b.empty(node, rest)
				b.wantAll(t.want, node, t.closed)
			}
		})
	}
	inner.make(t.text, false)
	if t.sloppy {
		t.afterEnd(rest)
	}
	return t.text
}

// afterEnd is the text after what would have been the end of the arguments, in a value that
// is closed after all.
func (t *tagger) afterEnd(from int32) {
	inner := newText(t.b)
	inner.on(t.tags.Close, func(node int32) { t.b.empty(node, t.loop) })
	for _, begin := range t.tags.Begins {
		inner.on(begin, func(int32) {})
	}
	inner.make(from, false)
}

// ends are the texts that may end the arguments within a value.
func (t *tagger) ends() []string {
	all := []string{t.tags.End, t.tags.Ends}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// others are parameters of names that are not listed.
func (t *tagger) others(c oneCase, between int32, sh shapeOf) error {
	g, err := t.member(c, "", false, func(string) (bool, error) { return false, nil })
	if err != nil || slices.ContainsFunc(g, func(p place) bool { return p.of == false }) {
		return err
	}
	const letters = "[^<>\" \n\t\r\ufdd0-\ufdef]{1,128}" // a quote begins a name in quotes
	all, err := parseRegular(t.b.meter, letters, "name", true)
	if err != nil {
		return err
	}
	if len(sh.names) > 0 {
		listed := oneOf(t.b.meter, sh.names)
		if listed == nil {
			return tooLarge("characters of names in one function", maxRegular)
		}
		if all, err = both(t.b.meter, all, listed.not(t.b.meter)); err != nil {
			return err
		}
	}
	e := seq{literal(t.tags.Open), t.b.emitRegular(all, plainText), literal(cmp.Or(t.tags.TextThen, t.tags.Then))}
	t.b.empty(t.b.emit(e, between), t.freeText())
	return nil
}
