package tokenizer

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// build makes the tokenizer that a tokenizer.json describes.
func (d *definition) build(r roles) (*Tokenizer, error) {
	t := &Tokenizer{added: newAddedTokens(), normalized: newAddedTokens(), instead: map[int32]string{}}
	var err error
	if t.decode, err = readDecoder(d.decode); err != nil {
		return nil, err
	}
	p := preTokenizing{c: newCategories()}
	if t.normalize, p.bytes, err = readNormalizer(d.normalizer, p.c); err != nil {
		return nil, err
	}
	p.written = p.bytes
	if err := readPreTokenizer(d.preTokenizer, &p); err != nil {
		return nil, err
	}
	kind, err := d.model.kindOf()
	if err != nil {
		return nil, err
	}
	t.raw = p.bytes && kind == "BPE" && d.decodesBytes()
	t.cut = p.cutter(t.raw)
	if t.raw {
		t.decode = bytesAsText()
	}
	if err := d.tokens(t, r); err != nil {
		return nil, err
	}
	if t.model, err = modelKinds()[kind](&d.model, t); err != nil {
		return nil, err
	}
	if t.special, err = r.special(t); err != nil {
		return nil, err
	}
	return t, d.surround(t)
}

// modelKinds are the models that are known.
func modelKinds() map[string]func(*modelDefinition, *Tokenizer) (model, error) {
	return map[string]func(*modelDefinition, *Tokenizer) (model, error){
		"BPE": (*modelDefinition).bpe, "Unigram": (*modelDefinition).unigram, "WordPiece": (*modelDefinition).wordPiece,
	}
}

func (m *modelDefinition) kindOf() (string, error) {
	kind := m.kind
	if kind == "" { // older files leave it out
		switch {
		case m.hasMerges:
			kind = "BPE"
		case m.scored:
			kind = "Unigram"
		case m.prefix != nil:
			kind = "WordPiece"
		}
	}
	if _, ok := modelKinds()[kind]; !ok {
		return "", unsupported("model", kind, modelKinds())
	}
	if m.vocab == nil {
		return "", fmt.Errorf("the model has no vocab: %w", ErrInvalid)
	}
	return kind, nil
}

func (m *modelDefinition) bpe(t *Tokenizer) (model, error) {
	if m.scored {
		return nil, fmt.Errorf("the vocab of a BPE model must not be a list: %w", ErrInvalid)
	}
	if m.dropout != nil && *m.dropout != 0 {
		return nil, fmt.Errorf("BPE with dropout %v is not deterministic; set it to null: %w", *m.dropout, ErrUnsupported)
	}
	o := bpeOptions{raw: t.raw, whole: isTrue(m.whole), prefix: text(m.prefix), suffix: text(m.suffix), unknown: None, fuse: isTrue(m.fuseUnk), byteTokens: isTrue(m.fallback)}
	if m.unkToken != nil {
		if o.unknown = t.vocab.lookup(t.key(*m.unkToken)); o.unknown == None {
			return nil, fmt.Errorf("unk_token %.80q is not in the vocab: %w", *m.unkToken, ErrInvalid)
		}
	}
	return newBPE(t.vocab, m.merges, o)
}

func (m *modelDefinition) unigram(t *Tokenizer) (model, error) {
	if !m.scored {
		return nil, fmt.Errorf("the vocab of a Unigram model must be a list: %w", ErrInvalid)
	}
	if m.unkID == nil {
		return nil, fmt.Errorf("a Unigram model without unk_id cannot encode every text: %w", ErrUnsupported)
	}
	if *m.unkID < 0 || *m.unkID >= int64(len(m.vocab)) {
		return nil, fmt.Errorf("unk_id is %d, but the vocab has %d tokens: %w", *m.unkID, len(m.vocab), ErrInvalid)
	}
	scores := make([]float64, t.vocab.size())
	for _, e := range m.vocab {
		if math.IsNaN(e.score) || math.IsInf(e.score, 0) {
			return nil, fmt.Errorf("the score of token %d is not finite: %w", e.id, ErrInvalid)
		}
		scores[e.id] = e.score
	}
	return newUnigram(t.vocab, scores[:len(m.vocab)], int32(*m.unkID), isTrue(m.fallback))
}

// maxWordChars bounds max_input_chars_per_word.
const maxWordChars = 1 << 16

func (m *modelDefinition) wordPiece(t *Tokenizer) (model, error) {
	if m.scored {
		return nil, fmt.Errorf("the vocab of a WordPiece model must not be a list: %w", ErrInvalid)
	}
	unknown, prefix, most := "[UNK]", "##", int64(100)
	if m.unkToken != nil {
		unknown = *m.unkToken
	}
	if m.prefix != nil {
		prefix = *m.prefix
	}
	if m.maxPerWord != nil {
		most = *m.maxPerWord
	}
	if most < 0 || most > maxWordChars {
		return nil, fmt.Errorf("max_input_chars_per_word is %d, want 0 to %d: %w", most, maxWordChars, ErrUnsupported)
	}
	id := t.vocab.lookup(unknown)
	if id == None {
		return nil, fmt.Errorf("unk_token %.80q is not in the vocab: %w", unknown, ErrInvalid)
	}
	return newWordPiece(t.vocab, id, prefix, int(most))
}

func isTrue(b *bool) bool { return b != nil && *b }

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// key is a token's text as the vocabulary holds it.
func (t *Tokenizer) key(text string) string {
	if t.raw {
		return standsInAlphabet(text)
	}
	return text
}

