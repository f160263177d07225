package table

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Filled is a value with its "${name}"s replaced: a string that is one alone
// becomes the kept value, of any type.
func Filled(v any, kept map[string]any) (any, error) {
	switch v := v.(type) {
	case string:
		return filledText(v, kept)
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			var err error
			if out[i], err = Filled(one, kept); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := map[string]any{}
		for k, one := range v {
			var err error
			if out[k], err = Filled(one, kept); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

var variable = regexp.MustCompile(`\$\{([a-z_]+)\}`)

func filledText(s string, kept map[string]any) (any, error) {
	var missing error
	one := func(name string) any {
		v, ok := kept[name]
		if !ok {
			missing = fmt.Errorf("nothing was kept as %q", name)
		}
		return v
	}
	if m := variable.FindStringSubmatch(s); m != nil && m[0] == s {
		return one(m[1]), missing
	}
	out := variable.ReplaceAllStringFunc(s, func(m string) string { return fmt.Sprint(one(m[2 : len(m)-1])) })
	return out, missing
}

// At finds what a path names: members and places apart by dots, a negative place
// from the end, * for all of a list or of an object's values, # for how many.
func At(doc any, path string) []any {
	if path == "" {
		return []any{doc}
	}
	head, rest, _ := strings.Cut(path, ".")
	switch d := doc.(type) {
	case map[string]any:
		if head == "*" {
			var out []any
			for _, k := range slices.Sorted(maps.Keys(d)) {
				out = append(out, At(d[k], rest)...)
			}
			return out
		}
		if v, ok := d[head]; ok {
			return At(v, rest)
		}
	case []any:
		if head == "*" {
			var out []any
			for _, v := range d {
				out = append(out, At(v, rest)...)
			}
			return out
		}
		if head == "#" {
			return []any{float64(len(d))}
		}
		n, err := strconv.Atoi(head)
		if n < 0 {
			n += len(d)
		}
		if err == nil && n >= 0 && n < len(d) {
			return At(d[n], rest)
		}
	}
	return nil
}

// Judge returns the differences between a reply and the wanted values.
func Judge(want map[string]any, reply any, kept map[string]any) error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w, err := Filled(want[path], kept)
		if err == nil {
			err = judge(w, At(reply, path))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if _, wanted := want["error.class"]; !wanted {
		if e := At(reply, "error"); len(e) > 0 && e[0] != nil {
			errs = append(errs, fmt.Errorf("an error came: %s", text(e[0])))
		}
	}
	return errors.Join(errs...)
}

// judge compares all values of a path with what is wanted of each.
func judge(want any, got []any) error {
	rules, ok := want.(map[string]any)
	if !ok {
		rules = map[string]any{"is": want}
	}
	if want, ok := rules["exists"]; ok {
		if (len(got) > 0) != want {
			return fmt.Errorf("it is there: %v, want %v", len(got) > 0, want)
		}
		if len(rules) == 1 {
			return nil
		}
	}
	if want, ok := rules["joined"]; ok {
		all := ""
		for _, v := range got {
			if s, ok := v.(string); ok {
				all += s
			}
		}
		if all != want {
			return fmt.Errorf("together %q, want %q", all, want)
		}
		return nil
	}
	if len(got) == 0 {
		return errors.New("it is not there")
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		for _, v := range got {
			if err := follow(name, rules[name], v); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow applies one rule to one value.
func follow(rule string, want, got any) error {
	holds := false
	switch rule {
	case "exists":
		return nil
	case "is":
		holds = same(want, got)
	case "not":
		holds = !same(want, got)
	case "one_of":
		list, _ := want.([]any)
		holds = slices.ContainsFunc(list, func(w any) bool { return same(w, got) })
	case "length":
		n := -1
		if v := reflect.ValueOf(got); got != nil && slices.Contains([]reflect.Kind{reflect.Slice, reflect.Map, reflect.String}, v.Kind()) {
			n = v.Len()
		}
		holds = same(want, float64(n))
	case "least", "most":
		w, isNumber := number(want)
		g, ok := number(got)
		holds = isNumber && ok && (rule == "least" && g >= w || rule == "most" && g <= w)
	case "contains":
		holds = strings.Contains(text(got), fmt.Sprint(want))
	case "matches":
		re, err := regexp.Compile(fmt.Sprint(want))
		if err != nil {
			return fmt.Errorf("rule: %w", err)
		}
		s, ok := got.(string)
		holds = ok && re.MatchString(s)
	default:
		return fmt.Errorf("there is no rule %q", rule)
	}
	if !holds {
		return fmt.Errorf("%s does not hold of %s: %s", rule, shortened(text(got)), text(want))
	}
	return nil
}

func same(a, b any) bool {
	x, xok := number(a)
	y, yok := number(b)
	if xok && yok {
		return x == y
	}
	return reflect.DeepEqual(a, b)
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case int:
		return float64(v), true
	}
	return 0, false
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func shortened(s string) string {
	const most = 400
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
