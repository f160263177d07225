package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxTopLogprobs is the maximum of top_logprobs of a chat completion,
	// maxLogprobs the maximum of logprobs of a completion, which has the same
	// meaning.
	maxTopLogprobs = 20
	maxLogprobs    = 5
	// maxBiased is the maximum number of tokens in logit_bias, each with a bias
	// from -maxBias to maxBias.
	maxBiased = 300
	maxBias   = 100
)

// unlikely is the log-probability of an impossible token: JSON has no infinity.
const unlikely = -9999

// Likely is a token as the engine spells it, and the natural logarithm of its
// probability.
type Likely struct {
	Bytes   []byte
	Logprob float32
}

// Ranked is a token of the output and its most likely alternatives, in
// descending order of probability.
type Ranked struct {
	Likely
	Top []Likely
}

// ChatLogprobs are the log-probabilities of a choice or chunk of a chat
// completion.
type ChatLogprobs struct {
	Content []ChatLogprob `json:"content"`
	// Refusal is always null, because no model has a separate field for
	// refusals.
	Refusal *[]ChatLogprob `json:"refusal"`
}

// ChatLogprob is one token of the output.
type ChatLogprob struct {
	TokenLogprob
	TopLogprobs []TokenLogprob `json:"top_logprobs"`
}

// TokenLogprob is a token and its log-probability. Bytes is set for tokens that
// are not complete characters: the bytes of several tokens form the text.
type TokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// NewChatLogprobs converts log-probabilities to the format of chat completions.
// The result is an empty list, not null, when there are none.
func NewChatLogprobs(ranked []Ranked) *ChatLogprobs {
	out := &ChatLogprobs{Content: []ChatLogprob{}}
	for _, r := range ranked {
		one := ChatLogprob{TokenLogprob: tokenLogprob(r.Likely), TopLogprobs: []TokenLogprob{}}
		for _, l := range r.Top {
			one.TopLogprobs = append(one.TopLogprobs, tokenLogprob(l))
		}
		out.Content = append(out.Content, one)
	}
	return out
}

func tokenLogprob(l Likely) TokenLogprob {
	t := TokenLogprob{Token: written(l.Bytes, ""), Logprob: finite(l.Logprob), Bytes: make([]int, 0, len(l.Bytes))}
	for _, b := range l.Bytes {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}

func finite(v float32) float32 { return max(v, unlikely) }

// written returns the text of a token. Incomplete characters are written as in
// OpenAI's API: \x and two digits for each byte, in completions with the prefix
// "bytes:".
func written(token []byte, mark string) string {
	if utf8.Valid(token) {
		return string(token)
	}
	var b strings.Builder
	b.WriteString(mark)
	for len(token) > 0 {
		r, n := utf8.DecodeRune(token)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, token[0])
		} else {
			b.Write(token[:n])
		}
		token = token[n:]
	}
	return b.String()
}

// CompletionLogprobs are the log-probabilities of a choice or chunk of a
// completion: lists with one element for each token.
type CompletionLogprobs struct {
	Tokens []string `json:"tokens"`
	// TokenLogprobs has null for the first token of a prompt, and so has
	// TopLogprobs.
	TokenLogprobs []*float32 `json:"token_logprobs"`
	// TopLogprobs are the most likely tokens by their text, and the sampled
	// one.
	TopLogprobs []map[string]float32 `json:"top_logprobs"`
	// TextOffset is the number of characters of the text before each token.
	TextOffset []int `json:"text_offset"`
}

// CompletionOffsets counts characters over the chunks of one choice. The zero
// value starts at 0.
type CompletionOffsets struct {
	characters int
	open       []byte // of an incomplete character
}

