package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// metaspaceFields are what Metaspace says as pre-tokenizer and as decoder.
type metaspaceFields struct {
	Replacement    string `json:"replacement"`
	PrependScheme  string `json:"prepend_scheme"`
	Split          *bool  `json:"split"`
	AddPrefixSpace *bool  `json:"add_prefix_space"` // what older files say
}

func readMetaspace(c component) (metaspaceFields, error) {
	f := metaspaceFields{PrependScheme: "always"}
	if err := c.into(&f); err != nil {
		return f, err
	}
	if utf8.RuneCountInString(f.Replacement) != 1 {
		return f, fmt.Errorf("Metaspace replaces spaces by %.80q, want one character: %w", f.Replacement, ErrInvalid)
	}
	schemes := map[string]bool{"always": true, "first": true, "never": true}
	if !schemes[f.PrependScheme] {
		return f, unsupported("prepend_scheme", f.PrependScheme, schemes)
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && f.PrependScheme != "never" {
		return f, fmt.Errorf("Metaspace has add_prefix_space false and prepend_scheme %s: %w", f.PrependScheme, ErrInvalid)
	}
	return f, nil
}