// tokens fills the vocabulary and finds the ids of added tokens, as the
// reference does: an added token that is in the model has its id there, any
// other gets an id after all others.
func (d *definition) tokens(t *Tokenizer, r roles) error {
	entries := slices.SortedStableFunc(slices.Values(d.model.vocab), func(a, b vocabEntry) int { return cmp.Compare(a.id, b.id) })
	for i := 1; i < len(entries); i++ {
		if entries[i].id == entries[i-1].id {
			return fmt.Errorf("tokens %.80q and %.80q have the same id %d: %w", entries[i-1].text, entries[i].text, entries[i].id, ErrInvalid)
		}
	}
	ids := make(map[string]int32, len(entries))
	for _, e := range entries {
		ids[e.text] = e.id
	}
	added, err := d.addedTokens(r, ids)
	if err != nil {
		return err
	}
	next, work := int32(len(entries)), newBudget(maxAddedNodes)
	work.most = newBudget(maxAddedBytes).most
	kinds := map[int32]addedDefinition{}
	for _, a := range added {
		id, known := ids[a.Content]
		if !known {
			id = next
			next++
			ids[a.Content] = id
			entries = append(entries, vocabEntry{text: a.Content, id: id, score: notInModel})
		}
		if int64(id) != a.ID {
			return fmt.Errorf("added token %.80q has id %d in the file but would get %d: %w", a.Content, a.ID, id, ErrInvalid)
		}
		kinds[id] = a
		if err := t.addToken(a, id, work); err != nil {
			return err
		}
	}
	return t.fill(entries, kinds)
}

// notInModel marks the entries that only added tokens have.
const notInModel = 1e300

// addedTokens joins what tokenizer.json and tokenizer_config.json add, and
// makes special what has the role of a special token. ids are the model's.
func (d *definition) addedTokens(r roles, ids map[string]int32) ([]addedDefinition, error) {
	known := map[string]bool{}
	out := slices.Clone(d.added)
	named := []string{r.bos, r.eos, r.pad, r.unk}
	for i, a := range out {
		known[a.Content] = true
		out[i].Special = a.Special || slices.Contains(named, a.Content)
	}
	if len(r.added) > maxAdded {
		return nil, fmt.Errorf("added_tokens_decoder has over %d entries: %w", maxAdded, ErrInvalid)
	}
	for _, id := range slices.Sorted(maps.Keys(r.added)) {
		if a := r.added[id]; !known[a.Content] {
			a.ID = id
			out = append(out, a)
			known[a.Content] = true
		}
	}
	for _, name := range named {
		if id, ok := ids[name]; ok && !known[name] {
			out = append(out, addedDefinition{ID: int64(id), Content: name, Special: true})
			known[name] = true
		}
	}
	return slices.DeleteFunc(out, func(a addedDefinition) bool { return a.Content == "" }), nil
}

// addToken makes an added token known to the search in texts. work is the budget
// of the normalizer for all of them.
func (t *Tokenizer) addToken(a addedDefinition, id int32, work *budget) error {
	rules := addedRules{control: a.Special, word: a.SingleWord, left: a.LStrip, right: a.RStrip}
	if !a.Normalized {
		return t.added.add(a.Content, id, rules)
	}
	if len(a.Content) > maxAddedBytes {
		return addedTooLong(id, len(a.Content))
	}
	text, err := t.normalize.text(work, a.Content)
	if err != nil {
		return err
	}
	if text != a.Content {
		t.instead[id] = t.key(text)
	}
	return t.normalized.add(text, id, rules)
}

// fill builds the vocabulary from entries in order of their ids.
func (t *Tokenizer) fill(entries []vocabEntry, added map[int32]addedDefinition) error {
	slices.SortStableFunc(entries, func(a, b vocabEntry) int { return cmp.Compare(a.id, b.id) })
	size := 0
	if n := len(entries); n > 0 {
		size = int(entries[n-1].id) + 1
	}
	if size > maxVocabulary {
		return fmt.Errorf("the vocabulary has ids up to %d, more than %d: %w", size-1, maxVocabulary, ErrInvalid)
	}
	t.vocab = newVocabulary(size)
	for _, e := range entries {
		for t.vocab.size() < int(e.id) {
			if err := t.vocab.add("", kindHole, false); err != nil {
				return err
			}
		}
		k := kindNormal
		if a, ok := added[e.id]; ok {
			if k = kindUserDefined; a.Special {
				k = kindControl
			}
		}
		searchable := e.score != notInModel
		if t.raw {
			_, inAlphabet := appendAlphabet(nil, e.text)
			searchable = searchable && inAlphabet
		}
		if err := t.vocab.add(t.key(e.text), k, searchable); err != nil {
			return err
		}
	}
	return nil
}

// decodesBytes says whether the decoder is ByteLevel alone.
func (d *definition) decodesBytes() bool {
	steps, err := flatten(d.decode, "decoder", "decoders")
	return err == nil && len(steps) == 1 && steps[0].kind == "ByteLevel"
}

// surround finds out what stands around texts: what the post-processor says, as
// in transformers 5.23 (tokenization_utils_base.py), which drops add_bos_token and
// add_eos_token of tokenizer_config.json where there is a tokenizer.json. Folders
// of Qwen3-Embedding have both, and only the post-processor adds their end.
func (d *definition) surround(t *Tokenizer) error {
	if d.postProcessor == nil {
		t.around = aroundBOS(t.special)
		return nil
	}
	around, err := readTemplates(d.postProcessor, t.Size())
	if err != nil {
		return err
	}
	t.around = around
	first, last := around.one[0], around.one[len(around.one)-1]
	t.special.AddBOS = first.text == 0 && first.id == t.special.BOS
	t.special.AddEOS = last.text == 0 && last.id == t.special.EOS
	return nil
}
