package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Metadata keys of GGUF.
const (
	keyModel       = "tokenizer.ggml.model"
	keyPre         = "tokenizer.ggml.pre"
	keyTokens      = "tokenizer.ggml.tokens"
	keyTokenType   = "tokenizer.ggml.token_type"
	keyMerges      = "tokenizer.ggml.merges"
	keyScores      = "tokenizer.ggml.scores"
	keyCharsMap    = "tokenizer.ggml.precompiled_charsmap"
	keySpacePrefix = "tokenizer.ggml.add_space_prefix"
	keyExtraSpaces = "tokenizer.ggml.remove_extra_whitespaces"
)

// ggufModels lists the algorithms that are known by the names GGUF has for
// them.
func ggufModels() map[string]func(*ggufReader) error {
	return map[string]func(*ggufReader) error{
		"gpt2":   (*ggufReader).byteLevel,
		"llama":  (*ggufReader).sentencePiece,
		"gemma4": (*ggufReader).gemma4,
		"bert":   (*ggufReader).bert,
		"t5":     (*ggufReader).unigram,
	}
}

// FromGGUF builds the tokenizer that a GGUF file describes. Its error is
// ErrUnsupported, naming what is supported, or ErrInvalid.
func FromGGUF(metadata map[string]any) (*Tokenizer, error) {
	return FromModelMetadata(metadata, maxVocabulary)
}

// FromModelMetadata is FromGGUF for a model of this many tokens, as FromModel is FromFolder.
func FromModelMetadata(metadata map[string]any, tokens int) (*Tokenizer, error) {
	r := &ggufReader{ggufMetadata: ggufMetadata{metadata, limitsFor(tokens)}, t: &Tokenizer{added: newAddedTokens(), normalized: newAddedTokens()}}
	known := ggufModels()
	name, _ := metadata[keyModel].(string)
	read, ok := known[name]
	if !ok {
		return nil, fmt.Errorf("%s is %s: %w", keyModel, r.describe(keyModel), unsupported("model", name, known))
	}
	var err error
	if r.tokens, err = r.strings(keyTokens, r.most.tokens); err != nil {
		return nil, err
	}
	if len(r.tokens) == 0 {
		return nil, fmt.Errorf("%s is empty: %w", keyTokens, ErrInvalid)
	}
	if r.kinds, err = r.readKinds(len(r.tokens)); err != nil {
		return nil, err
	}
	if r.t.special, err = r.special(len(r.tokens)); err != nil {
		return nil, err
	}
	if err := read(r); err != nil {
		return nil, err
	}
	if r.t.around.one == nil {
		r.t.around = aroundBOS(r.t.special)
	}
	return r.t, nil
}

// ggufReader is a tokenizer in the making.
type ggufReader struct {
	ggufMetadata
	t      *Tokenizer
	tokens []string
	kinds  []kind
}

// byteLevel reads byte-level BPE.
func (r *ggufReader) byteLevel() error {
	p := preTokenizing{c: newCategories()}
	family, err := r.preTokenizer()
	if err != nil {
		return err
	}
	pairs, err := r.merges()
	if err != nil {
		return err
	}
	r.t.raw, r.t.decode = true, bytesAsText()
	if family.nfc {
		r.t.normalize = normalizer{newForms().nfc}
	}
	if err := family.build(&p); err != nil {
		return err
	}
	r.t.cut = p.cutter(true)
	if err := r.vocabulary(r.tokens); err != nil {
		return err
	}
	for id, k := range r.kinds {
		if k == kindByte {
			return fmt.Errorf("token %d is a byte token, which byte-level BPE does not support: %w", id, ErrInvalid)
		}
	}
	r.t.model, err = newBPE(r.t.vocab, pairs, bpeOptions{raw: true, whole: family.whole, unknown: None})
	return err
}

