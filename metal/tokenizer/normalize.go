package tokenizer

import (
	"encoding/json"
)

// normalizer rewrites a text before it is cut, step by step.
type normalizer []normalizing

// normalizing is one step; its only error is ErrTooSlow.
type normalizing func(string) (string, error)

func pure(f func(string) string) normalizing {
	return func(s string) (string, error) { return f(s), nil }
}

func (n normalizer) text(s string) (string, error) {
	for _, step := range n {
		var err error
		if s, err = step(s); err != nil {
			return "", err
		}
	}
	return s, nil
}

// span normalizes a span. What becomes of its head by itself is its new head.
func (n normalizer) span(s span) (span, error) {
	head, err := n.text(s.text[:s.head])
	if err != nil {
		return span{}, err
	}
	text, err := n.text(s.text)
	return span{text, min(len(head), len(text))}, err
}

// normalizerKinds are the components that are known.
func normalizerKinds() map[string]func(component) (normalizing, error) {
	return map[string]func(component) (normalizing, error){
		"NFC": func(component) (normalizing, error) { return pure(newNFC().String), nil },
	}
}

// readNormalizer builds the normalizer of a tokenizer.json.
func readNormalizer(raw json.RawMessage) (normalizer, error) {
	steps, err := flatten(raw, "normalizer", "normalizers")
	if err != nil {
		return nil, err
	}
	var out normalizer
	known := normalizerKinds()
	for _, s := range steps {
		build, ok := known[s.kind]
		if !ok {
			return nil, unsupported("normalizer", s.kind, known)
		}
		step, err := build(s)
		if err != nil {
			return nil, err
		}
		out = append(out, step)
	}
	return out, nil
}
