package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestAttackALongInstruction: what precedes each text of a request has at most 4 KiB.
func TestAttackALongInstruction(t *testing.T) {
	for _, name := range []string{"instruction", "prompt_name", "input_type"} {
		for _, length := range []int{maxInstruction, maxInstruction + 1} {
			_, err := new(Decoder).Embedding(fmt.Appendf(nil, `{"model":"m","input":"a",%q:%q}`, name, strings.Repeat("x", length)))
			var refused *Error
			if want := length > maxInstruction; errors.As(err, &refused) != want || want && refused.Param != name {
				t.Errorf("%s of %d bytes: %v", name, length, err)
			}
		}
	}
}
