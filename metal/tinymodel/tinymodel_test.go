//go:build !race

package tinymodel_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestEveryTypeOpensAndRoundTripsText(t *testing.T) {
	for _, kind := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		c := tinymodel.Default()
		c.Type, c.Untied, c.RopeFactors = kind, kind == weights.F32, kind == weights.F16
		path := filepath.Join(t.TempDir(), "tiny.gguf")
		if err := tinymodel.Write(path, c); err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(filepath.Dir(path))
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		defer f.Close()
		if facts, err := f.Facts(); err != nil || facts.Quantization != kind.String() {
			t.Errorf("%v: facts %+v, %v", kind, facts, err)
		}
		tok, err := tokenizer.FromGGUF(f.Metadata)
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		const text = "The capital of France is Paris. 東京 🙂\n\x00"
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if back, err := tok.Decode(ids, false); err != nil || back != text {
			t.Errorf("%v: text came back as %q (%v)", kind, back, err)
		}
		if len(ids) > 40 {
			t.Errorf("%v: %d tokens; the merges do nothing", kind, len(ids))
		}
	}
}

func TestFilesDependOnTheSeedAlone(t *testing.T) {
	sum := func(seed uint64) string {
		c := tinymodel.Default()
		c.Seed = seed
		var b bytes.Buffer
		if err := tinymodel.WriteTo(&b, c); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", sha256.Sum256(b.Bytes()))
	}
	first, again, other := sum(1), sum(1), sum(2)
	if first != again {
		t.Error("the same seed gave two files")
	}
	if first == other {
		t.Error("two seeds gave one file")
	}
}

func TestLargeHasTheWantedSize(t *testing.T) {
	c := tinymodel.Large(80 << 20)
	var n counter
	if err := tinymodel.WriteTo(&n, c); err != nil {
		t.Fatal(err)
	}
	if n < 50<<20 || n > 110<<20 {
		t.Errorf("%d bytes, want about %d", n, 80<<20)
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func TestImpossibleSizesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*tinymodel.Config){
		"part of a group": func(c *tinymodel.Config) { c.Hidden = 48 },
		"odd heads":       func(c *tinymodel.Config) { c.QueryHeads, c.KVHeads = 4, 3 },
		"no vocabulary":   func(c *tinymodel.Config) { c.Vocabulary = 100 },
	} {
		c := tinymodel.Default()
		change(&c)
		if err := tinymodel.WriteTo(new(counter), c); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestAModelWithoutEndHasAnEndOfTurnThatNobodyScores(t *testing.T) {
	c := tinymodel.Default()
	c.Endless = true
	path := filepath.Join(t.TempDir(), "endless.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Special().EOS; int(got) != c.Vocabulary-1 {
		t.Errorf("end of turn is token %d, want the last one, %d", got, c.Vocabulary-1)
	}
	c.Untied = true
	if err := tinymodel.Write(path, c); err == nil {
		t.Error("a head of its own would score the end of turn, and was accepted")
	}
}

func TestAMergedVocabularyIsMadeOfMerges(t *testing.T) {
	c := tinymodel.Default()
	c.Vocabulary, c.Merged, c.Endless = 8000, true, true
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	used := map[int32]bool{}
	for a := 'a'; a <= 'z'; a++ {
		for b := 'a'; b <= 'z'; b++ {
			text := string([]rune{a, b})
			ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
			if back, derr := tok.Decode(ids, false); err != nil || derr != nil || back != text {
				t.Fatalf("%q came back as %q (%v, %v)", text, back, err, derr)
			}
			for _, id := range ids {
				used[id] = true
			}
		}
	}
	if len(used) < 500 { // a learned merge may come before one of these
		t.Errorf("%d tokens of letters are used: merges are missing", len(used))
	}
	if text, err := tok.Decode([]int32{7998, 7999}, false); err != nil || !strings.HasSuffix(text, "<|reserved_7999|>") || strings.HasPrefix(text, "<|") {
		t.Errorf("the last tokens are %q, %v", text, err)
	}
}
