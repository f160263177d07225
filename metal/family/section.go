package family

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// section reads typed values from one object of config.json. The first fault is
// kept, so that a family reads all of its keys in a row and checks once. Until then
// it computes with the lowest allowed value in place of one that is missing or out of
// range, so that nothing is divided by 0.
type section struct {
	text map[string]any
	// inside is the path of the object, for messages: empty, or with a dot at its
	// end.
	inside string
	// read are the keys that were read.
	read map[string]bool
	err  error
}

func newSection(text map[string]any, inside string) section {
	return section{text: text, inside: inside, read: map[string]bool{}}
}

func (s *section) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// value returns the value of a key. It returns nil for
// null as for an absent key.
func (s *section) value(key string) any {
	s.read[key] = true
	return s.text[key]
}

// find returns the first of several names that has a value; null counts as
// absent.
func (s *section) find(names ...string) (key string, v any) {
	for _, n := range names {
		if v := s.value(n); v != nil {
			return n, v
		}
	}
	return names[0], nil
}

// integer reads a whole number in [low, high]. An absent one is ErrMissing.
func (s *section) integer(low, high int64, names ...string) int {
	if key, v := s.find(names...); v == nil {
		s.fail(fmt.Errorf("%s%s: %w", s.inside, key, ErrMissing))
		return int(low)
	}
	return s.integerOr(0, low, high, names...)
}

func (s *section) integerOr(absent int, low, high int64, names ...string) int {
	key, v := s.find(names...)
	if v == nil {
		return absent
	}
	n, ok := WholeNumber(v)
	if !ok || n < low || n > high {
		s.fail(Invalidf("%s%s is %s, want a whole number from %d to %d", s.inside, key, Shown(v), low, high))
		return int(low)
	}
	return int(n)
}

// number reads a finite number in [low, high]. An absent one is ErrMissing.
func (s *section) number(low, high float64, name string) float64 {
	if s.value(name) == nil {
		s.fail(fmt.Errorf("%s%s: %w", s.inside, name, ErrMissing))
		return low
	}
	f, ok := floatNumber(s.value(name))
	if !ok || f < low || f > high {
		s.fail(Invalidf("%s%s is %s, want a number from %v to %v", s.inside, name, Shown(s.value(name)), low, high))
		return low
	}
	return f
}

// flag reads a boolean, false if absent.
func (s *section) flag(name string) bool {
	v, ok := s.value(name).(bool)
	if !ok && s.value(name) != nil {
		s.fail(Invalidf("%s%s is %s, want true or false", s.inside, name, Shown(s.value(name))))
	}
	return v
}

// flagOr reads a boolean with a default.
func (s *section) flagOr(absent bool, name string) bool {
	if s.value(name) == nil {
		return absent
	}
	return s.flag(name)
}

// only refuses any value but want.
func (s *section) only(name string, want float64) {
	v := s.value(name)
	if f, ok := floatNumber(v); v != nil && (!ok || f != want) {
		s.fail(fmt.Errorf("%s%s: %w", s.inside, name, &UnsupportedError{"value", Shown(v), []string{fmt.Sprint(want)}}))
	}
}

// must reads a boolean whose default differs between the references, so that it
// has to be present.
func (s *section) must(name string) bool {
	if s.value(name) == nil {
		s.fail(fmt.Errorf("%s%s: %w", s.inside, name, ErrMissing))
	}
	return s.flag(name)
}

// numberOr reads a finite number with a default.
func (s *section) numberOr(absent, low, high float64, name string) float64 {
	if s.value(name) == nil {
		return absent
	}
	return s.number(low, high, name)
}

// cap reads a bound of scores or logits with a default; null means none.
func (s *section) cap(absent float64, name string) float64 {
	if v, ok := s.text[name]; ok && v == nil {
		absent = 0
	}
	return s.numberOr(absent, 1e-3, 1e6, name)
}

// list reads a list, empty if absent.
func (s *section) list(name string) []any {
	list, ok := s.value(name).([]any)
	if !ok && s.value(name) != nil {
		s.fail(Invalidf("%s%s is %s, want a list", s.inside, name, Shown(s.value(name))))
	}
	return list
}

// numbers reads a list of numbers from 0; null counts as 0.
func (s *section) numbers(name string) []float64 {
	var out []float64
	for _, v := range s.list(name) {
		n, ok := floatNumber(v)
		if v != nil && (!ok || n < 0) {
			s.fail(Invalidf("%s%s contains %s, want numbers from 0", s.inside, name, Shown(v)))
			break
		}
		out = append(out, n)
	}
	return out
}

// kinds reads layer_types, which gives each layer one of names; nil if absent.
func (s *section) kinds(layers int, names ...string) []string {
	types := s.value("layer_types")
	if types == nil {
		return nil
	}
	list, ok := types.([]any)
	if !ok || len(list) != layers {
		s.fail(Invalidf("%slayer_types is not a list of %d names", s.inside, layers))
		return nil
	}
	out := make([]string, layers)
	for i, v := range list {
		name, ok := v.(string)
		if !ok || !slices.Contains(names, name) {
			s.fail(fmt.Errorf("%slayer_types: %w", s.inside, &UnsupportedError{"attention", Shown(v), names}))
			return nil
		}
		out[i] = name
	}
	return out
}

// gelu refuses any other activation than the GELU in the form of tanh.
func (s *section) gelu(key string) {
	if v := s.value(key); v != nil && v != "gelu_pytorch_tanh" {
		s.fail(fmt.Errorf("%s%s: %w", s.inside, key, &UnsupportedError{"activation", Shown(v), []string{"gelu_pytorch_tanh"}}))
	}
}

// floatNumber converts a JSON number to a finite float64.
func floatNumber(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(n.String(), 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// WholeNumber reads a JSON number that is written as an integer: 32, but
// neither 32.0 nor 3.2e1.
func WholeNumber(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	return i, err == nil
}

// Shown formats a value from a file for a message of bounded length: a file may have a long text
// or list in place of a number.
func Shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "absent"
	case string:
		return Quoted(v)
	case json.Number:
		return strings.TrimSuffix(strings.TrimPrefix(Quoted(v.String()), `"`), `"`)
	case bool, int64, uint64, float64:
		return fmt.Sprint(v)
	}
	if reflect.ValueOf(v).Kind() == reflect.Slice {
		return "a list"
	}
	return "an object"
}
