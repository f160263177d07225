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
		{Likely: Likely{[]byte(" é"), -0.5}, Top: []Likely{{[]byte(" é"), -0.5}, {[]byte("\n"), -1.25}}},
		{Likely: Likely{[]byte(" \xf0\x9f"), -3}, Top: []Likely{{[]byte("<"), -0.125}}},
		{Likely: Likely{[]byte("\x98\x80"), 0}},
		{Likely: Likely{[]byte("x"), -2}, Top: []Likely{{[]byte("x"), -1}, {[]byte("y"), float32(math.Inf(-1))}}},
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

// In chunks as in one, offsets go on.
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
