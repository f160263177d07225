//go:build !race

package tokenizer

import (
	"errors"
	"strings"
	"testing"
)

// TestATemplateThatRepeatsItsText: the tokens of a text are counted once.
func TestATemplateThatRepeatsItsText(t *testing.T) {
	const a, b = `{"Sequence":{"id":"A","type_id":0}}`, `{"Sequence":{"id":"B","type_id":1}}`
	for name, tc := range map[string]struct{ single, pair string }{
		"a text alone":      {a + "," + a, a + "," + b},
		"the first of two":  {a, a + "," + b + "," + a},
		"the second of two": {a, a + "," + b + "," + b},
	} {
		processor := `{"type":"TemplateProcessing","single":[` + tc.single + `],"pair":[` + tc.pair + `],"special_tokens":{}}`
		if _, err := kit(t, map[string]string{"post_processor": processor}); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "repeats a text 2 times") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
