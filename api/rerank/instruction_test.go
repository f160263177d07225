//go:build !race

package rerank

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// TestAttackALongInstructionOfDocuments: all routes that take an instruction refuse more than
// 4 KiB.
func TestAttackALongInstructionOfDocuments(t *testing.T) {
	d := new(openai.Decoder)
	for name, decode := range map[string]func(instruction string) error{
		"rerank": func(s string) error {
			_, err := Decode(d, fmt.Appendf(nil, `{"model":"m","query":"q","documents":["a"],"instruction":%q}`, s), V1)
			return err
		},
		"rerank, version 2": func(s string) error {
			_, err := Decode(d, fmt.Appendf(nil, `{"model":"m","query":"q","documents":["a"],"instruction":%q}`, s), V2)
			return err
		},
		"score": func(s string) error {
			_, err := DecodeScore(d, fmt.Appendf(nil, `{"model":"m","text_1":"q","text_2":["a"],"instruction":%q}`, s))
			return err
		},
	} {
		if err := decode(strings.Repeat("x", 4<<10)); err != nil {
			t.Errorf("%s, 4 KiB: %v", name, err)
		}
		var refused *openai.Error
		if err := decode(strings.Repeat("x", 4<<10+1)); !errors.As(err, &refused) || refused.Param != "instruction" {
			t.Errorf("%s, a byte more: %v", name, err)
		}
	}
}
