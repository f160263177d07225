package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// templates list the ids around one text and around two.
type templates struct {
	one, two []templatePart
}

// parts are those around this many texts, one or two.
func (t templates) parts(texts int) []templatePart {
	if texts == 2 {
		return t.two
	}
	return t.one
}

// fill puts texts into a template: their ids, and the kind (token type) of each.
func fill(parts []templatePart, texts ...[]int32) (ids, kinds []int32) {
	for _, p := range parts {
		these := []int32{p.id}
		if p.text > 0 {
			these = texts[p.text-1]
		}
		ids = append(ids, these...)
		for range these {
			kinds = append(kinds, p.kind)
		}
	}
	return ids, kinds
}

// templatePart is an id or a place for a text.
type templatePart struct {
	id   int32
	text int // 1 or 2 for a text, 0 for the id
	kind int32
}

// aroundBOS is what transformers puts around texts where only BOS and EOS are
// asked for.
func aroundBOS(s SpecialTokens) templates {
	around := func(text int, kind int32) []templatePart {
		var out []templatePart
		if s.AddBOS && s.BOS != None {
			out = append(out, templatePart{id: s.BOS, kind: kind})
		}
		out = append(out, templatePart{text: text, kind: kind})
		if s.AddEOS && s.EOS != None {
			out = append(out, templatePart{id: s.EOS, kind: kind})
		}
		return out
	}
	return templates{one: around(1, 0), two: append(around(1, 0), around(2, 1)...)}
}

// readTemplates builds the post-processor of a tokenizer.json; ids are below
// size.
func readTemplates(raw json.RawMessage, size int) (templates, error) {
	steps, err := flatten(raw, "post_processor", "processors")
	if err != nil {
		return templates{}, err
	}
	t := templates{one: []templatePart{{text: 1}}, two: []templatePart{{text: 1}, {text: 2, kind: 1}}}
	known := map[string]func(*templates, component) error{
		"ByteLevel":          func(*templates, component) error { return nil }, // moves offsets only
		"TemplateProcessing": (*templates).read, "BertProcessing": (*templates).bert, "RobertaProcessing": (*templates).roberta,
	}
	adds := 0
	for _, s := range steps {
		read, ok := known[s.kind]
		if !ok {
			return t, unsupported("post_processor", s.kind, known)
		}
		if err := read(&t, s); err != nil {
			return t, err
		}
		if s.kind != "ByteLevel" {
			adds++
		}
	}
	if adds > 1 {
		return t, fmt.Errorf("post_processor has %d members that add tokens (supported: 1): %w", adds, ErrUnsupported)
	}
	for _, p := range slices.Concat(t.one, t.two) {
		if p.id < 0 || int(p.id) >= size {
			return t, fmt.Errorf("post_processor adds token %d, but there are %d: %w", p.id, size, ErrInvalid)
		}
	}
	return t, nil
}

// maxTemplate bounds the ids that a post-processor puts around texts.
const maxTemplate = 256

func (t *templates) read(c component) error {
	var f struct {
		Single, Pair []map[string]struct {
			ID   string `json:"id"`
			Type int32  `json:"type_id"`
		}
		Special map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := c.into(&f); err != nil {
		return err
	}
	place := map[string]int{"A": 1, "B": 2}
	for _, x := range []struct {
		to   *[]templatePart
		from []map[string]struct {
			ID   string `json:"id"`
			Type int32  `json:"type_id"`
		}
		texts int
	}{{&t.one, f.Single, 1}, {&t.two, f.Pair, 2}} {
		*x.to = nil
		for _, p := range x.from {
			if s, ok := p["Sequence"]; ok && place[s.ID] > 0 && place[s.ID] <= x.texts {
				*x.to = append(*x.to, templatePart{text: place[s.ID], kind: s.Type})
				continue
			}
			s, ok := p["SpecialToken"]
			special, named := f.Special[s.ID]
			if !ok || !named {
				return fmt.Errorf("%s has a part that is neither a sequence nor a named token: %w", c.kind, ErrInvalid)
			}
			for _, id := range special.IDs {
				*x.to = append(*x.to, templatePart{id: id, kind: s.Type})
			}
		}
		if len(*x.to) == 0 || len(*x.to) > maxTemplate {
			return fmt.Errorf("%s has %d parts, want 1 to %d: %w", c.kind, len(*x.to), maxTemplate, ErrInvalid)
		}
		for text := 1; text <= x.texts; text++ { // its tokens are counted once
			if n := times(*x.to, text); n > 1 {
				return fmt.Errorf("%s repeats a text %d times, want once: %w", c.kind, n, ErrUnsupported)
			}
		}
	}
	return nil
}

// times is how often a template has a text.
func times(parts []templatePart, text int) (n int) {
	for _, p := range parts {
		if p.text == text {
			n++
		}
	}
	return n
}

// separators are the tokens that two older processors name.
type separators struct {
	Sep, Cls namedID
}

// namedID reads ["[SEP]", 102].
type namedID int32

func (n *namedID) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("%.80q is not a pair of text and id", b)
	}
	return json.Unmarshal(pair[1], (*int32)(n))
}

func (t *templates) bert(c component) error {
	var f separators
	err := c.into(&f)
	t.separate(int32(f.Cls), int32(f.Sep))
	return err
}

// separate puts one token before and another after each text.
func (t *templates) separate(cls, sep int32) {
	t.one = []templatePart{{id: cls}, {text: 1}, {id: sep}}
	t.two = append(t.one[:3:3], templatePart{text: 2, kind: 1}, templatePart{id: sep, kind: 1})
}

func (t *templates) roberta(c component) error {
	var f separators
	err := c.into(&f)
	cls, sep := templatePart{id: int32(f.Cls)}, templatePart{id: int32(f.Sep)}
	t.one = []templatePart{cls, {text: 1}, sep}
	t.two = []templatePart{cls, {text: 1}, sep, sep, {text: 2}, sep}
	return err
}