// Logprobs converts log-probabilities to the format of completions.
func (o *CompletionOffsets) Logprobs(ranked []Ranked) *CompletionLogprobs {
	out := &CompletionLogprobs{Tokens: []string{}, TokenLogprobs: []*float32{}, TopLogprobs: []map[string]float32{}, TextOffset: []int{}}
	for _, r := range ranked {
		text, logprob := written(r.Bytes, "bytes:"), finite(r.Logprob)
		out.Tokens = append(out.Tokens, text)
		out.TokenLogprobs = append(out.TokenLogprobs, &logprob)
		top := map[string]float32{text: logprob}
		for _, l := range r.Top {
			// Of two tokens with the same text, the more likely one counts.
			name := written(l.Bytes, "bytes:")
			if known, ok := top[name]; !ok || l.Logprob > known {
				top[name] = finite(l.Logprob)
			}
		}
		out.TopLogprobs = append(out.TopLogprobs, top)
		out.TextOffset = append(out.TextOffset, o.characters)
		o.pass(r.Bytes)
	}
	return out
}

// Prompt converts the log-probabilities of an echoed prompt, of which the first
// token has none. Offsets are those of the text: a token that the tokenizer put in
// front of it has no characters there, and a space that it put in front of a word
// does not count.
func (o *CompletionOffsets) Prompt(text string, ranked []Ranked) *CompletionLogprobs {
	var out *CompletionLogprobs
	for i, r := range ranked {
		before := *o
		one := o.Logprobs(ranked[i : i+1])
		switch after, spaced := bytes.CutPrefix(r.Bytes, []byte(" ")); {
		case before.characters > 0 || len(before.open) > 0 || strings.HasPrefix(text, string(r.Bytes)):
		case spaced && strings.HasPrefix(text, string(after)):
			*o = before
			o.pass(after)
		case i == 0:
			*o = before
		}
		if i == 0 {
			out, one.TokenLogprobs[0], one.TopLogprobs[0] = one, nil, nil
			continue
		}
		out.add(one)
	}
	*o = CompletionOffsets{characters: utf8.RuneCountInString(text)}
	return out
}

// Join returns the log-probabilities of a prompt and of the output after it; either
// may be nil.
func (l *CompletionLogprobs) Join(more *CompletionLogprobs) *CompletionLogprobs {
	if l == nil || more == nil {
		return cmp.Or(l, more)
	}
	l.add(more)
	return l
}

func (l *CompletionLogprobs) add(more *CompletionLogprobs) {
	l.Tokens, l.TokenLogprobs = append(l.Tokens, more.Tokens...), append(l.TokenLogprobs, more.TokenLogprobs...)
	l.TopLogprobs, l.TextOffset = append(l.TopLogprobs, more.TopLogprobs...), append(l.TextOffset, more.TextOffset...)
}

// pass counts the characters that these bytes complete.
func (o *CompletionOffsets) pass(bytes []byte) {
	o.open = append(o.open, bytes...)
	for len(o.open) > 0 && utf8.FullRune(o.open) {
		_, n := utf8.DecodeRune(o.open)
		o.open = o.open[n:]
		o.characters++
	}
}

// decodeBias accepts an object of token ids and numbers.
func (p *Parameters) decodeBias(param string, raw json.RawMessage) error {
	p.LogitBias = map[int32]float64{}
	return decodeMembers(raw, param, func(name string) (field, error) {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != name {
			return nil, Invalid(param, "'%s' must use token ids (integers from 0) as keys, not '%s'.", param, Shorten(name))
		}
		if len(p.LogitBias) == maxBiased {
			return nil, Invalid(param, "'%s' must have at most %d tokens.", param, maxBiased)
		}
		return func(param string, raw json.RawMessage) error {
			var v *float64
			if err := floatInto(&v, -maxBias, maxBias)(param, raw); err != nil {
				return err
			}
			p.LogitBias[int32(id)] = *v
			return nil
		}, nil
	})
}

// TopLogprobsWanted returns the requested number of alternatives for each
// token; ok is false when no log-probabilities are requested.
func (r *ChatRequest) TopLogprobsWanted() (n int, ok bool) {
	if r.TopLogprobs != nil {
		n = *r.TopLogprobs
	}
	return n, r.Logprobs
}

func (r *ChatRequest) checkLogprobs() error {
	if !r.Logprobs && r.TopLogprobs != nil && *r.TopLogprobs > 0 {
		return Invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
	}
	return nil
}

func intInto(to **int, low, high int64) field {
	return integer(low, high, func(v int64) {
		n := int(v)
		*to = &n
	})
}
