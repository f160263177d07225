package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// members are those of a configuration that concern conversations. Others take no memory once
// they are read, and of names of special tokens there are no more than are refused.
type members map[string]json.RawMessage

// UnmarshalJSON reads an object, or null as an empty one.
func (m *members) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	open, err := d.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('{') {
		return errors.New("not an object")
	}
	*m = members{}
	var value json.RawMessage
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if err := d.Decode(&value); err != nil {
			return err
		}
		if name := key.(string); m.keeps(name) { // keys are strings
			(*m)[name] = bytes.Clone(value)
		}
	}
	return nil
}

func (m *members) keeps(name string) bool {
	switch {
	case name == "chat_template", name == "extra_special_tokens", name == "added_tokens_decoder", slices.Contains(standardTokens(), name):
		return true
	}
	return strings.HasSuffix(name, "_token") && len(*m) <= 2*maxSpecialNames
}

// namedTemplates are the entries of a list of templates: those that are read are at most one more
// than maxNamed, so that a list of empty ones takes no more memory than its text.
type namedTemplates []struct {
	Name     *string `json:"name"`
	Template *string `json:"template"`
}

// UnmarshalJSON reads a list, or null as an empty one.
func (t *namedTemplates) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	open, err := d.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('[') {
		return errors.New("not a list")
	}
	*t = make(namedTemplates, 0, maxNamed+1)
	for d.More() && len(*t) <= maxNamed {
		*t = (*t)[:len(*t)+1]
		if err := d.Decode(&(*t)[len(*t)-1]); err != nil {
			return err
		}
	}
	return nil
}
