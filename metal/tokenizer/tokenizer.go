// Package tokenizer turns text into token ids and back.
//
// It owns vocabularies, the split of text into pieces, byte-level BPE, added
// and special tokens, and the decoder for streams, which never shows half a
// character. It reads GGUF metadata; other sources and other algorithms build
// the same Tokenizer. It refuses a vocabulary that contradicts itself and a
// pre-tokenizer that it does not know, by name. It knows nothing of files,
// models or chat templates.
//
// The reference is Hugging Face's tokenizers: ids are equal to its ids, which
// includes what looks odd (a byte that has no token is dropped).
//
// Start reading at FromGGUF and Tokenizer.Encode.
package tokenizer

import (
	"errors"
	"fmt"
	"slices"
)

// ErrUnsupported is returned for a tokenizer of a kind that is not built.
var ErrUnsupported = errors.New("unsupported tokenizer")

// ErrInvalid is returned for a tokenizer that contradicts itself.
var ErrInvalid = errors.New("invalid tokenizer")

// ErrUnknownToken is returned for an id that the vocabulary does not have.
var ErrUnknownToken = errors.New("unknown token")

// None is the id of a special token that the model does not have.
const None int32 = -1

// Tokenizer is one model's tokenizer. It does not change and may be used by
// many goroutines at once.
type Tokenizer struct {
	vocab     *vocabulary
	model     model
	split     splitter
	normalize func(string) string // nil where text is taken as it is
	added     *addedTokens
	special   SpecialTokens
}

// model turns one piece of text into ids.
type model interface {
	// newWorker returns a worker for one goroutine; it keeps scratch memory
	// between pieces.
	newWorker() worker
}

type worker interface {
	// encode appends the ids of piece.
	encode(ids []int32, piece string) []int32
}

// splitter cuts text into pieces that no token crosses, in order, leaving
// nothing out.
type splitter func(text string, piece func(string))

// SpecialTokens are the roles that some ids have; None where the model names
// no such token.
type SpecialTokens struct {
	BOS, EOS, EOT, EOM, Unknown, Padding int32
	// AddBOS says that a plain prompt begins with BOS. Chat templates write
	// their own.
	AddBOS bool
	// AddEOS says that a plain text to embed ends with EOS.
	AddEOS bool
}

// Ends returns the ids that end a generation, without repeats.
func (s SpecialTokens) Ends() []int32 {
	var ids []int32
	for _, id := range []int32{s.EOS, s.EOT, s.EOM} {
		if id != None && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// EncodeOptions say how text is read. The zero value reads plain text.
type EncodeOptions struct {
	// AddBOS puts BOS in front where the model wants it.
	AddBOS bool
	// ParseSpecial reads the text of control tokens as these tokens: needed
	// for what a chat template wrote.
	ParseSpecial bool
}

// Encode returns the ids of text. Broken UTF-8 is read as U+FFFD.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	text = validUTF8(text)
	ids := make([]int32, 0, len(text)/4+2)
	if o.AddBOS && t.special.AddBOS && t.special.BOS != None {
		ids = append(ids, t.special.BOS)
	}
	w := t.model.newWorker()
	plain := func(s string) {
		if t.normalize != nil {
			s = t.normalize(s)
		}
		t.split(s, func(piece string) { ids = w.encode(ids, piece) })
	}
	t.added.scan(text, o.ParseSpecial, plain, func(id int32) { ids = append(ids, id) })
	return ids
}

// Decode returns the text of ids. With skipSpecial control tokens are left
// out. Bytes that are no character become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) (string, error) {
	var raw []byte
	for _, id := range ids {
		b, err := t.bytes(id, skipSpecial)
		if err != nil {
			return "", err
		}
		raw = append(raw, b...)
	}
	return validUTF8(string(raw)), nil
}

func (t *Tokenizer) bytes(id int32, skipSpecial bool) ([]byte, error) {
	if id < 0 || int(id) >= t.vocab.size() {
		return nil, fmt.Errorf("token %d of %d: %w", id, t.vocab.size(), ErrUnknownToken)
	}
	if skipSpecial && t.vocab.kinds[id].control() {
		return nil, nil
	}
	return t.vocab.bytes(id), nil
}

// Size is the number of ids.
func (t *Tokenizer) Size() int { return t.vocab.size() }

// Special returns the special tokens.
func (t *Tokenizer) Special() SpecialTokens { return t.special }

// Bytes returns the bytes that a token stands for, which need not be whole
// characters; nil for an unknown id. The caller must not change them.
func (t *Tokenizer) Bytes(id int32) []byte {
	b, err := t.bytes(id, false)
	if err != nil {
		return nil
	}
	return b
}

// IsControl says whether a token steers the model and shows no text.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < t.vocab.size() && t.vocab.kinds[id].control()
}

// ID finds the token that stands for exactly these bytes.
func (t *Tokenizer) ID(text string) (int32, bool) {
	if id, ok := t.added.id(text); ok {
		return id, true
	}
	return t.vocab.find([]byte(text))
}
