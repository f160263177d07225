package tokenizer

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// kind is what a token is for, numbered as in GGUF.
type kind uint8

const (
	kindNormal      kind = 1
	kindUnknown     kind = 2
	kindControl     kind = 3
	kindUserDefined kind = 4
	kindUnused      kind = 5
	kindByte        kind = 6
	kindHole        kind = 7 // an id between others that has no token
)

// control tokens show no text.
func (k kind) control() bool { return k == kindControl || k == kindUnknown }

// added tokens are found in the text itself, before it is split.
func (k kind) added() bool { return k.control() || k == kindUserDefined }

// vocabulary holds the bytes of all tokens in one block, and finds tokens by
// their bytes. 49,152 tokens cost about 1.2 MB.
type vocabulary struct {
	blob    strings.Builder
	offsets []uint32 // size+1
	kinds   []kind
	slots   []int32 // open addressing; id+1, 0 is free
	seed    maphash.Seed
	hidden  []bool // tokens that cannot be found by their text
	most    int    // bytes of all tokens
}

// maxVocabulary bounds the number of tokens, maxTokenBytes the bytes of one, which
// is copied whenever it is shown. All of them have fewVocabularyBytes and bytesPerToken for
// each at most, so that hostile metadata costs no more memory than a model's tokens promise.
// In tokenizer.json those of Gemma 3, Qwen3, Llama 3, DeepSeek-V3, GPT-4o, Mistral Nemo and
// Command R+ have 8 to 11 bytes each, and the longest 1,024.
const (
	maxVocabulary      = 1 << 20
	maxTokenBytes      = 1 << 14
	fewVocabularyBytes = 1 << 20
	bytesPerToken      = 32
)

func newVocabulary(size int) *vocabulary {
	slots := 16
	for slots < size*2 {
		slots *= 2
	}
	return &vocabulary{most: fewVocabularyBytes + bytesPerToken*size, offsets: make([]uint32, 1, size+1), kinds: make([]kind, 0, size), hidden: make([]bool, 0, size), slots: make([]int32, slots), seed: maphash.MakeSeed()}
}

// add appends a token. A searchable token that no lower id stands for already
// will be found by its bytes.
func (v *vocabulary) add(text string, k kind, searchable bool) error {
	id := v.size()
	if len(text) > maxTokenBytes {
		return fmt.Errorf("token %d has %d bytes, more than %d: %w", id, len(text), maxTokenBytes, ErrInvalid)
	}
	if v.blob.Len()+len(text) > v.most {
		return fmt.Errorf("the tokens up to %d have more than %d bytes in total: %w", id, v.most, ErrInvalid)
	}
	v.blob.WriteString(text)
	v.offsets = append(v.offsets, uint32(v.blob.Len()))
	v.kinds = append(v.kinds, k)
	v.hidden = append(v.hidden, !searchable)
	if !searchable || len(text) == 0 {
		return nil
	}
	if at, found := v.slot(text); !found {
		v.slots[at] = int32(id) + 1
	}
	return nil
}

// searchable says whether a token can be found by its text.
func (v *vocabulary) searchable(id int32) bool { return !v.hidden[id] }

func (v *vocabulary) size() int { return len(v.offsets) - 1 }

// text is the text of a token; it stays in the vocabulary's block.
func (v *vocabulary) text(id int32) string {
	return v.blob.String()[v.offsets[id]:v.offsets[id+1]]
}

// lookup finds a token by its text; None where there is no such token.
func (v *vocabulary) lookup(text string) int32 {
	at, _ := v.slot(text)
	return v.slots[at] - 1
}

// slot is the index of text, or of the free entry for it. The table is never
// full.
func (v *vocabulary) slot(text string) (at uint64, found bool) {
	mask := uint64(len(v.slots) - 1)
	for at = maphash.String(v.seed, text) & mask; v.slots[at] != 0; at = (at + 1) & mask {
		if v.text(v.slots[at]-1) == text {
			return at, true
		}
	}
	return at, false
}
