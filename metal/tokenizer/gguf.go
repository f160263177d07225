package tokenizer

import (
	"fmt"
	"math"
	"slices"
)

// Metadata keys of GGUF.
const (
	keyModel     = "tokenizer.ggml.model"
	keyPre       = "tokenizer.ggml.pre"
	keyTokens    = "tokenizer.ggml.tokens"
	keyTokenType = "tokenizer.ggml.token_type"
	keyMerges    = "tokenizer.ggml.merges"
)

// preTokenizer is how one family reads text before BPE.
type preTokenizer struct {
	name  string
	split splitter
	nfc   bool // composes the text first
	whole bool // takes a piece that is a token as that token
}

// preTokenizers lists what is known, in order of names.
func preTokenizers() []preTokenizer {
	return []preTokenizer{
		{name: "gpt-2", split: splitGPT2},
		{name: "llama-bpe", split: splitLlama3, whole: true},
		{name: "qwen2", split: splitQwen2, nfc: true},
		{name: "smollm", split: splitDigitsGPT2},
	}
}

// FromGGUF builds the tokenizer that a GGUF file describes. Its error is
// ErrUnsupported, naming what is supported, or ErrInvalid.
func FromGGUF(metadata map[string]any) (*Tokenizer, error) {
	m := ggufMetadata{metadata}
	pre, err := m.preTokenizer()
	if err != nil {
		return nil, err
	}
	tokens, err := m.strings(keyTokens, maxVocabulary)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s is empty: %w", keyTokens, ErrInvalid)
	}
	kinds, err := m.kinds(len(tokens))
	if err != nil {
		return nil, err
	}
	merges, err := m.strings(keyMerges, maxVocabulary)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{cut: scanning(pre.split), raw: true, normalized: newAddedTokens(), decode: bytesAsText()}
	if pre.nfc {
		t.normalize = normalizer{pure(newNFC().String)}
	}
	if t.special, err = m.special(len(tokens)); err != nil {
		return nil, err
	}
	if t.vocab, t.added, err = byteLevelVocabulary(tokens, kinds); err != nil {
		return nil, err
	}
	pairs := make([][2]string, len(merges))
	for i, text := range merges {
		left, right, ok := cutMerge(text)
		if !ok {
			return nil, fmt.Errorf("merge %d is %.80q, want two tokens and a space: %w", i, text, ErrInvalid)
		}
		pairs[i] = [2]string{left, right}
	}
	if t.model, err = newBPE(t.vocab, pairs, bpeOptions{raw: true, whole: pre.whole, unknown: None}); err != nil {
		return nil, err
	}
	t.around = aroundBOS(t.special)
	return t, nil
}

// byteLevelVocabulary undoes the byte alphabet. The text of added tokens is
// taken as it is and found in texts, not by BPE.
func byteLevelVocabulary(tokens []string, kinds []kind) (*vocabulary, *addedTokens, error) {
	v, added := newVocabulary(len(tokens)), newAddedTokens()
	var raw []byte
	for id, text := range tokens {
		k := kinds[id]
		searchable := false
		raw = append(raw[:0], text...)
		switch {
		case k.added():
			if err := added.add(text, int32(id), addedRules{control: k.control()}); err != nil {
				return nil, nil, err
			}
			raw = append(raw[:0], standsInAlphabet(text)...)
		default:
			if b, ok := appendAlphabet(raw[:0], text); ok {
				raw, searchable = b, true
			} else {
				raw = append(raw[:0], text...)
			}
		}
		if err := v.add(raw, k, searchable); err != nil {
			return nil, nil, err
		}
	}
	return v, added, nil
}

type ggufMetadata struct {
	m map[string]any
}

