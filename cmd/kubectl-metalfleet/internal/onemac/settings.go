package onemac

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// null removes a setting, so that the Mac's own default applies.
const null = "null"

// Settings are values for fields of a Mac's spec, by the name of the field. nil removes a
// setting, so that the default applies; settings that are not named stay.
type Settings map[string]*string

// setting is one that can be changed while a Mac works.
type setting struct {
	read  func(*v1alpha1.MacNodeSpec) string // empty: it is not set
	check func(string) error
	// json: the value is JSON of a boolean, a list or an object.
	json bool
	// fields are those of an object: a field that the value does not have is removed.
	fields []string
}

var settings = map[string]setting{
	"unschedulable": {read: func(s *v1alpha1.MacNodeSpec) string {
		if s.Unschedulable {
			return "true"
		}
		return ""
	}, check: oneOf("true", "false"), json: true},
	"class": {read: func(s *v1alpha1.MacNodeSpec) string { return s.Class }, check: anything},
	"memory.policy": {read: func(s *v1alpha1.MacNodeSpec) string { return string(s.Memory.Policy) },
		check: oneOf(string(v1alpha1.MemorySafe), string(v1alpha1.MemoryBalanced), string(v1alpha1.MemoryAggressive), string(v1alpha1.MemoryCustom))},
	"memory.ceiling":        {read: func(s *v1alpha1.MacNodeSpec) string { return size(s.Memory.Ceiling) }, check: atLeast(1)},
	"settings.logLevel":     {read: func(s *v1alpha1.MacNodeSpec) string { return string(s.Settings.LogLevel) }, check: oneOf(string(v1alpha1.LogInfo), string(v1alpha1.LogDebug))},
	"settings.cacheLimit":   {read: func(s *v1alpha1.MacNodeSpec) string { return size(s.Settings.CacheLimit) }, check: atLeast(1)},
	"settings.cacheFree":    {read: func(s *v1alpha1.MacNodeSpec) string { return size(s.Settings.CacheFree) }, check: atLeast(0)},
	"settings.downloadRate": {read: func(s *v1alpha1.MacNodeSpec) string { return size(s.Settings.DownloadRate) }, check: atLeast(64 << 10)},
	"settings.giveRate":     {read: func(s *v1alpha1.MacNodeSpec) string { return size(s.Settings.GiveRate) }, check: atLeast(64 << 10)},
	"settings.hubEndpoint":  {read: func(s *v1alpha1.MacNodeSpec) string { return s.Settings.HubEndpoint }, check: anything},
	"settings.modelRoot":    {read: func(s *v1alpha1.MacNodeSpec) string { return s.Settings.ModelRoot }, check: anything},
	"settings.allowedSourceCIDRs": {read: func(s *v1alpha1.MacNodeSpec) string {
		return text(s.Settings.AllowedSourceCIDRs, s.Settings.AllowedSourceCIDRs == nil)
	}, check: jsonOf[[]string](`["10.20.0.0/16"]`), json: true},
	"settings.diskMarks": {read: func(s *v1alpha1.MacNodeSpec) string { return text(s.Settings.DiskMarks, s.Settings.DiskMarks == nil) },
		check: jsonOf[v1alpha1.DiskMarks](`{"highPercent":90,"lowPercent":85}`), json: true, fields: []string{"highPercent", "lowPercent"}},
	"settings.quietHours": {read: func(s *v1alpha1.MacNodeSpec) string { return text(s.Settings.QuietHours, s.Settings.QuietHours == nil) },
		check: jsonOf[v1alpha1.QuietHours](`{"start":"09:00","end":"18:00","downloadRate":"5M"}`), json: true, fields: []string{"days", "start", "end", "timeZone", "downloadRate"}},
}

// anything leaves the judgement to the API server, which names the field and the rule.
func anything(string) error { return nil }

// text returns a list or an object as JSON; empty if it is not set.
func text(v any, none bool) string {
	if none {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("onemac: API types can be encoded: " + err.Error())
	}
	return string(b)
}

// jsonOf returns a check that a value is JSON of a type, without unknown fields.
func jsonOf[T any](example string) func(string) error {
	return func(s string) error {
		in := json.NewDecoder(strings.NewReader(s))
		in.DisallowUnknownFields()
		var v T
		if err := in.Decode(&v); err != nil || in.More() {
			return fmt.Errorf("%q, want JSON such as %s", s, example)
		}
		return nil
	}
}

// Names of all settings, sorted.
func Names() []string { return slices.Sorted(maps.Keys(settings)) }

func size(q *resource.Quantity) string {
	if q == nil {
		return ""
	}
	return q.String()
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q, want %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}

func atLeast(least int64) func(string) error {
	return func(s string) error {
		q, err := resource.ParseQuantity(s)
		if err != nil || q.Value() < least {
			return fmt.Errorf("%q, want a quantity of at least %d bytes, for example 96Gi", s, least)
		}
		return nil
	}
}

// Read returns all settings of a Mac, nil for those that are not set.
func Read(m *v1alpha1.MacNode) Settings {
	all := Settings{}
	for name, s := range settings {
		all[name] = nil
		if value := s.read(&m.Spec); value != "" {
			all[name] = &value
		}
	}
	return all
}

// Parse reads words like NAME=VALUE; NAME=null removes a setting.
func Parse(words []string) (Settings, error) {
	all := Settings{}
	for _, word := range words {
		name, value, is := strings.Cut(word, "=")
		if !is || value == "" {
			return nil, fmt.Errorf("%q is not a setting: want NAME=VALUE, or NAME=%s for the default", word, null)
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%s is set twice", name)
		}
		if all[name] = nil; value != null {
			all[name] = &value
		}
	}
	return all, all.check()
}

// Decode reads settings as JSON, as Read's are printed.
func Decode(b []byte) (Settings, error) {
	var all Settings
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("settings must be a JSON object with string values, or null for the default: %w", err)
	}
	return all, all.check()
}

// check returns an error that names all unknown settings and invalid values.
func (all Settings) check() error {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s, known := settings[name]
		switch value := all[name]; {
		case !known:
			wrong = append(wrong, fmt.Errorf("unknown setting %q; valid settings are %s", name, strings.Join(Names(), ", ")))
		case value != nil:
			if err := s.check(*value); err != nil {
				wrong = append(wrong, fmt.Errorf("%s is %w", name, err))
			}
		}
	}
	return errors.Join(wrong...)
}

// Patch returns the JSON merge patch of a MacNode that applies the settings.
func (all Settings) Patch() ([]byte, error) {
	spec := map[string]any{}
	for name, value := range all {
		into, field := spec, name
		if group, inner, nested := strings.Cut(name, "."); nested {
			if spec[group] == nil {
				spec[group] = map[string]any{}
			}
			into, field = spec[group].(map[string]any), inner
		}
		switch {
		case value == nil:
			into[field] = nil
		case len(settings[name].fields) > 0:
			whole := map[string]any{}
			if err := json.Unmarshal([]byte(*value), &whole); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			for _, f := range settings[name].fields {
				if _, has := whole[f]; !has {
					whole[f] = nil // a merge patch keeps what it does not name
				}
			}
			into[field] = whole
		case settings[name].json:
			into[field] = json.RawMessage(*value)
		default:
			into[field] = *value
		}
	}
	return json.Marshal(map[string]any{"spec": spec})
}
