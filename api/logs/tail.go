package logs

import (
	"bytes"
	"sync"
)

// Tail is a writer that keeps the last bytes written to it, from the beginning of a line. It is
// safe for concurrent use.
type Tail struct {
	max int

	mu   sync.Mutex // guards kept
	kept []byte
}

// NewTail returns a Tail of at most max bytes.
func NewTail(max int) *Tail { return &Tail{max: max} }

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kept)+len(p) > 2*t.max { // in large steps, so that few bytes are moved
		t.kept = append(t.kept[:0], Last(t.kept, t.max)...)
	}
	t.kept = append(t.kept, Last(p, t.max)...)
	return len(p), nil
}

// Last returns at most n of the last bytes, from the beginning of a line, as a copy.
func (t *Tail) Last(n int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(Last(t.kept, min(n, t.max)))
}

// Last returns at most n of the last bytes of a log, from the beginning of a line: the whole
// log if it is shorter. A last line of more than n bytes is cut.
func Last(log []byte, n int) []byte {
	if len(log) <= n {
		return log
	}
	cut := log[len(log)-n:]
	if log[len(log)-n-1] == '\n' {
		return cut
	}
	if i := bytes.IndexByte(cut, '\n'); i >= 0 && i < len(cut)-1 {
		return cut[i+1:]
	}
	return cut
}
