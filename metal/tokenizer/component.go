package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// Components of a tokenizer.json nest in sequences; both are bounded.
const (
	maxComponents = 64
	maxNesting    = 8
)

// component is one step of a pipeline: its type and the text it stands in.
type component struct {
	kind string
	raw  json.RawMessage
}

// into reads the fields of the component; absent ones keep their value.
func (c component) into(fields any) error {
	if err := json.Unmarshal(c.raw, fields); err != nil {
		return fmt.Errorf("%s: %w: %w", c.kind, ErrInvalid, excerpt.Error(err))
	}
	return nil
}

// flatten reads a component, or a sequence of them, into a list. inner is the
// field that holds a sequence's members.
func flatten(raw json.RawMessage, what, inner string) ([]component, error) {
	var out []component
	var walk func(raw json.RawMessage, depth int) error
	walk = func(raw json.RawMessage, depth int) error {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return fmt.Errorf("%s: %w: %w", what, ErrInvalid, excerpt.Error(err))
		}
		if head.Type != "Sequence" {
			out = append(out, component{head.Type, raw})
			if len(out) > maxComponents {
				return fmt.Errorf("%s has over %d members: %w", what, maxComponents, ErrInvalid)
			}
			return nil
		}
		if depth == maxNesting {
			return fmt.Errorf("%s is nested over %d levels deep: %w", what, maxNesting, ErrInvalid)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return fmt.Errorf("%s: %w: %w", what, ErrInvalid, excerpt.Error(err))
		}
		var members []json.RawMessage
		if err := json.Unmarshal(fields[inner], &members); err != nil {
			return fmt.Errorf("%s of a Sequence: %w: %w", inner, ErrInvalid, excerpt.Error(err))
		}
		for _, m := range members {
			if err := walk(m, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if raw == nil {
		return nil, nil
	}
	err := walk(raw, 0)
	return out, err
}

// unsupported names what is not known, and what is.
func unsupported[V any](what, name string, known map[string]V) error {
	var names []string
	for n := range known {
		names = append(names, n)
	}
	slices.Sort(names)
	return fmt.Errorf("%s %.80q is not supported (supported: %q): %w", what, name, names, ErrUnsupported)
}

// pattern is {"String": "x"} or {"Regex": "x+"}.
type pattern struct {
	String *string
	Regex  *string
}

func (p pattern) check(kind string) error {
	if (p.String == nil) == (p.Regex == nil) {
		return fmt.Errorf("%s requires a pattern that is a String or a Regex: %w", kind, ErrInvalid)
	}
	return nil
}
