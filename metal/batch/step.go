package batch

// Row is the part of one request in a step.
type Row struct {
	ID ID
	// Start is the position of the first token, Length the number of tokens.
	Start, Length int
	// Sample: the logits of the last position yield the next token.
	Sample bool
	// Drafts of the tokens are guesses: the last ones, after the newest token that is
	// known (Scheduler.Draft).
	Drafts int
	// EndsPrompt: its only token is the last of a prompt, whose other tokens are in the KV cache.
	EndsPrompt bool
}

// Decode reports whether the row only computes the newest token of a decoding
// request, and drafts after it.
func (r Row) Decode() bool { return r.Length == 1+r.Drafts && r.Sample && r.Start > 0 && !r.EndsPrompt }

// Step describes one forward pass.
type Step struct {
	// Preempted requests lost their KV; the caller must drop it before it
	// computes rows.
	Preempted []ID
	// Rows of decoding requests come first, prefill chunks last.
	Rows []Row
	// Shared: the rows are of several tenants.
	Shared bool
}

// Tokens returns the number of tokens of all rows.
func (s Step) Tokens() int {
	n := 0
	for _, r := range s.Rows {
		n += r.Length
	}
	return n
}

// Decodes returns the number of decode rows.
func (s Step) Decodes() int {
	n := 0
	for _, r := range s.Rows {
		if r.Decode() {
			n++
		}
	}
	return n
}

// Drafts returns the number of drafts of all rows.
func (s Step) Drafts() int {
	n := 0
	for _, r := range s.Rows {
		n += r.Drafts
	}
	return n
}

// sampled is the index of the first row from at on that samples, or
// len(s.Rows).
func (s Step) sampled(at int) int {
	for at < len(s.Rows) && !s.Rows[at].Sample {
		at++
	}
	return at
}

// of is the number of tokens of a request in the step.
func (s Step) of(id ID) int {
	for _, r := range s.Rows {
		if r.ID == id {
			return r.Length
		}
	}
	return 0
}
