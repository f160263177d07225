package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// definition is what a tokenizer.json says: its lists read, its components
// still as they are written.
type definition struct {
	added                                           []addedDefinition
	normalizer, preTokenizer, postProcessor, decode json.RawMessage
	model                                           modelDefinition
}

// addedDefinition is one of added_tokens.
type addedDefinition struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// modelDefinition holds the fields of all kinds of models.
type modelDefinition struct {
	kind       string
	vocab      []vocabEntry
	scored     bool // the vocabulary is a list of texts and scores
	merges     [][2]string
	hasMerges  bool
	unkToken   *string
	unkID      *int64
	prefix     *string // continuing_subword_prefix
	suffix     *string // end_of_word_suffix
	dropout    *float64
	fuseUnk    *bool
	fallback   *bool // byte_fallback
	whole      *bool // ignore_merges
	maxPerWord *int64
}

type vocabEntry struct {
	text  string
	id    int32
	score float64
}

const (
	maxDefinitionBytes = 1 << 27
	maxComponentBytes  = 1 << 23
	maxComponentValues = 1 << 14
	maxAdded           = 1 << 16
)

// limits bound what is read.
type limits struct {
	bytes          int64
	tokens, merges int
}

// limitsFor bounds the tokenizer of a model of this many tokens. Gemma's, of 262,144, has twice as
// many merges and 34 MB.
func limitsFor(tokens int) limits {
	tokens = min(tokens+32<<10, maxVocabulary)
	return limits{bytes: min(8<<20+256*int64(tokens), maxDefinitionBytes), tokens: tokens, merges: min(4*tokens, maxMerges)}
}

// readLimited reads a tokenizer.json as it comes, so that a list that is too long
// ends the reading. Its errors are ErrInvalid.
func readLimited(in io.Reader, most limits) (*definition, error) {
	r := &definitionReader{json: json.NewDecoder(io.LimitReader(in, most.bytes)), out: new(definition), most: most}
	err := r.object("tokenizer.json", r.field)
	switch {
	case err == nil:
		return r.out, nil
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return nil, fmt.Errorf("tokenizer.json ends early or has over %d bytes: %w", most.bytes, ErrInvalid)
	case errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported):
		return nil, err
	}
	return nil, fmt.Errorf("tokenizer.json: %w: %w", ErrInvalid, excerpt.Error(err)) // it may repeat a number of the file
}

type definitionReader struct {
	json *json.Decoder
	out  *definition
	most limits
}

func (r *definitionReader) field(key string) error {
	switch key {
	case "version":
		var v string
		if err := r.json.Decode(&v); err != nil || v != "1.0" {
			return fmt.Errorf("tokenizer.json has version %.80q (supported: 1.0): %w", v, ErrUnsupported)
		}
		return nil
	case "added_tokens":
		r.out.added = nil
		return r.list(key, maxAdded, func() error {
			var a addedDefinition
			err := r.json.Decode(&a)
			r.out.added = append(r.out.added, a)
			return err
		})
	case "normalizer":
		return r.component(&r.out.normalizer, key)
	case "pre_tokenizer":
		return r.component(&r.out.preTokenizer, key)
	case "post_processor":
		return r.component(&r.out.postProcessor, key)
	case "decoder":
		return r.component(&r.out.decode, key)
	case "model":
		r.out.model = modelDefinition{}
		return r.object(key, r.modelField)
	}
	return r.skip() // truncation and padding among them: the caller's matter
}

func (r *definitionReader) modelField(key string) error {
	m := &r.out.model
	fields := map[string]any{
		"type": &m.kind, "unk_token": &m.unkToken, "unk_id": &m.unkID, "continuing_subword_prefix": &m.prefix,
		"end_of_word_suffix": &m.suffix, "dropout": &m.dropout, "fuse_unk": &m.fuseUnk, "byte_fallback": &m.fallback,
		"ignore_merges": &m.whole, "max_input_chars_per_word": &m.maxPerWord,
	}
	switch to, known := fields[key]; {
	case known:
		if err := r.json.Decode(to); err != nil {
			return fmt.Errorf("%s of the model: %w", key, err)
		}
		return nil
	case key == "vocab":
		return r.vocab()
	case key == "merges":
		m.merges, m.hasMerges = nil, true
		return r.list(key, r.most.merges, r.merge)
	}
	return r.skip()
}

