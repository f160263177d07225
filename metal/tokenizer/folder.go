package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/folder"
)

// maxConfigBytes bounds the small files next to tokenizer.json; one of them may
// contain chat templates.
const maxConfigBytes = 1 << 22

// FromFolder builds the tokenizer of a model's folder: tokenizer.json and the
// other files that name special tokens. Its error is ErrUnsupported, naming
// what is supported, ErrInvalid, or of metal/folder. Truncation and padding,
// which some tokenizer.json carry, are not applied.
func FromFolder(f *folder.Folder) (*Tokenizer, error) { return FromModel(f, maxVocabulary) }

// FromModel is FromFolder for a model of this many tokens: the memory for a tokenizer is promised
// by them, so that one of far more is ErrInvalid.
func FromModel(f *folder.Folder, tokens int) (*Tokenizer, error) {
	file, err := f.File("tokenizer.json")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d, err := readLimited(file, limitsFor(tokens))
	if err != nil {
		return nil, err
	}
	roles, err := readRoles(f)
	if err != nil {
		return nil, err
	}
	return d.build(roles)
}

// roles are the special tokens as the files next to tokenizer.json define them.
type roles struct {
	bos, eos, pad, unk string
	// ids of generation_config.json or config.json, the first that has any.
	ends         []int64
	bosID, padID *int64
	endsFrom     string
	bosFrom      string
	added        map[int64]addedDefinition // added_tokens_decoder
}

// tokenName reads "<s>" or {"content": "<s>"}.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	var s *string
	if json.Unmarshal(b, &s) != nil {
		var o struct {
			Content *string `json:"content"`
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		s = o.Content
	}
	*n = ""
	if s != nil {
		*n = tokenName(*s)
	}
	return nil
}

// idList reads 2, [2, 3] or null.
type idList []int64

const maxEnds = 256

func (l *idList) UnmarshalJSON(b []byte) error {
	var one *int64
	if err := json.Unmarshal(b, &one); err == nil {
		if *l = nil; one != nil {
			*l = idList{*one}
		}
		return nil
	}
	var many []int64
	if err := json.Unmarshal(b, &many); err != nil {
		return err
	}
	if len(many) > maxEnds {
		return fmt.Errorf("%d ids, more than %d", len(many), maxEnds)
	}
	*l = many
	return nil
}

// readRoles reads what is there; none of the files needs to be.
func readRoles(f *folder.Folder) (roles, error) {
	type names struct {
		BOS tokenName `json:"bos_token"`
		EOS tokenName `json:"eos_token"`
		Pad tokenName `json:"pad_token"`
		Unk tokenName `json:"unk_token"`
	}
	var r roles
	var c struct {
		names
		Added map[int64]addedDefinition `json:"added_tokens_decoder"`
	}
	if err := readConfig(f, "tokenizer_config.json", &c); err != nil {
		return r, err
	}
	var m names
	if err := readConfig(f, "special_tokens_map.json", &m); err != nil {
		return r, err
	}
	r.added = c.Added
	for _, n := range []struct {
		to   *string
		from []tokenName
	}{
		{&r.bos, []tokenName{c.BOS, m.BOS}}, {&r.eos, []tokenName{c.EOS, m.EOS}},
		{&r.pad, []tokenName{c.Pad, m.Pad}}, {&r.unk, []tokenName{c.Unk, m.Unk}},
	} {
		for _, name := range n.from {
			if *n.to == "" {
				*n.to = string(name)
			}
		}
	}
	for _, name := range []string{"generation_config.json", "config.json"} {
		var ids struct {
			idFields
			Text idFields `json:"text_config"`
		}
		if err := readConfig(f, name, &ids); err != nil {
			return r, err
		}
		r.take(ids.idFields, name)
		r.take(ids.Text, name)
	}
	return r, nil
}

type idFields struct {
	BOS idList `json:"bos_token_id"`
	EOS idList `json:"eos_token_id"`
	Pad idList `json:"pad_token_id"`
}

// take sets the ids that were not set before.
func (r *roles) take(ids idFields, from string) {
	if len(r.ends) == 0 {
		r.ends, r.endsFrom = ids.EOS, from
	}
	if r.bosID == nil && len(ids.BOS) > 0 {
		r.bosID, r.bosFrom = &ids.BOS[0], from
	}
	if r.padID == nil && len(ids.Pad) > 0 {
		r.padID = &ids.Pad[0]
	}
}

func readConfig(f *folder.Folder, name string, to any) error {
	err := f.JSON(name, maxConfigBytes, to)
	switch {
	case errors.Is(err, folder.ErrMissing):
		return nil
	case errors.Is(err, folder.ErrInvalid):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

// special finds the ids of the roles.
func (r roles) special(t *Tokenizer) (SpecialTokens, error) {
	s := SpecialTokens{BOS: None, EOS: None, EOT: None, EOM: None, Unknown: None, Padding: None}
	for _, n := range []struct {
		to   *int32
		name string
	}{{&s.BOS, r.bos}, {&s.EOS, r.eos}, {&s.Padding, r.pad}, {&s.Unknown, r.unk}} {
		if id, ok := t.ID(n.name); ok && n.name != "" {
			*n.to = id
		}
	}
	var err error
	if s.BOS == None && r.bosID != nil {
		if s.BOS, err = r.inside(*r.bosID, "bos_token_id", r.bosFrom, t); err != nil {
			return s, err
		}
	}
	if s.Padding == None && r.padID != nil && *r.padID >= 0 && *r.padID < int64(t.Size()) {
		s.Padding = int32(*r.padID)
	}
	for _, id := range r.ends {
		end, err := r.inside(id, "eos_token_id", r.endsFrom, t)
		if err != nil {
			return s, err
		}
		if s.EOS == None {
			s.EOS = end
		}
		if end != None {
			s.MoreEnds = append(s.MoreEnds, end)
		}
	}
	return s, nil
}

// inside checks an id; a negative one means none.
func (roles) inside(id int64, key, from string, t *Tokenizer) (int32, error) {
	if id < 0 {
		return None, nil
	}
	if id >= int64(t.Size()) {
		return None, fmt.Errorf("%s of %s is %d, but there are %d tokens: %w", key, from, id, t.Size(), ErrInvalid)
	}
	return int32(id), nil
}
