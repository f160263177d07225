package grammar

import (
	"encoding/json"
	"math/big"
	"strings"
)

// types of values; integer and fraction together are number.
type types uint8

const (
	typeNull types = 1 << iota
	typeBool
	typeInteger
	typeFraction
	typeString
	typeArray
	typeObject
	typeAny = 1<<iota - 1
)

// typeOf is the type with a name, 0 for another name.
func typeOf(name string) types {
	switch name {
	case "null":
		return typeNull
	case "boolean":
		return typeBool
	case "integer":
		return typeInteger
	case "number":
		return typeInteger | typeFraction
	case "string":
		return typeString
	case "array":
		return typeArray
	case "object":
		return typeObject
	}
	return 0
}

// typesOf a case are what all its objects allow.
func (s *document) typesOf(c oneCase) (types, error) {
	all := types(typeAny)
	for _, o := range c {
		if v, ok := o.get("multipleOf"); ok && v == json.Number("1") {
			all &^= typeFraction
		}
		v, ok := o.get("type")
		if !ok {
			continue
		}
		list, isList := v.([]value)
		if !isList {
			list = []value{v}
		}
		if !s.b.meter.spend(len(list)) {
			return 0, s.b.meter.err
		}
		here := types(0)
		for _, e := range list {
			name, _ := e.(string)
			t := typeOf(name)
			if t == 0 {
				return 0, s.malformed("type", o.at, "null, boolean, integer, number, string, array or object, or a list of these")
			}
			here |= t
		}
		if v, ok := o.get("nullable"); ok && v == true && s.forgiving {
			here |= typeNull
		}
		all &= here
	}
	return all, nil
}

// emitCase is all values of a case.
func (s *schemas) emitCase(c oneCase) (expr, error) {
	kinds, err := s.typesOf(c)
	if err != nil {
		return nil, err
	}
	if values, listed, err := s.listed(c); err != nil {
		return nil, err
	} else if listed {
		var all alt
		for _, v := range values {
			ok, err := s.satisfies(v, c)
			if err != nil {
				return nil, err
			}
			if ok {
				e, err := s.b.anyText(s.notation.written(v))
				if err != nil {
					return nil, err
				}
				all = append(all, e)
			}
		}
		return all, nil
	}
	var all alt
	if kinds&typeNull != 0 {
		all = append(all, s.constants("null", "None")...)
	}
	if kinds&typeBool != 0 {
		all = append(all, s.constants("true", "True")...)
		all = append(all, s.constants("false", "False")...)
	}
	for _, part := range []struct {
		of   types
		emit func(oneCase, types) (expr, error)
	}{{typeInteger | typeFraction, s.emitNumber}, {typeString, s.emitString}, {typeArray, s.emitArray}, {typeObject, s.emitObject}} {
		if kinds&part.of == 0 {
			continue
		}
		e, err := part.emit(c, kinds)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// listed are the values of the first enum or const; satisfies looks at the others.
func (s *document) listed(c oneCase) ([]value, bool, error) {
	for _, o := range c {
		if v, ok := o.get("const"); ok {
			return []value{v}, true, nil
		}
		if v, ok := o.get("enum"); ok {
			list, isList := v.([]value)
			if !isList {
				return nil, false, s.malformed("enum", o.at, "a list of values")
			}
			return list, true, nil
		}
	}
	return nil, false, nil
}

// beyond is more than any context holds: such a limit is none.
var beyond = big.NewRat(1<<30, 1)

// whole reads a keyword that counts; absent is what it is without one.
func (s *document) whole(c oneCase, keyword string, absent int, pick func(a, b int) int) (int, error) {
	n, found := absent, false
	for _, o := range c {
		v, ok := o.get(keyword)
		if !ok {
			continue
		}
		number, isNumber := v.(json.Number)
		s.b.meter.spend(weight(number))
		r, inBounds := exact(number)
		if !isNumber || !inBounds || !r.IsInt() || r.Sign() < 0 {
			return 0, s.malformed(keyword, o.at, "a non-negative whole number")
		}
		if !r.Num().IsInt64() || r.Num().Int64() > maxNodes {
			if strings.HasPrefix(keyword, "max") && r.Cmp(beyond) > 0 {
				continue
			}
			return 0, tooLarge("items, characters or members", maxNodes)
		}
		if k := int(r.Num().Int64()); found {
			n = pick(n, k)
		} else {
			n, found = k, true
		}
	}
	return n, nil
}

func larger(a, b int) int  { return max(a, b) }
func smaller(a, b int) int { return min(a, b) }
