package output

import (
	"unsafe"

	"metalfleet.dev/metalfleet/metal/sample"
)

// pendingLogprobs are log-probabilities of tokens whose text is not shown yet, because
// a character is incomplete or the text may belong to a stop string. Those that are
// returned always add up to the text that is shown, and a stop string has none.
type pendingLogprobs struct {
	waiting []pendingToken
	// bytes of waiting in memory.
	bytes int64
	// decoded bytes of the answer were decoded so far, and shown of them were shown.
	decoded, shown int
}

// pendingToken is a token that has no text before the byte at.
type pendingToken struct {
	at     int
	ranked sample.Ranked
}

// size in memory, with the room that a list of them has.
func (t pendingToken) size() int64 { return t.ranked.Bytes() + int64(unsafe.Sizeof(t)) }

// add takes a token that brought this many bytes of text. ranked is nil if its
// log-probability is not wanted.
func (p *pendingLogprobs) add(ranked *sample.Ranked, bytes int) {
	if ranked != nil {
		t := pendingToken{p.decoded, *ranked}
		p.waiting, p.bytes = append(p.waiting, t), p.bytes+t.size()
	}
	p.decode(bytes)
}

// decode notes text of tokens that were added before.
func (p *pendingLogprobs) decode(bytes int) { p.decoded += bytes }

// drop forgets the tokens that brought no text: they belong to a call. They are the last.
func (p *pendingLogprobs) drop() {
	n := len(p.waiting)
	for n > 0 && p.waiting[n-1].at >= p.decoded {
		n--
		p.bytes -= p.waiting[n].size()
	}
	clear(p.waiting[n:])
	p.waiting = p.waiting[:n]
}

// show notes that more bytes are shown, and returns the tokens whose text begins in
// what is shown.
func (p *pendingLogprobs) show(bytes int) []sample.Ranked {
	p.shown += bytes
	n := 0
	for n < len(p.waiting) && p.waiting[n].at < p.shown {
		n++
	}
	return p.take(n)
}

// flush returns the rest: the answer is over and was not cut.
func (p *pendingLogprobs) flush() []sample.Ranked { return p.take(len(p.waiting)) }

func (p *pendingLogprobs) take(n int) (out []sample.Ranked) {
	for i, t := range p.waiting[:n] {
		out, p.bytes = append(out, t.ranked), p.bytes-t.size()
		p.waiting[i] = pendingToken{}
	}
	p.waiting = p.waiting[n:]
	return out
}
