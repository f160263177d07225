//go:build !race

package jinja

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestAttackNothingIsMadeBeforeItIsCounted: a render waits before it makes more than what is
// free, however it makes it, and ends with the error of its wait.
func TestAttackNothingIsMadeBeforeItIsCounted(t *testing.T) {
	const long = 400_000
	vars := NewDict()
	vars.Set("control", strings.Repeat("\x01", long))
	vars.Set("amp", strings.Repeat("&", long))
	ended := errors.New("ended")
	for name, source := range map[string]string{
		"a repetition": "{{ 'x' * 9999999 }}", "a sum": "{{ amp ~ amp }}", "indents of JSON": "{{ [1] | tojson(indent=amp) }}",
		"escapes of JSON": "{{ control | tojson }}", "keys of JSON": "{{ {control: 1} | tojson }}",
		"escapes in a list": "{{ [control] }}", "markup before text": "{{ ('' | e) + amp }}", "markup after text": "{{ amp + ('' | e) }}",
	} {
		var before, after runtime.MemStats
		waits := 0
		limits := Limits{Free: long / 4, Wait: func(context.Context) error {
			runtime.ReadMemStats(&after)
			waits++
			return ended
		}}
		runtime.ReadMemStats(&before)
		_, err := renderText(t.Context(), source, vars, limits)
		if made := after.TotalAlloc - before.TotalAlloc; waits != 1 || !errors.Is(err, ended) || made > long/2 {
			t.Errorf("%s: %d waits, %v, %d bytes made before", name, waits, err, made)
		}
	}
}

// A render that had its turn does not wait again; a small one never waits.
func TestARenderWaitsOnce(t *testing.T) {
	for source, want := range map[string]int{"{{ 'x' * 99 }}": 0, "{% for i in range(9) %}{{ 'x' * 99999 }}{% endfor %}": 1} {
		waits := 0
		limits := Limits{Free: 1000, Wait: func(context.Context) error { waits++; return nil }}
		if _, err := renderText(t.Context(), source, nil, limits); err != nil || waits != want {
			t.Errorf("%s: %d waits, %v", source, waits, err)
		}
	}
}
