// Package tokenizer turns text into token ids and back.
//
// It owns vocabularies and the four ways to read text with them (byte-level
// BPE, BPE over characters as SentencePiece has it, unigram, WordPiece), what
// happens to text before that (normal forms, replacements, splits by
// expressions), added and special tokens, what stands around texts, and the
// decoder for streams, which never shows half a character. It reads the
// tokenizer.json of a model folder and the metadata of a GGUF file.
//
// It refuses components and GGUF names that it does not know, by name, and
// vocabularies that contradict themselves. A hostile folder costs bounded time
// and memory: lists are counted as they are read, and each text has a budget of
// steps, so that the same texts fail on every machine. It knows nothing of
// models or chat templates, and does not truncate or pad.
//
// The reference is Hugging Face's tokenizers 0.23.3: ids and text are equal to
// its own, byte for byte, which includes what looks odd (a byte that has no
// token is dropped; each of its parts has a Unicode version of its own). Known
// differences: a special token that is normalized is left out like any other
// when special tokens are skipped, text of control tokens is never read as such
// unless asked for, a piece of over 65,536 symbols that any merge may join is
// merged in parts, one of over 65,536 bytes of unigrams is read in parts, and (?i) matches single characters only, not ss for a sharp
// s. GGUF is read as the tokenizer.json of the same model, which llama.cpp's own
// test vocabularies agree with.
//
// Start reading at FromFolder, FromGGUF and Tokenizer.Encode.
package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrUnsupported is returned for a tokenizer of a kind that is not built.
var ErrUnsupported = errors.New("unsupported tokenizer")

// ErrInvalid is returned for a tokenizer that contradicts itself.
var ErrInvalid = errors.New("invalid tokenizer")

// ErrUnknownToken is returned for an id that the vocabulary does not have.
var ErrUnknownToken = errors.New("unknown token")

// errTooSlow is returned for a text on which a pattern or a rule of the
// tokenizer takes too long.
var errTooSlow = errors.New("the tokenizer took too long for this text")

// None is the id of a special token that the model does not have.
const None int32 = -1

// Tokenizer is one model's tokenizer. It does not change and may be used by
// many goroutines at once.
type Tokenizer struct {
	vocab     *vocabulary
	model     model
	normalize normalizer // nil where text is taken as it is
	cut       cutter     // nil where a text is one piece
	// added are the tokens found in the text itself, normalized those found in
	// the normalized text.
	added, normalized *addedTokens
	decode            *decoding
	// raw: the vocabulary holds bytes, not text.
	raw bool
	// instead are the texts of tokens that decode to something else.
	instead map[int32]string
	special SpecialTokens
	around  templates
}

// model turns one piece of text into ids.
type model interface {
	// newWorker returns a worker for one goroutine; it keeps scratch memory
	// between pieces. Without controls, no text is read as a control token.
	newWorker(controls bool, bounds *bounds) worker
}

type worker interface {
	// encode appends the ids of piece.
	encode(ids []int32, piece string) []int32
}

// SpecialTokens are ids with a role; None if the model has no such token.
type SpecialTokens struct {
	BOS, EOS, EOT, EOM, Unknown, Padding int32
	// MoreEnds also end a generation.
	MoreEnds []int32
	// AddBOS: a plain prompt begins with BOS. Chat templates write their own.
	AddBOS bool
	// AddEOS: a plain text to embed ends with EOS.
	AddEOS bool
}

