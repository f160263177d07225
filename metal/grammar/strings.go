package grammar

import "unicode/utf8"

// formats that are enforced, as expressions of the whole text. Each matches no
// more than the format allows.
var formats = map[string]string{
	"date":      dateFormat,
	"time":      timeFormat,
	"date-time": dateFormat + "T" + timeFormat,
	"duration":  `P(\d{1,6}W|(\d{1,6}Y(\d{1,6}M(\d{1,6}D)?)?|\d{1,6}M(\d{1,6}D)?|\d{1,6}D)(T(\d{1,6}H(\d{1,6}M(\d{1,6}S)?)?|\d{1,6}M(\d{1,6}S)?|\d{1,6}S))?|T(\d{1,6}H(\d{1,6}M(\d{1,6}S)?)?|\d{1,6}M(\d{1,6}S)?|\d{1,6}S))`,
	"uuid":      `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`,
	"ipv4":      octet + `(\.` + octet + `){3}`,
	"ipv6":      `([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,3}(:[0-9a-fA-F]{1,4}){1,3}|::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,5})?`,
	"hostname":  label + `(\.` + label + `){0,3}`,
	"email":     `[A-Za-z0-9_+-]{1,32}(\.[A-Za-z0-9_+-]{1,16}){0,1}@` + label + `(\.` + label + `){1,2}`,
	"uri":       `https?://` + label + `(\.` + label + `){0,3}(:[1-9][0-9]{1,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}(\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?`,
}

const (
	octet      = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	label      = `[a-z0-9]([a-z0-9]{0,30}[a-z0-9])?`
	timeFormat = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
	dateFormat = `((000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))` +
		`|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)`
)

// emitString is the texts of a case.
func (s *schemas) emitString(c oneCase, _ types) (expr, error) {
	least, err := s.whole(c, "minLength", 0, larger)
	if err != nil {
		return nil, err
	}
	most, err := s.whole(c, "maxLength", -1, smaller)
	if err != nil {
		return nil, err
	}
	if most >= 0 && most < least {
		return alt{}, nil
	}
	shape, err := s.shape(c)
	if err != nil {
		return nil, err
	}
	switch {
	case shape == nil && least == 0 && most < 0:
		return s.string(s.content, s.apostrophed), nil
	case shape == nil:
		return s.string(repeat{s.char, least, most}, repeat{s.apostrophe, least, most}), nil
	}
	defer s.b.scratch()()
	if least > 0 || most >= 0 {
		length, err := ofLength(s.b.meter, least, most)
		if err != nil {
			return nil, err
		}
		if shape, err = both(s.b.meter, shape, length); err != nil {
			return nil, err
		}
	}
	return s.spelt(shape)
}

// writable is an expression without the texts that cannot be written where the value stands.
func (s *schemas) writable(all *regular) (*regular, error) {
	switch {
	case s.inTags:
		return both(s.b.meter, all, onlyOf(noTag))
	case s.notation.Quote != "":
		all, err := both(s.b.meter, all, lacking(s.notation.Quote))
		if err != nil {
			return nil, err
		}
		return both(s.b.meter, all, onlyOf(noMark))
	case s.forgiving:
		return both(s.b.meter, all, onlyOf(noMark))
	}
	return all, nil
}

// shape is what patterns and formats allow; nil where there are none.
func (s *document) shape(c oneCase) (*regular, error) {
	var all *regular
	for _, o := range c {
		for _, keyword := range []string{"pattern", "format"} {
			v, ok := o.get(keyword)
			if !ok {
				continue
			}
			text, isText := v.(string)
			if !isText {
				return nil, s.malformed(keyword, o.at, "a string")
			}
			r, err := s.pattern(keyword, text, o.at)
			if err != nil {
				return nil, err
			}
			if all == nil {
				all = r
			} else if all, err = both(s.b.meter, all, r); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// pattern parses an expression, or finds that of a format, once.
func (s *document) pattern(keyword, text string, at *spot) (*regular, error) {
	if !s.b.meter.spend(1 + len(text)/textBytes) {
		return nil, s.b.meter.err
	}
	k := patternKey{keyword, text}
	if r := s.patterns[k]; r != nil {
		return r, nil
	}
	source := text
	if keyword == "format" {
		var known bool
		if source, known = formats[text]; !known {
			return nil, s.unsupported("format", at, "unknown format %q: supported are date, time, date-time, duration, uuid, ipv4, ipv6, hostname, email and uri; omit it, or use pattern", text)
		}
	}
	r, err := parseRegular(s.b.meter, source, keyword, keyword == "format")
	if err == nil {
		s.patterns[k] = r
		return r, nil
	}
	if e, ok := err.(*Error); ok {
		e.Path = s.pointer(at)
	}
	return nil, err
}

// fitsString says whether a text satisfies a case.
func (s *opener) fitsString(text string, c oneCase) (bool, error) {
	n := utf8.RuneCountInString(text)
	least, err := s.whole(c, "minLength", 0, larger)
	if err != nil {
		return false, err
	}
	most, err := s.whole(c, "maxLength", -1, smaller)
	if err != nil || n < least || most >= 0 && n > most {
		return false, err
	}
	shape, err := s.shape(c)
	return shape == nil || err == nil && shape.matches(s.b.meter, text), err
}
