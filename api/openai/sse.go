package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// errStreamEnded is returned for an event after the end of the stream.
var errStreamEnded = errors.New("event stream has ended")

// errLineTooLong is returned for an event larger than the reader's limit.
var errLineTooLong = errors.New("event is too long")

var doneData = []byte("[DONE]")

// KeepAlive is the comment that keeps an idle stream open.
const KeepAlive = "keep-alive"

// keptBuffer is the largest buffer that a stream keeps for its next event.
const keptBuffer = 64 << 10

// EventWriter writes a stream of server-sent events, with one write and one
// flush for each event. The first event sends the header. It is not safe for
// concurrent use.
type EventWriter struct {
	w       http.ResponseWriter
	flush   func() error
	started bool
	ended   bool
	buf     bytes.Buffer
	written int64
}

// NewEventWriter returns a writer that sends nothing before the first event, so
// that a request can still be rejected with a status.
func NewEventWriter(w http.ResponseWriter) *EventWriter {
	return &EventWriter{w: w, flush: http.NewResponseController(w).Flush}
}

// Started reports whether the header has been sent: from then on, only Fail can
// report an error to the client.
func (e *EventWriter) Started() bool { return e.started }

// Written is how many bytes were written.
func (e *EventWriter) Written() int64 { return e.written }

// Send writes v as one event.
func (e *EventWriter) Send(v any) error {
	data, err := Marshal(v)
	if err != nil {
		return err
	}
	return e.write("data: ", data)
}

// NamedEvent is an event of a stream with event names.
type NamedEvent struct {
	Name string
	Data any
}

// Event writes v as one event with a name.
func (e *EventWriter) Event(name string, v any) error {
	data, err := Marshal(v)
	if err != nil {
		return err
	}
	return e.write("event: "+name+"\ndata: ", data)
}

// End marks a stream that does not end with [DONE] as complete.
func (e *EventWriter) End() { e.ended = true }

// Comment writes a comment, which clients ignore. Newlines in it are dropped.
func (e *EventWriter) Comment(text string) error {
	text = strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
	return e.write(": ", []byte(text))
}

// Done ends the stream successfully.
func (e *EventWriter) Done() error {
	if err := e.write("data: ", doneData); err != nil {
		return err
	}
	e.ended = true
	return nil
}

// Fail ends the stream with an error event. No [DONE] follows, so that no
// client takes the response for complete. Before the first event, it sends an
// error response with the error's status instead.
func (e *EventWriter) Fail(err error) error {
	if e.ended {
		return errStreamEnded
	}
	if !e.started {
		e.started, e.ended = true, true
		return WriteError(e.w, err)
	}
	if err := e.Send(AsError(err)); err != nil {
		return err
	}
	e.ended = true
	return nil
}

func (e *EventWriter) write(prefix string, data []byte) error {
	if e.ended {
		return errStreamEnded
	}
	if !e.started {
		e.started = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		e.w.WriteHeader(http.StatusOK)
	}
	e.buf.Reset()
	e.buf.WriteString(prefix)
	e.buf.Write(data)
	e.buf.WriteString("\n\n")
	e.written += int64(e.buf.Len())
	defer func() {
		if e.buf.Cap() > keptBuffer {
			e.buf = bytes.Buffer{}
		}
	}()
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := e.flush(); err != nil {
		return fmt.Errorf("flush event: %w", err)
	}
	return nil
}

// maxEventBytes is the maximum size of an event that the reader accepts.
const maxEventBytes = 8 << 20

// EventReader reads a stream of server-sent events. Lines end in LF or CRLF.
type EventReader struct {
	r   *bufio.Reader
	err error
}

// NewEventReader returns a reader of r.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{r: bufio.NewReader(r)}
}

// Next returns the data of the next event. It returns io.EOF after [DONE],
// io.ErrUnexpectedEOF if the stream ends before, and an *Error (status 200,
// because the stream had begun) for an error event. It skips comments.
func (e *EventReader) Next() ([]byte, error) {
	if e.err != nil {
		return nil, e.err
	}
	data, err := e.next()
	if err != nil {
		e.err = err
		return nil, err
	}
	if bytes.HasPrefix(data, doneData) {
		e.err = io.EOF
		return nil, io.EOF
	}
	if failed := parseErrorBody(data); failed != nil {
		failed.Status = http.StatusOK
		e.err = failed
		return nil, failed
	}
	return data, nil
}

// next returns the data lines up to an empty line. It drops an incomplete event
// at the end of the stream, as the standard requires.
func (e *EventReader) next() ([]byte, error) {
	var data []byte
	var any bool
	for size := 0; ; {
		line, err := e.line(maxEventBytes - size)
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("read event: %w", err)
		}
		size += len(line)
		if len(line) == 0 {
			if any {
				return data, nil
			}
			size = 0
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "data" {
			continue // a comment or an unused field
		}
		if any {
			data = append(data, '\n')
		}
		any = true
		data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
	}
}

func (e *EventReader) line(most int) ([]byte, error) {
	var line []byte
	for {
		part, err := e.r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > most {
			return nil, errLineTooLong
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		line = line[:len(line)-1]
		return bytes.TrimSuffix(line, []byte("\r")), nil
	}
}

// NextChunk reads the next event into v, a pointer to a chunk.
func (e *EventReader) NextChunk(v any) error {
	data, err := e.Next()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode event: %w", err)
	}
	return nil
}
