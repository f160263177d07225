package openai

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An emoji in two tokens, one token that is half of another, and one that the
// model masks.
func likelyTokens() []Ranked {
	return []Ranked{
		{Likely: Likely{Bytes: []byte(" é"), Logprob: -0.5}, Top: []Likely{{Bytes: []byte(" é"), Logprob: -0.5}, {Bytes: []byte("\n"), Logprob: -1.25}}},
		{Likely: Likely{Bytes: []byte(" \xf0\x9f"), Logprob: -3}, Top: []Likely{{Bytes: []byte("<"), Logprob: -0.125}}},
		{Likely: Likely{Bytes: []byte("\x98\x80")}},
		{Likely: Likely{Bytes: []byte("x"), Logprob: -2}, Top: []Likely{{Bytes: []byte("x"), Logprob: -1}, {Bytes: []byte("y"), Logprob: float32(math.Inf(-1))}}},
	}
}

func bytesOf(t *testing.T, v any) string {
	t.Helper()
	raw, err := Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestChatLogprobsAreExact(t *testing.T) {
	want := `{"content":[` +
		`{"token":" é","logprob":-0.5,"bytes":[32,195,169],"top_logprobs":[{"token":" é","logprob":-0.5,"bytes":[32,195,169]},{"token":"\n","logprob":-1.25,"bytes":[10]}]},` +
		`{"token":" \\xf0\\x9f","logprob":-3,"bytes":[32,240,159],"top_logprobs":[{"token":"<","logprob":-0.125,"bytes":[60]}]},` +
		`{"token":"\\x98\\x80","logprob":0,"bytes":[152,128],"top_logprobs":[]},` +
		`{"token":"x","logprob":-2,"bytes":[120],"top_logprobs":[{"token":"x","logprob":-1,"bytes":[120]},{"token":"y","logprob":-9999,"bytes":[121]}]}` +
		`],"refusal":null}`
	if d := cmp.Diff(want, bytesOf(t, NewChatLogprobs(likelyTokens()))); d != "" {
		t.Error(d)
	}
	if got := bytesOf(t, NewChatLogprobs(nil)); got != `{"content":[],"refusal":null}` {
		t.Error(got)
	}
}

// Offsets continue from chunk to chunk.
func TestCompletionLogprobsAreExact(t *testing.T) {
	var whole, parts CompletionOffsets
	want := `{"tokens":[" é","bytes: \\xf0\\x9f","bytes:\\x98\\x80","x"],"token_logprobs":[-0.5,-3,0,-2],` +
		`"top_logprobs":[{"\n":-1.25," é":-0.5},{"<":-0.125,"bytes: \\xf0\\x9f":-3},{"bytes:\\x98\\x80":0},{"x":-1,"y":-9999}],"text_offset":[0,2,3,4]}`
	if d := cmp.Diff(want, bytesOf(t, whole.Logprobs(likelyTokens()))); d != "" {
		t.Error(d)
	}
	var offsets []int
	for _, r := range likelyTokens() {
		offsets = append(offsets, parts.Logprobs([]Ranked{r}).TextOffset...)
	}
	if d := cmp.Diff([]int{0, 2, 3, 4}, offsets); d != "" {
		t.Error(d)
	}
}

// The first token has no predecessor. Offsets are those of the text, without a token or
// space that the tokenizer prepends.
func TestLogprobsOfAPromptAreExact(t *testing.T) {
	ranked := func(tokens ...string) (out []Ranked) {
		for i, token := range tokens {
			r := Ranked{Likely: Likely{Bytes: []byte(token), Logprob: 0 - float32(i)}}
			if i > 0 {
				r.Top = []Likely{{Bytes: []byte("x"), Logprob: -0.5}}
			}
			out = append(out, r)
		}
		return out
	}
	for name, c := range map[string]struct {
		text   string
		tokens []string
		want   []int
		end    int
	}{
		"bytes":                    {text: "é b\U0001F600", tokens: []string{"\xc3", "\xa9", " b", "\xf0\x9f\x98", "\x80"}, want: []int{0, 0, 1, 3, 3}, end: 4},
		"a token in front":         {text: "a b", tokens: []string{"<s>", "a", " b"}, want: []int{0, 0, 1}, end: 3},
		"a space in front":         {text: "a b", tokens: []string{" a", " b"}, want: []int{0, 1}, end: 3},
		"both in front":            {text: "a b", tokens: []string{"<s>", " a", " b"}, want: []int{0, 0, 1}, end: 3},
		"the token is in the text": {text: "<s>a", tokens: []string{"<s>", "a"}, want: []int{0, 3}, end: 4},
	} {
		var o CompletionOffsets
		got := o.Prompt(c.text, ranked(c.tokens...))
		if d := cmp.Diff(c.want, got.TextOffset); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if len(got.TokenLogprobs) != len(c.tokens) || got.TokenLogprobs[0] != nil || got.TopLogprobs[0] != nil || *got.TokenLogprobs[1] != -1 || len(got.TopLogprobs[1]) != 2 {
			t.Errorf("%s: %s", name, bytesOf(t, got))
		}
		if next := o.Logprobs(ranked("!")); next.TextOffset[0] != c.end {
			t.Errorf("%s: the output is at %d, want %d", name, next.TextOffset[0], c.end)
		}
	}
	var o CompletionOffsets
	want := `{"tokens":["a"," b","!"],"token_logprobs":[null,-1,0],"top_logprobs":[null,{" b":-1,"x":-0.5},{"!":0}],"text_offset":[0,1,3]}`
	prompt := o.Prompt("a b", ranked("a", " b"))
	if d := cmp.Diff(want, bytesOf(t, prompt.Join(o.Logprobs(ranked("!"))))); d != "" {
		t.Error(d)
	}
	var none *CompletionLogprobs
	if none.Join(nil) != nil || none.Join(prompt) != prompt || prompt.Join(nil) != prompt {
		t.Error("joined with nothing, log-probabilities are others")
	}
}