func (m ggufMetadata) preTokenizer() (preTokenizer, error) {
	if name, ok := m.m[keyModel].(string); !ok || name != "gpt2" {
		return preTokenizer{}, fmt.Errorf("%s is %s, supported is gpt2 (byte-level BPE): %w", keyModel, m.describe(keyModel), ErrUnsupported)
	}
	known := preTokenizers()
	var names []string
	for _, p := range known {
		if m.m[keyPre] == p.name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return preTokenizer{}, fmt.Errorf("%s is %s, supported are %q: %w", keyPre, m.describe(keyPre), names, ErrUnsupported)
}

func (m ggufMetadata) describe(key string) string {
	switch v := m.m[key].(type) {
	case nil:
		return "absent"
	case string:
		return fmt.Sprintf("%.80q", v)
	default:
		return fmt.Sprintf("a %T", v)
	}
}

func (m ggufMetadata) strings(key string, most int) ([]string, error) {
	v, ok := m.m[key].([]string)
	if !ok {
		return nil, fmt.Errorf("%s is %s, want a list of strings: %w", key, m.describe(key), ErrInvalid)
	}
	if len(v) > most {
		return nil, fmt.Errorf("%s has %d entries, more than %d: %w", key, len(v), most, ErrInvalid)
	}
	return v, nil
}

func (m ggufMetadata) kinds(n int) ([]kind, error) {
	list, ok := m.m[keyTokenType].([]int32)
	if !ok {
		return nil, fmt.Errorf("%s is %s, want a list of 32-bit integers: %w", keyTokenType, m.describe(keyTokenType), ErrInvalid)
	}
	if len(list) != n {
		return nil, fmt.Errorf("%s has %d entries for %d tokens: %w", keyTokenType, len(list), n, ErrInvalid)
	}
	kinds := make([]kind, n)
	for id, v := range list {
		if v < int32(kindNormal) || v > int32(kindByte) {
			return nil, fmt.Errorf("%s of token %d is %d, want 1 to 6: %w", keyTokenType, id, v, ErrInvalid)
		}
		if kind(v) == kindByte {
			return nil, fmt.Errorf("token %d is a byte token, which byte-level BPE does not have: %w", id, ErrInvalid)
		}
		kinds[id] = kind(v)
	}
	return kinds, nil
}

func (m ggufMetadata) special(size int) (SpecialTokens, error) {
	var s SpecialTokens
	ids := []*int32{&s.BOS, &s.EOS, &s.EOT, &s.EOM, &s.Unknown, &s.Padding}
	for i, name := range []string{"bos", "eos", "eot", "eom", "unknown", "padding"} {
		id, err := m.tokenID("tokenizer.ggml."+name+"_token_id", size)
		if err != nil {
			return s, err
		}
		*ids[i] = id
	}
	var err error
	if s.AddBOS, err = m.flag("tokenizer.ggml.add_bos_token"); err != nil {
		return s, err
	}
	if s.AddEOS, err = m.flag("tokenizer.ggml.add_eos_token"); err != nil {
		return s, err
	}
	if s.AddBOS && s.BOS == None {
		return s, fmt.Errorf("tokenizer.ggml.add_bos_token is true without a bos token: %w", ErrInvalid)
	}
	return s, nil
}

// flag reads an optional truth value.
func (m ggufMetadata) flag(key string) (bool, error) {
	v, present := m.m[key]
	b, ok := v.(bool)
	if present && !ok {
		return false, fmt.Errorf("%s is %s, want true or false: %w", key, m.describe(key), ErrInvalid)
	}
	return b, nil
}

func (m ggufMetadata) tokenID(key string, size int) (int32, error) {
	v, present := m.m[key]
	if !present {
		return None, nil
	}
	var id uint64 = math.MaxUint64
	switch n := v.(type) {
	case uint64:
		id = n
	case int64:
		if n >= 0 {
			id = uint64(n)
		}
	}
	if id >= uint64(size) {
		return None, fmt.Errorf("%s is %v, want the id of one of %d tokens: %w", key, v, size, ErrInvalid)
	}
	return int32(id), nil
}

// SupportedPreTokenizers names the pre-tokenizers that FromGGUF takes.
func SupportedPreTokenizers() []string {
	var names []string
	for _, p := range preTokenizers() {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}