// Ends returns the ids that end a generation, without repeats.
func (s SpecialTokens) Ends() []int32 {
	var ids []int32
	for _, id := range append([]int32{s.EOS, s.EOT, s.EOM}, s.MoreEnds...) {
		if id != None && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// EncodeOptions select how text is encoded. The zero value encodes plain text.
type EncodeOptions struct {
	// AddBOS puts BOS first if the model requires it.
	AddBOS bool
	// ParseSpecial encodes the text of control tokens as these tokens, as
	// needed for the output of a chat template.
	ParseSpecial bool
	// AddSpecial adds the special tokens of the model around the text, as
	// transformers does with add_special_tokens: for texts to embed. It takes
	// precedence over AddBOS.
	AddSpecial bool
	// Limit, unless 0: Encode returns ErrTooMany once there are more ids. With Cut it
	// returns the first Limit ids instead, and does not encode the text after them.
	Limit int
	Cut   bool
	// Stop, unless nil, is called now and then: Encode returns its error.
	Stop func() error
	// Excess, unless nil, counts the work that texts cost besides that for their bytes, of which
	// all that share it may take as much as one text.
	Excess *int
}

// ErrTooMany means that a text has more ids than EncodeOptions.Limit.
var ErrTooMany = errors.New("the text has more tokens than the limit")

// bounds end the encoding of a text early.
type bounds struct {
	EncodeOptions
	checks int
	err    error
}

// stopEvery is how many checks pass between two calls of Stop.
const stopEvery = 256

// check ends the encoding if there are too many ids, or it is stopped.
func (l *bounds) check(ids int) {
	if l.err != nil {
		return
	}
	if l.Limit > 0 && ids > l.Limit {
		l.err = ErrTooMany
		return
	}
	if l.checks++; l.Stop != nil && l.checks%stopEvery == 1 {
		l.err = l.Stop()
	}
}

// Encode returns the ids of text. Broken UTF-8 is read as U+FFFD. Its error is
// errTooSlow, ErrTooMany or that of Stop.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	room := len(text)/4 + 2
	if o.Limit > 0 {
		room = min(room, o.Limit+2)
	}
	ids := make([]int32, 0, room)
	if o.AddSpecial {
		ids, err := t.encode(ids, text, o)
		if err != nil {
			return nil, err
		}
		ids, _ = fill(t.around.one, ids)
		return ids, nil
	}
	if o.AddBOS && t.special.AddBOS && t.special.BOS != None {
		ids = append(ids, t.special.BOS)
	}
	return t.encode(ids, text, o)
}

// EncodePair returns the ids of two texts with the model's special tokens, and
// the token type of each id.
func (t *Tokenizer) EncodePair(first, second string, o EncodeOptions) (ids, types []int32, err error) {
	a, err := t.encode(nil, first, o)
	if err != nil {
		return nil, nil, err
	}
	b, err := t.encode(nil, second, o)
	if err != nil {
		return nil, nil, err
	}
	ids, types = fill(t.around.two, a, b)
	return ids, types, nil
}

// Around adds the model's special tokens to one text or two, whose ids Encode
// returned without AddSpecial. It also returns the token type of each id. If
// that would be more than limit ids, texts are truncated at their ends as by
// the reference (longest_first), and cut is true.
func (t *Tokenizer) Around(limit int, texts ...[]int32) (ids, types []int32, cut bool) {
	texts, _, cut = t.Within(limit, texts...)
	ids, types = fill(t.around.parts(len(texts)), texts...)
	return ids, types, cut
}

// Within returns the texts as Around truncates them, and how many ids Around returns. They
// share memory with those given.
func (t *Tokenizer) Within(limit int, texts ...[]int32) (within [][]int32, ids int, cut bool) {
	special := 0
	for _, p := range t.around.parts(len(texts)) {
		if p.text == 0 {
			special++
		}
	}
	whole := total(texts)
	if room := limit - special; whole > room {
		texts, cut = shortened(max(0, room), texts), true
		whole = total(texts)
	}
	return texts, special + whole, cut
}

func total(texts [][]int32) (n int) {
	for _, x := range texts {
		n += len(x)
	}
	return n
}

// shortened truncates texts to at most room ids together. Of two, the longer
// one is truncated to what the other leaves, but not below the length of the
// other; then both to halves.
func shortened(room int, texts [][]int32) [][]int32 {
	if len(texts) == 1 {
		return [][]int32{texts[0][:room]}
	}
	short, long := len(texts[0]), len(texts[1])
	swapped := short > long
	if swapped {
		short, long = long, short
	}
	if short > room {
		long = short
	} else {
		long = max(short, room-short)
	}
	if short+long > room {
		short = room / 2
		long = short + room%2
	}
	if swapped {
		short, long = long, short
	}
	return [][]int32{texts[0][:short], texts[1][:long]}
}

// encode appends the ids of text alone.
func (t *Tokenizer) encode(ids []int32, text string, o EncodeOptions) ([]int32, error) {
	b, controls := &bounds{EncodeOptions: o}, o.ParseSpecial
	e := encoding{t: t, worker: t.model.newWorker(controls, b), bounds: b, ids: ids, controls: controls, budget: newBudget(len(text))}
	if o.Excess != nil {
		e.budget.left -= *o.Excess
		defer func() { *o.Excess = max(*o.Excess, e.budget.excess()) }()
	}
	e.budget.stoppable(o.Stop)
	text = validUTF8(text)
	t.added.scan(text, controls, parts{plain: func(from, to int) { e.plain(text[from:to], from == 0) }, token: e.token, more: e.more})
	err := cmp.Or(e.budget.stopped, e.err, b.err)
	switch {
	case o.Cut && err == ErrTooMany:
		return e.ids[:o.Limit], nil
	case err != nil:
		return nil, err
	}
	return e.ids, nil
}

// encoding is one text on its way to ids.
type encoding struct {
	t        *Tokenizer
	worker   worker
	bounds   *bounds
	ids      []int32
	controls bool
	budget   *budget
	err      error
}

// plain takes what lies between added tokens.
func (e *encoding) plain(text string, first bool) {
	s := span{text: text}
	if first {
		_, s.head = utf8.DecodeRuneInString(text)
	}
	if n := e.t.normalize; n != nil && e.err == nil {
		if s, e.err = n.span(e.budget, s); e.err != nil {
			return
		}
	}
	e.t.normalized.scan(s.text, e.controls, parts{plain: func(from, to int) { e.cut(s.part(from, to)) }, token: e.token, more: e.more})
}

// more takes work from the budget; it reports whether the encoding continues.
func (e *encoding) more(work int) bool {
	if e.err == nil && !e.budget.spend(work) {
		e.err = errTooSlow
	}
	return e.err == nil && e.bounds.err == nil
}

func (e *encoding) token(id int32) {
	if e.bounds.err == nil {
		e.ids = append(e.ids, id)
		e.bounds.check(len(e.ids))
	}
}

// cut gives the pieces of a span to the model.
func (e *encoding) cut(s span) {
	if e.err != nil || e.bounds.err != nil {
		return
	}
	piece := func(s span) {
		if e.bounds.err == nil {
			e.ids = e.worker.encode(e.ids, s.text)
			e.bounds.check(len(e.ids))
		}
	}
	if e.t.cut == nil {
		piece(s)
		return
	}
	e.err = e.t.cut(e.budget, s, piece)
}

// Decode returns the text of ids. With skipSpecial control tokens are left
// out. Bytes that are no character become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) (string, error) {
	var b strings.Builder
	if err := t.decodeTo(ids, skipSpecial, func(s string) { b.WriteString(s) }); err != nil {
		return "", err
	}
	return b.String(), nil
}

