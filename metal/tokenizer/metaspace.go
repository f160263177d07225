package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// metaspaceFields are what Metaspace says as pre-tokenizer and as decoder.
type metaspaceFields struct {
	Replacement    string `json:"replacement"`
	PrependScheme  string `json:"prepend_scheme"`
	Split          *bool  `json:"split"`
	AddPrefixSpace *bool  `json:"add_prefix_space"` // what older files say
}

func readMetaspace(c component) (metaspaceFields, error) {
	f := metaspaceFields{PrependScheme: "always"}
	if err := c.into(&f); err != nil {
		return f, err
	}
	if utf8.RuneCountInString(f.Replacement) != 1 {
		return f, fmt.Errorf("a Metaspace replaces spaces with %.80q, want one character: %w", f.Replacement, ErrInvalid)
	}
	schemes := map[string]bool{"always": true, "first": true, "never": true}
	if !schemes[f.PrependScheme] {
		return f, unsupported("prepend_scheme", f.PrependScheme, schemes)
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && f.PrependScheme != "never" {
		return f, fmt.Errorf("a Metaspace has add_prefix_space false and prepend_scheme %s: %w", f.PrependScheme, ErrInvalid)
	}
	return f, nil
}

// metaspace writes spaces as a mark, puts one in front, and cuts before each.
func (p *preTokenizing) metaspace(c component) error {
	f, err := readMetaspace(c)
	if err != nil {
		return err
	}
	if p.bytes {
		return fmt.Errorf("pre_tokenizer Metaspace follows ByteLevel: %w", ErrUnsupported)
	}
	mark := f.Replacement
	p.then(func(_ *budget, in span, out func(span)) error {
		head := len(strings.ReplaceAll(in.text[:in.head], " ", mark))
		in = span{strings.ReplaceAll(in.text, " ", mark), head}
		if f.PrependScheme == "always" || f.PrependScheme == "first" && in.head > 0 {
			if !strings.HasPrefix(in.text, mark) {
				in.text = mark + in.text
				if in.head > 0 {
					in.head += len(mark)
				}
			}
		}
		out(in)
		return nil
	})
	if f.Split == nil || *f.Split {
		p.then(behaving(eachString(mark), withNext, false))
	}
	return nil
}
