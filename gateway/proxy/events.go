package proxy

import (
	"bytes"
	"fmt"
	"io"

	"metalfleet.dev/metalfleet/api/dialect"
)

// blocks cuts a stream into blocks of whole events, one per read. Bytes after the last
// empty line are held back: a partial event would corrupt an error event after it.
type blocks struct {
	*held
	from io.Reader
	of   *dialect.Dialect
	sent int // bytes at the front that were returned
	end  int // bytes read; those after sent are not returned yet
	// last is the beginning of the last event; of the first one that reports an error, once that failed.
	last   []byte
	failed bool
	err    error
}

// eventBytes bounds one event.
const eventBytes = 8 << 20

// newBlocks reads into memory that the caller frees; no block may be used after it.
func newBlocks(from io.Reader, of *dialect.Dialect, memory *held) *blocks {
	return &blocks{held: memory, from: from, of: of}
}

// next returns the events that one read completes, valid until the next call. After the
// last block it returns none and the reason: io.EOF for a regular end.
func (b *blocks) next() ([]byte, error) {
	rest := b.bytes[b.sent:b.end]
	b.shrink(rest)
	b.end = copy(b.bytes, rest)
	b.sent = 0
	for b.err == nil {
		if b.end == len(b.bytes) {
			if err := b.grow(eventBytes); err != nil {
				b.err = fmt.Errorf("hold back an event: %w", err)
				break
			}
		}
		n, err := b.from.Read(b.bytes[b.end:])
		from := max(0, b.end-1) // the empty line may span two reads
		b.end += n
		b.err = err
		if at := bytes.LastIndex(b.bytes[from:b.end], []byte("\n\n")); at >= 0 {
			b.sent = from + at + 2
			b.note(b.bytes[:b.sent])
			return b.bytes[:b.sent], nil
		}
	}
	return nil, b.err
}

// note remembers the beginning of a block's last event. An error is the last one, although a
// Mac may send more.
func (b *blocks) note(block []byte) {
	if b.failed {
		return
	}
	event, most := b.of.Failure(block), dialect.ErrorBytes
	if b.failed = event != nil; !b.failed {
		event, most = block[:len(block)-2], dialect.EndBytes
		if i := bytes.LastIndex(event, []byte("\n\n")); i >= 0 {
			event = event[i+2:]
		}
	}
	b.last = append(b.last[:0], event[:min(len(event), most)]...)
}

// ended reports whether the stream ended with its last event, or an error event. A partial
// event after that means that it was truncated.
func (b *blocks) ended() bool { return b.end == b.sent && b.of.Ends(b.last) }

// status of the error that ended the stream; 0 if none did.
func (b *blocks) status() int { return b.of.ErrorStatus(b.last) }
