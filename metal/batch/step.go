package batch

// Row is one request's part of a step.
type Row struct {
	ID ID
	// Start is the position of the first token, Length how many there are.
	Start, Length int
	// Sample says that the last position yields the next token.
	Sample bool
}

// Decode reports whether the row only extends an answer by its newest token.
func (r Row) Decode() bool { return r.Length == 1 && r.Sample && r.Start > 0 }

// Step is what to compute next.
type Step struct {
	// Preempted requests lost their KV; drop it before anything else.
	Preempted []ID
	// Rows of answers come first, pieces of prompts last.
	Rows []Row
}

// Tokens of all rows.
func (s Step) Tokens() int {
	n := 0
	for _, r := range s.Rows {
		n += r.Length
	}
	return n
}

// Decodes counts the rows that only extend by the newest token.
func (s Step) Decodes() int {
	n := 0
	for _, r := range s.Rows {
		if r.Decode() {
			n++
		}
	}
	return n
}

// sampled is the first row from at on that samples, or their number.
func (s Step) sampled(at int) int {
	for at < len(s.Rows) && !s.Rows[at].Sample {
		at++
	}
	return at
}

// of a request, so many tokens are in rows.
func (s Step) of(id ID) int {
	for _, r := range s.Rows {
		if r.ID == id {
			return r.Length
		}
	}
	return 0
}
