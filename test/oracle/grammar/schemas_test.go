//go:build oracle

package grammar

import (
	"fmt"
	"math/rand/v2"
)

// m is a JSON object.
type m = map[string]any

// newSchema makes a random schema of the keywords that are enforced.
func newSchema(rng *rand.Rand) any {
	defs := m{}
	for i := range rng.IntN(3) {
		defs[fmt.Sprintf("d%d", i)] = one(rng, 2, 0)
	}
	s := one(rng, 3, len(defs))
	if top, ok := s.(m); ok && len(defs) > 0 {
		top["$defs"] = defs
	}
	return s
}

// one returns a schema with depth levels under it, which may refer to refs others.
func one(rng *rand.Rand, depth, refs int) any {
	if refs > 0 && rng.IntN(6) == 0 {
		return m{"$ref": fmt.Sprintf("#/$defs/d%d", rng.IntN(refs))}
	}
	kinds := []func(*rand.Rand, int, int) m{text, number, whole, listed, simple}
	if depth > 0 {
		kinds = append(kinds, object, object, array, tuple, either, all, oneOf)
	}
	return kinds[rng.IntN(len(kinds))](rng, depth-1, refs)
}

func simple(rng *rand.Rand, _, _ int) m {
	return []m{{"type": "null"}, {"type": "boolean"}, {"type": []string{"integer", "null"}}, {"type": "string"}, {"type": "number"}, {}}[rng.IntN(6)]
}

func text(rng *rand.Rand, _, _ int) m {
	s := m{"type": "string"}
	switch rng.IntN(4) {
	case 0:
		s["format"] = []string{"date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration", "uri"}[rng.IntN(10)]
		return s
	case 1:
		s["pattern"] = []string{`^[a-z]{2,5}$`, `[0-9]`, `^\w+( \w+)*$`, `^(foo|bar)+$`, `[0-9].[a-z]`, `^[^"\\]*$`, `^\S+$`, `^\d{3}-\d{4}$`}[rng.IntN(8)]
	}
	if rng.IntN(2) == 0 {
		s["minLength"] = rng.IntN(8)
	}
	if rng.IntN(2) == 0 {
		s["maxLength"] = 8 + rng.IntN(20)
	}
	return s
}

func number(rng *rand.Rand, _, _ int) m {
	s := m{"type": "number"}
	low := float64(rng.IntN(4000)-2000) / 16
	if rng.IntN(2) == 0 {
		s[[]string{"minimum", "exclusiveMinimum"}[rng.IntN(2)]] = low
	}
	if rng.IntN(2) == 0 {
		s[[]string{"maximum", "exclusiveMaximum"}[rng.IntN(2)]] = low + float64(rng.IntN(1000))/32 + 0.5
	}
	return s
}

func whole(rng *rand.Rand, _, _ int) m {
	s := m{"type": "integer"}
	low := rng.IntN(4000) - 2000
	if rng.IntN(2) == 0 {
		s[[]string{"minimum", "exclusiveMinimum"}[rng.IntN(2)]] = low
	}
	if rng.IntN(2) == 0 {
		s[[]string{"maximum", "exclusiveMaximum"}[rng.IntN(2)]] = low + 2 + rng.IntN(100_000)
	}
	return s
}

func listed(rng *rand.Rand, _, _ int) m {
	values := []any{nil, true, 1, -2.5, "a", "b\"\\\n", "é", []any{1, "x"}, m{"a": 1}}
	rng.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	if rng.IntN(3) == 0 {
		return m{"const": values[0]}
	}
	return m{"enum": values[:1+rng.IntN(5)]}
}

var names = []string{"a", "name", "x-1", "ü", "with space", "q\"uote", "b", "id"}

func object(rng *rand.Rand, depth, refs int) m {
	properties, required := m{}, []string{}
	for range rng.IntN(5) {
		n := names[rng.IntN(len(names))]
		if _, twice := properties[n]; twice {
			continue
		}
		properties[n] = one(rng, depth, refs)
		if rng.IntN(2) == 0 {
			required = append(required, n)
		}
	}
	s := m{"type": "object", "properties": properties, "required": required}
	switch rng.IntN(5) {
	case 0:
		s["additionalProperties"] = one(rng, depth, refs)
	case 1:
		s["additionalProperties"] = false
	case 2:
		s["patternProperties"] = m{"^x-": one(rng, depth, refs)}
	}
	if rng.IntN(4) == 0 {
		s["maxProperties"] = len(required) + rng.IntN(3)
	}
	if rng.IntN(4) == 0 && s["maxProperties"] == nil {
		s["minProperties"] = rng.IntN(3)
	}
	return s
}

func array(rng *rand.Rand, depth, refs int) m {
	s := m{"type": "array", "items": one(rng, depth, refs)}
	if rng.IntN(2) == 0 {
		s["minItems"] = rng.IntN(3)
	}
	if rng.IntN(2) == 0 {
		s["maxItems"] = 3 + rng.IntN(4)
	}
	return s
}

func tuple(rng *rand.Rand, depth, refs int) m {
	return m{"type": "array", "prefixItems": []any{one(rng, depth, refs), one(rng, depth, refs)}, "items": rng.IntN(2) == 0, "minItems": rng.IntN(3)}
}

func either(rng *rand.Rand, depth, refs int) m {
	return m{"anyOf": []any{one(rng, depth, refs), one(rng, depth, refs)}}
}

// oneOf has alternatives that a const distinguishes.
func oneOf(rng *rand.Rand, depth, refs int) m {
	kind := func(n int) m {
		return m{"type": "object", "properties": m{"kind": m{"const": n}, "v": one(rng, depth, refs)}, "required": []string{"kind"}}
	}
	return m{"oneOf": []any{kind(1), kind(2), m{"type": "string", "maxLength": 5}}}
}

func all(rng *rand.Rand, depth, refs int) m {
	return m{"allOf": []any{object(rng, depth, refs), m{"type": "object", "properties": m{"id": whole(rng, 0, 0)}, "required": []string{"id"}}}}
}