// DecodedBytes returns how many bytes the text of ids has, without making it.
func (t *Tokenizer) DecodedBytes(ids []int32, skipSpecial bool) (n int, err error) {
	err = t.decodeTo(ids, skipSpecial, func(s string) { n += len(s) })
	return n, err
}

// DecodeOf is Decode of a text of n bytes, which it makes room for at once.
func (t *Tokenizer) DecodeOf(n int, ids []int32, skipSpecial bool) (string, error) {
	var b strings.Builder
	b.Grow(n)
	err := t.decodeTo(ids, skipSpecial, func(s string) { b.WriteString(s) })
	return b.String(), err
}

func (t *Tokenizer) decodeTo(ids []int32, skipSpecial bool, out func(string)) error {
	d := t.NewDecoder(skipSpecial)
	for _, id := range ids {
		if err := d.push(id, out); err != nil {
			return err
		}
	}
	d.flush(out)
	return nil
}

// shown is the text of a token as decoders take it; ok is false where the
// token is left out.
func (t *Tokenizer) shown(id int32, skipSpecial bool) (text string, ok bool, err error) {
	if id < 0 || int(id) >= t.vocab.size() {
		return "", false, fmt.Errorf("token %d of %d: %w", id, t.vocab.size(), ErrUnknownToken)
	}
	if k := t.vocab.kinds[id]; k == kindHole || skipSpecial && k.control() {
		return "", false, nil
	}
	if text, ok := t.instead[id]; ok {
		return text, true, nil
	}
	return t.vocab.text(id), true, nil
}

// Size is the number of ids.
func (t *Tokenizer) Size() int { return t.vocab.size() }

// Special returns the special tokens.
func (t *Tokenizer) Special() SpecialTokens { return t.special }

// Bytes returns the bytes that a token produces after other tokens, which need
// not be whole characters; nil for an unknown id. The caller must not modify
// them.
func (t *Tokenizer) Bytes(id int32) []byte {
	text, _, err := t.shown(id, false)
	if err != nil {
		return nil
	}
	if t.raw {
		return []byte(text)
	}
	for _, stands := range t.decode.stands {
		text = stands(text)
	}
	return []byte(text)
}

// IsControl says whether a token steers the model and shows no text.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < t.vocab.size() && t.vocab.kinds[id].control()
}

// ID returns the token with this text: an added token as written, any other in
// the notation of the vocabulary, which for byte-level BPE are its bytes.
func (t *Tokenizer) ID(text string) (int32, bool) {
	if id, ok := t.added.id(text); ok {
		return id, true
	}
	if id, ok := t.normalized.id(text); ok {
		return id, true
	}
	id := t.vocab.lookup(text)
	return id, id != None
}