// sentencePiece reads BPE over characters whose merges follow from scores.
func (r *ggufReader) sentencePiece() error {
	prefix, err := r.flagOr(keySpacePrefix, true)
	if err != nil {
		return err
	}
	scores, err := r.scores()
	if err != nil {
		return err
	}
	if _, told := r.m["tokenizer.ggml.add_bos_token"]; !told && r.t.special.BOS != None {
		r.t.special.AddBOS = true // as other readers of GGUF do
	}
	r.spaced(prefix)
	if err := r.vocabulary(r.tokens); err != nil {
		return err
	}
	b, err := newBPE(r.t.vocab, nil, r.characters())
	if err != nil {
		return err
	}
	r.t.model = b
	return b.mergeByScore(scores, r.most.merges)
}

// gemma4 reads BPE over characters with merges.
func (r *ggufReader) gemma4() error {
	pairs, err := r.merges()
	if err != nil {
		return err
	}
	r.spaced(false)
	if err := r.vocabulary(r.tokens); err != nil {
		return err
	}
	r.t.model, err = newBPE(r.t.vocab, pairs, r.characters())
	return err
}

// characters are the options of BPE over characters.
func (r *ggufReader) characters() bpeOptions {
	return bpeOptions{unknown: r.unknown(), fuse: true, byteTokens: true}
}

// spaced writes spaces as marks, with one in front where prefix is true, and
// undoes that.
func (r *ggufReader) spaced(prefix bool) {
	const mark = "▁"
	r.t.decode = new(decoding)
	r.t.decode.replaceText(mark, " ")
	r.t.decode.bytesOf()
	r.t.decode.join()
	replace := pure(func(s string) string { return strings.ReplaceAll(s, " ", mark) })
	r.t.normalize = normalizer{replace}
	if prefix {
		r.t.normalize = normalizer{pure(func(s string) string { return mark + s }), replace}
		r.t.decode.add(func() stage { return &stripStage{content: " ", start: 1, left: 1} }, nil)
	}
}

// bert reads WordPiece. GGUF marks the starts of words where BERT marks what
// continues them.
func (r *ggufReader) bert() error {
	cls, err := r.tokenID("tokenizer.ggml.cls_token_id", len(r.tokens))
	if err != nil {
		return err
	}
	sep, err := r.tokenID("tokenizer.ggml.seperator_token_id", len(r.tokens))
	if err != nil {
		return err
	}
	texts := make([]string, len(r.tokens))
	for id, text := range r.tokens {
		switch rest, starts := strings.CutPrefix(text, "▁"); {
		case r.kinds[id].control():
			texts[id] = text
		case starts:
			texts[id] = rest
		default:
			texts[id] = "##" + text
		}
	}
	c := newCategories()
	n, err := (&normalizers{c: c}).bert(component{"BertNormalizer", []byte("{}")})
	if err != nil {
		return err
	}
	p := preTokenizing{c: c}
	if err := p.bert(component{}); err != nil {
		return err
	}
	r.t.normalize, r.t.cut, r.t.decode = normalizer{n}, p.cutter(false), new(decoding)
	if err := r.t.decode.wordPiece(component{"WordPiece", []byte("{}")}); err != nil {
		return err
	}
	if err := r.vocabulary(texts); err != nil {
		return err
	}
	if cls != None && sep != None {
		r.t.around = templates{}
		r.t.around.separate(cls, sep)
	}
	r.t.model, err = newWordPiece(r.t.vocab, r.unknown(), "##", 100)
	return err
}

// unigram reads a SentencePiece model of that kind, as transformers converts
// them.
func (r *ggufReader) unigram() error {
	scores, err := r.scores()
	if err != nil {
		return err
	}
	prefix, err := r.flagOr(keySpacePrefix, true)
	if err != nil {
		return err
	}
	extra, err := r.flagOr(keyExtraSpaces, true)
	if err != nil {
		return err
	}
	if raw, err := r.bytes(keyCharsMap); err != nil {
		return err
	} else if raw != nil {
		m, err := newCharsMap(raw)
		if err != nil {
			return err
		}
		r.t.normalize = normalizer{m.text}
	}
	if extra {
		r.t.normalize = append(r.t.normalize, pure(trimRight), pure(joinSpaces))
	}
	scheme := "always"
	if !prefix {
		scheme = "never"
	}
	meta := component{"Metaspace", fmt.Appendf(nil, `{"replacement":"▁","prepend_scheme":%q}`, scheme)}
	p := preTokenizing{c: newCategories()}
	if err := p.metaspace(meta); err != nil {
		return err
	}
	r.t.cut, r.t.decode = p.cutter(false), new(decoding)
	if err := r.t.decode.metaspace(meta); err != nil {
		return err
	}
	if err := r.vocabulary(r.tokens); err != nil {
		return err
	}
	wide := make([]float64, len(scores))
	for i, s := range scores {
		wide[i] = float64(s)
	}
	r.t.model, err = newUnigram(r.t.vocab, wide, r.unknown(), slices.Contains(r.kinds, kindByte))
	return err
}

