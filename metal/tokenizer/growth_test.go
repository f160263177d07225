//go:build !race

package tokenizer

import (
	"errors"
	"strings"
	"testing"
)

// kit is a tokenizer of four tokens: letters, a space, and an added token that may say more.
func kit(t *testing.T, parts map[string]string) (*Tokenizer, error) {
	t.Helper()
	part := func(name string) string {
		if s, ok := parts[name]; ok {
			return s
		}
		return "null"
	}
	added := parts["added"]
	return FromFolder(write(t, map[string]string{"tokenizer.json": `{"version":"1.0","added_tokens":[` + added + `],"normalizer":` + part("normalizer") +
		`,"pre_tokenizer":null,"post_processor":` + part("post_processor") + `,"decoder":` + part("decoder") +
		`,"model":{"type":"BPE","vocab":{"a":0,"b":1," ":2,"c":3` + parts["vocab"] + `},"merges":[]}}`}))
}

// sixtyFour is a step that makes 64 letters of one, this many times.
func sixtyFour(steps int) string {
	one := `{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("a", 64) + `"}`
	return strings.TrimSuffix(strings.Repeat(one+",", steps), ",")
}

// TestADecoderThatMultipliesATokenByItself: five replacements of one letter by 64 made
// 1 GiB of one token.
func TestADecoderThatMultipliesATokenByItself(t *testing.T) {
	if _, err := kit(t, map[string]string{"decoder": `{"type":"Sequence","decoders":[` + sixtyFour(5) + `]}`}); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "64 times longer") {
		t.Errorf("five replacements: %v", err)
	}
	fused := `{"type":"Sequence","decoders":[{"type":"Fuse"},` + sixtyFour(2) + `]}`
	if _, err := kit(t, map[string]string{"decoder": fused}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("two replacements in joined text: %v", err)
	}
	double := func(steps int) map[string]string {
		return map[string]string{"decoder": `{"type":"Sequence","decoders":[` + strings.TrimSuffix(strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, steps), ",") + `]}`}
	}
	if _, err := kit(t, double(3)); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "8 times longer") {
		t.Errorf("three replacements: %v", err)
	}
	tok, err := kit(t, double(2))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(tok.Bytes(0)); text != "aaaa" {
		t.Errorf("two replacements make %q", text)
	}
	// What waits for a match that is long is copied with each token.
	for name, step := range map[string]string{
		"a long match":  `{"type":"Replace","pattern":{"String":"` + strings.Repeat("a", 65) + `"},"content":"b"}`,
		"a long suffix": `{"type":"BPEDecoder","suffix":"` + strings.Repeat("a", 65) + `"}`,
	} {
		if _, err := kit(t, map[string]string{"decoder": step}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestATokenOfManyBytes: a token is copied several times whenever it is shown.
func TestATokenOfManyBytes(t *testing.T) {
	vocab := func(n int) map[string]string {
		return map[string]string{"vocab": `,"` + strings.Repeat("d", n) + `":4`}
	}
	if _, err := kit(t, vocab(maxTokenBytes+1)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "token 4 has 16385 bytes") {
		t.Errorf("a token of many bytes: %v", err)
	}
	if _, err := kit(t, vocab(maxTokenBytes)); err != nil {
		t.Errorf("a token at the bound: %v", err)
	}
}
