package embed_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// TestTruncatedTextsBeginAsWholeOnes: a text that is tokenized up to the limit has the same
// ids as one that is tokenized whole and truncated after it.
func TestTruncatedTextsBeginAsWholeOnes(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	words := func() string {
		var b strings.Builder
		for range 1 + random.IntN(30) {
			b.WriteString([]string{"a ", "man ", "eats", " é", "走", "xyzzy", ", ", "<|im_end|>", "[SEP]", "</s>", "\n"}[random.IntN(11)])
		}
		return b.String()
	}
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		whole := func(text string) []int32 {
			ids, err := r.tok.Encode(text, tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return ids
		}
		for range 200 {
			first, second := words(), words()
			o := embed.Options{Truncate: true, MaxTokens: 4 + random.IntN(36)}
			var got embed.Input
			var err error
			var want []int32
			switch {
			case !c.Rerank:
				got, err = r.Text(t.Context(), r.tok, first, o)
				want, _, _ = r.tok.Around(o.MaxTokens, whole(first))
			case c.Family == "qwen3":
				got, err = r.Pair(t.Context(), r.tok, first, second, embed.Options{Truncate: true, MaxTokens: 160 + o.MaxTokens})
				all, _ := r.Pair(t.Context(), r.tok, first, second, embed.Options{})
				want = all.IDs
				if n := len(got.IDs); n < len(want) {
					tail := suffix(got.IDs, want)
					want = slices.Concat(want[:n-tail], want[len(want)-tail:])
				}
			default:
				got, err = r.Pair(t.Context(), r.tok, first, second, o)
				want, _, _ = r.tok.Around(o.MaxTokens, whole(first), whole(second))
			}
			if err != nil || !slices.Equal(got.IDs, want) {
				t.Fatalf("%s: %q and %q in %d tokens: %v, %v, want %v", c.Name, first, second, o.MaxTokens, got.IDs, err, want)
			}
		}
	}
}

// suffix is how many ids a and b end with in common.
func suffix(a, b []int32) (n int) {
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}

// counted counts how often a tokenizer looks whether its request has ended, which is once in
// some hundred words.
type counted struct {
	context.Context
	looks *atomic.Int64
}

func (c counted) Err() error { c.looks.Add(1); return c.Context.Err() }

// TestAttackATextThatIsTruncated: texts and instructions are tokenized up to the limit only.
func TestAttackATextThatIsTruncated(t *testing.T) {
	long := strings.Repeat("a man, ", 100_000)
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		looks := func(ctx context.Context, text string) int64 {
			n := counted{ctx, new(atomic.Int64)}
			o := embed.Options{Truncate: true, MaxTokens: 160}
			var err error
			if c.Rerank {
				_, err = r.Pair(n, r.tok, "a", text, o)
			} else {
				_, err = r.Text(n, r.tok, text, o)
			}
			if err != nil {
				t.Fatal(c.Name, err)
			}
			return n.looks.Load()
		}
		if got, short := looks(t.Context(), long), looks(t.Context(), "a"); got > short+20 {
			t.Errorf("%s: %d looks for the end of the request in a long text, %d in a short one", c.Name, got, short)
		}
	}
}

// A text that is too long is tokenized up to the limit only, also if it may not be truncated, and a
// query like the texts.
func TestATextThatIsTooLongIsReadUpToTheLimit(t *testing.T) {
	long := strings.Repeat("a man, ", 100_000)
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		for _, truncate := range []bool{false, true} {
			looks := func(query, text string) (int64, error) {
				n := counted{t.Context(), new(atomic.Int64)}
				o := embed.Options{Truncate: truncate}
				var err error
				if c.Rerank {
					_, err = r.Pair(n, r.tok, query, text, o)
				} else {
					_, err = r.Text(n, r.tok, text, o)
				}
				return n.looks.Load(), err
			}
			short, err := looks("a", "a")
			if err != nil {
				t.Fatal(c.Name, err)
			}
			for _, texts := range [][2]string{{"a", long}, {long, "a"}} {
				if !c.Rerank && texts[1] != long {
					continue
				}
				got, err := looks(texts[0], texts[1])
				if got > short+20 || errors.Is(err, embed.ErrTooLong) == truncate {
					t.Errorf("%s, truncated %t: %d looks for the end of the request with a long text, %d with short ones: %v", c.Name, truncate, got, short, err)
				}
			}
		}
	}
}
