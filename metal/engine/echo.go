package engine

import (
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/sample"
)

// rankedChunk is the maximum number of tokens in a prefill chunk if the
// log-probabilities of the prompt are wanted: each token has a row of logits, on the
// device and on the host, and a row is as long as the vocabulary.
const rankedChunk = 64

// echo is the state of a prompt that is returned to the client.
type echo struct {
	// ranks is true if the log-probabilities of its tokens are wanted; told is the
	// number of tokens that have been returned.
	ranks bool
	told  int
	// only is true if nothing is generated.
	only bool
}

// echo returns the text of the prompt and its first token, which has no
// log-probability.
func (s *serving) echo(a *active, r Request) *Refusal {
	a.echo.only = r.PromptOnly
	if !r.Echo {
		return nil
	}
	if r.Chat != nil {
		return invalid("echo", "only a prompt of text or tokens can be echoed, not a conversation")
	}
	text := ""
	if r.Prompt != nil {
		text = *r.Prompt
	} else {
		var err error
		if text, err = s.tok.Decode(a.tokens, false); err != nil {
			return invalid("prompt", "%v", err)
		}
	}
	var first []sample.Ranked
	if r.Logprobs != nil {
		a.echo.ranks, a.echo.told = true, 1
		first = []sample.Ranked{{Chosen: sample.Likely{ID: a.tokens[0]}}}
	}
	a.stream.pushPrompt(text, first)
	return nil
}

// ranking reports whether log-probabilities of the prompt are still to be computed.
// What is remembered of prompts has none, so all of it is computed until then.
func (a *active) ranking() bool { return a.echo.ranks && a.echo.told < a.prompt }

// chunk returns the maximum number of tokens in the request's next prefill chunk;
// most is that of the back end.
func (a *active) chunk(most int) int {
	if a.ranking() {
		return min(most, rankedChunk)
	}
	return most
}

// ranked returns the part of a row whose logits rank a token of the prompt that was
// not returned yet: n positions from first on, each for the token after it.
func (a *active) ranked(r batch.Row) (first, n int) {
	if !a.ranking() {
		return 0, 0
	}
	first = max(r.Start, a.echo.told-1)
	return first, max(0, min(r.Start+r.Length, a.prompt-1)-first)
}

// span is n rows of logits from out on, for the positions of a request from first on.
type span struct{ first, n, out int }

// rankedRow is what came of a span.
type rankedRow struct {
	tokens []sample.Ranked
	err    error
}

// rank computes the log-probabilities of all tokens of prompts that a step ranks.
func (l *looping) rank(f *flight, logits func(row int) []float32) {
	f.ranked = make([]rankedRow, len(f.step.Rows))
	type job struct {
		a             *active
		row, at, from int
	}
	var jobs []job
	for i, span := range f.spans {
		a := l.active[f.step.Rows[i].ID]
		if a == nil || span.n == 0 { // it ended while this step was under way
			continue
		}
		f.ranked[i].tokens = make([]sample.Ranked, span.n)
		for k := range span.n {
			jobs = append(jobs, job{a, i, k, span.first + k})
		}
	}
	errs := make([]error, len(jobs))
	l.share(len(jobs), func(_ *hand, i int) {
		j := jobs[i]
		f.ranked[j.row].tokens[j.at], errs[i] = sample.Rank(logits(f.spans[j.row].out+j.at), j.a.tokens[j.from+1], *j.a.logprobs)
	})
	for i, err := range errs {
		if r := &f.ranked[jobs[i].row]; r.err == nil {
			r.err = err
		}
	}
}

// tellRanked hands out what a step ranked of a prompt.
func (l *looping) tellRanked(a *active, r rankedRow) (alive bool) {
	if r.err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: "cannot rank the tokens of the prompt: " + r.err.Error()}})
		return false
	}
	if len(r.tokens) > 0 {
		a.echo.told += len(r.tokens)
		a.stream.pushPrompt("", r.tokens)
	}
	return true
}
