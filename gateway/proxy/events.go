package proxy

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"metalfleet.dev/metalfleet/api/dialect"
)

// blocks cuts a stream of events into blocks of whole events, one for each
// read. Bytes after the last empty line are held back: the beginning of an event
// would corrupt the error that follows it.
type blocks struct {
	from io.Reader
	of   *dialect.Dialect
	buf  *[]byte
	sent int // bytes at the front that were returned
	held int // bytes read; those from sent on are not returned yet
	last []byte
	err  error
}

const (
	// blockBytes are kept for each running stream.
	blockBytes = 8 << 10
	// eventBytes bounds one event.
	eventBytes = 8 << 20
)

var errEventTooLong = errors.New("event is too long")

// buffers are shared by responses: memory without state.
var buffers = sync.Pool{New: func() any { b := make([]byte, blockBytes); return &b }}

func newBlocks(from io.Reader, of *dialect.Dialect) *blocks {
	return &blocks{from: from, of: of, buf: buffers.Get().(*[]byte)}
}

// free gives the buffer back; no block may be used after it.
func (b *blocks) free() {
	if len(*b.buf) == blockBytes {
		buffers.Put(b.buf)
	}
	b.buf = nil
}

// next returns the events that one read completes, valid until the next call.
// After the last block it returns none and the reason: io.EOF for an orderly
// end.
func (b *blocks) next() ([]byte, error) {
	b.held = copy(*b.buf, (*b.buf)[b.sent:b.held])
	b.sent = 0
	for b.err == nil {
		if b.held == len(*b.buf) {
			if b.err = b.grow(); b.err != nil {
				break
			}
		}
		n, err := b.from.Read((*b.buf)[b.held:])
		from := max(0, b.held-1) // the empty line may lie across two reads
		b.held += n
		b.err = err
		if end := bytes.LastIndex((*b.buf)[from:b.held], []byte("\n\n")); end >= 0 {
			b.sent = from + end + 2
			b.note((*b.buf)[:b.sent])
			return (*b.buf)[:b.sent], nil
		}
	}
	return nil, b.err
}

func (b *blocks) grow() error {
	if len(*b.buf) >= eventBytes {
		return errEventTooLong
	}
	bigger := make([]byte, 2*len(*b.buf))
	copy(bigger, *b.buf)
	b.buf = &bigger
	return nil
}

// note remembers how the last event of a block begins.
func (b *blocks) note(block []byte) {
	event := block[:len(block)-2]
	if i := bytes.LastIndex(event, []byte("\n\n")); i >= 0 {
		event = event[i+2:]
	}
	b.last = append(b.last[:0], event[:min(len(event), dialect.EndBytes)]...)
}

// ended reports whether the stream ended with its last event, or an error. Half an
// event after that means that something was cut.
func (b *blocks) ended() bool { return b.held == b.sent && b.of.Ends(b.last) }