// vocab reads an object of ids or a list of texts and scores.
func (r *definitionReader) vocab() error {
	m := &r.out.model
	open, err := r.json.Token()
	if err != nil {
		return err
	}
	m.vocab, m.scored = nil, open == json.Delim('[')
	if open != json.Delim('{') && !m.scored {
		return fmt.Errorf("vocab of the model is neither an object nor a list: %w", ErrInvalid)
	}
	for r.json.More() {
		if len(m.vocab) == r.most.tokens {
			return fmt.Errorf("vocab has over %d entries: %w", r.most.tokens, ErrInvalid)
		}
		e, err := r.entry(m.scored)
		if err != nil {
			return err
		}
		m.vocab = append(m.vocab, e)
	}
	_, err = r.json.Token()
	return err
}

func (r *definitionReader) entry(scored bool) (vocabEntry, error) {
	e := vocabEntry{id: int32(len(r.out.model.vocab))}
	if scored {
		return e, r.scored(&e)
	}
	key, err := r.json.Token()
	if err != nil {
		return e, err
	}
	e.text = key.(string) // keys are strings
	var id int64
	if err := r.json.Decode(&id); err != nil {
		return e, fmt.Errorf("id of token %.80q: %w", e.text, err)
	}
	if id < 0 || id >= int64(r.most.tokens) {
		return e, fmt.Errorf("id of token %.80q is %d, want 0 to %d: %w", e.text, id, r.most.tokens-1, ErrInvalid)
	}
	e.id = int32(id)
	return e, nil
}

// scored reads ["text", -1.5].
func (r *definitionReader) scored(e *vocabEntry) error {
	var parts [4]json.Token
	for i := range parts {
		var err error
		if parts[i], err = r.json.Token(); err != nil {
			return err
		}
	}
	text, isText := parts[1].(string)
	score, isScore := parts[2].(float64)
	if parts[0] != json.Delim('[') || !isText || !isScore || parts[3] != json.Delim(']') {
		return fmt.Errorf("token %d of the vocab is not a pair of text and score: %w", e.id, ErrInvalid)
	}
	e.text, e.score = text, score
	return nil
}

// merge reads "a b" or ["a", "b"].
func (r *definitionReader) merge() error {
	n := len(r.out.model.merges)
	t, err := r.json.Token()
	if err != nil {
		return err
	}
	if text, ok := t.(string); ok {
		left, right, ok := cutMerge(text)
		if !ok {
			return fmt.Errorf("merge %d is %.80q, want two tokens and a space: %w", n, text, ErrInvalid)
		}
		r.out.model.merges = append(r.out.model.merges, [2]string{left, right})
		return nil
	}
	var pair [2]string
	i := 0
	for ; t == json.Delim('[') && r.json.More(); i++ {
		s, err := r.json.Token()
		if err != nil {
			return err
		}
		text, ok := s.(string)
		if !ok || i > 1 {
			i = -1
			break
		}
		pair[i] = text
	}
	if i != 2 {
		return fmt.Errorf("merge %d is not a pair of strings: %w", n, ErrInvalid)
	}
	r.out.model.merges = append(r.out.model.merges, pair)
	_, err = r.json.Token()
	return err
}

// object reads an object, field by field.
func (r *definitionReader) object(what string, field func(key string) error) error {
	open, err := r.json.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('{') {
		return fmt.Errorf("%s is not an object: %w", what, ErrInvalid)
	}
	for r.json.More() {
		key, err := r.json.Token()
		if err != nil {
			return err
		}
		if err := field(key.(string)); err != nil { // keys are strings
			return err
		}
	}
	_, err = r.json.Token()
	return err
}

// list reads a list of at most most elements; element reads one.
func (r *definitionReader) list(what string, most int, element func() error) error {
	open, err := r.json.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('[') {
		return fmt.Errorf("%s is not a list: %w", what, ErrInvalid)
	}
	for n := 0; r.json.More(); n++ {
		if n == most {
			return fmt.Errorf("%s has over %d entries: %w", what, most, ErrInvalid)
		}
		if err := element(); err != nil {
			return err
		}
	}
	_, err = r.json.Token()
	return err
}

func (r *definitionReader) component(to *json.RawMessage, what string) error {
	*to = nil
	if err := r.json.Decode(to); err != nil {
		return err
	}
	if len(*to) > maxComponentBytes {
		return fmt.Errorf("%s has over %d bytes: %w", what, maxComponentBytes, ErrInvalid)
	}
	values := 0
	for _, sign := range []string{"{", "[", ","} { // each value but the first follows one
		values += bytes.Count(*to, []byte(sign))
	}
	if values > maxComponentValues {
		return fmt.Errorf("%s has over %d values: %w", what, maxComponentValues, ErrInvalid)
	}
	if string(*to) == "null" {
		*to = nil
	}
	return nil
}

func (r *definitionReader) skip() error {
	var v json.RawMessage
	return r.json.Decode(&v)
}
