//go:build !race

package tokenizer

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// A model's tokenizer is bounded by its tokens, which the memory for it is promised by.
func TestATokenizerOfFarMoreTokensThanItsModelIsRefused(t *testing.T) {
	var vocab strings.Builder
	for i := range 40_000 {
		vocab.WriteString(`,"d` + strings.Repeat("e", i%7) + string(rune(0x4e00+i/7)) + `":` + strconv.Itoa(i+4))
	}
	f := write(t, map[string]string{"tokenizer.json": `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1," ":2,"c":3` + vocab.String() + `},"merges":[]}}`})
	if _, err := FromModel(f, 512); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "33280") {
		t.Errorf("40,000 tokens for a model of 512: %v", err)
	}
	if tok, err := FromModel(f, 32_000); err != nil || tok.Size() != 40_004 {
		t.Errorf("40,000 tokens for a model of 32,000: %v", err)
	}
}

// The text of all tokens is bounded by their number too.
func TestATokenizerOfLongTokensIsRefused(t *testing.T) {
	for _, c := range []struct {
		bytes   int
		refused bool
	}{{bytes: 60}, {bytes: 300, refused: true}} {
		var vocab strings.Builder
		for i := range 10_000 {
			vocab.WriteString(`,"` + strconv.Itoa(10_000+i) + strings.Repeat("e", c.bytes-5) + `":` + strconv.Itoa(i+1))
		}
		f := write(t, map[string]string{"tokenizer.json": `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0` + vocab.String() + `},"merges":[]}}`})
		_, err := FromModel(f, 10_000)
		if c.refused != errors.Is(err, ErrInvalid) || c.refused && !strings.Contains(err.Error(), "bytes in total") || !c.refused && err != nil {
			t.Errorf("10,000 tokens of %d bytes: %v", c.bytes, err)
		}
	}
}
