//go:build !race

package chat

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTemplatesAndSpecialTokensOfGGUF(t *testing.T) {
	vocabulary := map[string]any{keyTokens: []string{"a", "<s>", "</s>"}, keyBOS: uint64(1), keyEOS: uint64(2)}
	special := map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
	for name, tc := range map[string]struct {
		add   map[string]any
		names []string
		fault error
	}{
		"none":               {},
		"one":                {add: map[string]any{keyTemplate: "{{ messages }}"}, names: []string{"default"}},
		"one for tools":      {add: map[string]any{keyTemplate: "a", keyTemplate + ".tool_use": "b"}, names: []string{"default", "tool_use"}},
		"another key":        {add: map[string]any{keyTemplate + "s": "a"}},
		"a list":             {add: map[string]any{keyTemplate: []string{"a"}}, fault: ErrTemplate},
		"one that is broken": {add: map[string]any{keyTemplate: "{% for %}"}, fault: ErrTemplate},
	} {
		metadata := map[string]any{}
		for _, from := range []map[string]any{vocabulary, tc.add} {
			for k, v := range from {
				metadata[k] = v
			}
		}
		c, err := ReadGGUF(metadata)
		if !errors.Is(err, tc.fault) {
			t.Errorf("%s: %v, want %v", name, err, tc.fault)
		}
		var names []string
		if c.Templates != nil {
			names = c.Templates.Names()
		}
		if d := cmp.Diff(tc.names, names) + cmp.Diff(special, c.Special); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	c, err := ReadGGUF(map[string]any{keyTokens: []string{"a"}, keyBOS: uint64(1), keyEOS: "a"})
	if err != nil || len(c.Special) != 0 {
		t.Errorf("tokens that do not exist give %q (%v)", c.Special, err)
	}
}

// TestAnErrorNamesFewTemplates of a header that has thousands, with long names.
func TestAnErrorNamesFewTemplates(t *testing.T) {
	header := map[string]any{}
	for i := range 1000 {
		header[fmt.Sprintf("%s.%03d%s", keyTemplate, i, strings.Repeat("x", 1000))] = ""
	}
	_, err := ReadGGUF(header)
	if !errors.Is(err, ErrTemplate) || !strings.Contains(err.Error(), "only: 000xxx") || len(err.Error()) > 1000 {
		t.Errorf("an error of %d bytes: %.200v", len(fmt.Sprint(err)), err)
	}
}