// unknown is the token for what no other stands for.
func (r *ggufReader) unknown() int32 {
	if id := r.t.special.Unknown; id != None {
		return id
	}
	return int32(max(0, slices.Index(r.kinds, kindUnknown)))
}

// vocabulary takes the tokens, and finds in texts those that are added.
func (r *ggufReader) vocabulary(texts []string) error {
	r.t.vocab = newVocabulary(len(texts))
	for id, text := range texts {
		k := r.kinds[id]
		searchable := true
		if r.t.raw {
			_, inAlphabet := appendAlphabet(nil, text)
			searchable = inAlphabet && !k.added()
		}
		if k.added() {
			if err := r.t.added.add(text, int32(id), addedRules{control: k.control()}); err != nil {
				return err
			}
		}
		key := r.t.key(text)
		if !r.t.raw {
			key = validUTF8(key)
		}
		if err := r.t.vocab.add(key, k, searchable); err != nil {
			return err
		}
	}
	return nil
}

type ggufMetadata struct {
	m    map[string]any
	most limits
}

func (m ggufMetadata) preTokenizer() (preTokenizer, error) {
	var names []string
	for _, p := range preTokenizers() {
		if m.m[keyPre] == p.name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return preTokenizer{}, fmt.Errorf("%s is %s (supported: %q): %w", keyPre, m.describe(keyPre), names, ErrUnsupported)
}

// merges reads pairs of tokens.
func (m ggufMetadata) merges() ([][2]string, error) {
	merges, err := m.strings(keyMerges, m.most.merges)
	if err != nil {
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
	return pairs, nil
}

func (r *ggufReader) scores() ([]float32, error) {
	v, ok := r.m[keyScores].([]float32)
	if !ok || len(v) != len(r.tokens) {
		return nil, fmt.Errorf("%s is %s, want a list of %d floats: %w", keyScores, r.describe(keyScores), len(r.tokens), ErrInvalid)
	}
	for id, s := range v {
		if math.IsNaN(float64(s)) || math.IsInf(float64(s), 0) {
			return nil, fmt.Errorf("the score of token %d is not finite: %w", id, ErrInvalid)
		}
	}
	return v, nil
}

// bytes reads an optional list of bytes, which files write with and without
// signs.
func (m ggufMetadata) bytes(key string) ([]byte, error) {
	switch v := m.m[key].(type) {
	case nil:
		return nil, nil
	case []uint8:
		return v, nil
	case []int8:
		out := make([]byte, len(v))
		for i, b := range v {
			out[i] = byte(b)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s is %s, want a list of bytes: %w", key, m.describe(key), ErrInvalid)
}

func (m ggufMetadata) describe(key string) string {
	switch v := m.m[key].(type) {
	case nil:
		return "absent"
	case string:
		return fmt.Sprintf("%.80q", v)
	case uint64, int64:
		return fmt.Sprint(v)
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

func (m ggufMetadata) readKinds(n int) ([]kind, error) {
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

// flagOr reads a truth value that may be absent.
func (m ggufMetadata) flagOr(key string, absent bool) (bool, error) {
	if _, present := m.m[key]; !present {
		return absent, nil
	}
	return m.flag(key)
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
		return None, fmt.Errorf("%s is %s, want the id of one of %d tokens: %w", key, m.describe(key), size, ErrInvalid)
	}
	return int32(id), nil
}
