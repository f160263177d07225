// Package admission makes "the engine took the request" a value: nothing may
// be written to a client without one.
//
// It owns the order of an engine's events: Admitted, then text, then exactly
// one Finished; and the door to the response, which only an Admitted opens: the
// handlers of text routes are given a Door and no http.ResponseWriter, so that
// a 200 before the engine's word does not compile. It refuses a stream that
// breaks the order of events.
//
// Start reading at Await, then Door.
package admission

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"metalfleet.dev/metalfleet/metal/wire"
)

// ErrOrder says that an engine broke the order of events.
var ErrOrder = errors.New("engine broke the order of events")

// Stream is the engine's side of one request.
type Stream interface {
	// Recv returns the next event, io.EOF after the last one.
	Recv() (*wire.GenerateEvent, error)
}

// Admitted is a request that passed every check of the engine. Only Await
// makes one, and its answer can be read from it alone.
type Admitted struct {
	stream       Stream
	promptTokens int
	finished     bool
}

// PromptTokens are those that the engine counted.
func (a *Admitted) PromptTokens() int { return a.promptTokens }

// Await waits for the engine's word. Its error is the engine's, or ErrOrder.
func Await(s Stream) (*Admitted, error) {
	event, err := s.Recv()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the stream ended before Admitted", ErrOrder)
	}
	if err != nil {
		return nil, err
	}
	if event.GetAdmitted() == nil {
		return nil, fmt.Errorf("%w: %T before Admitted", ErrOrder, event.GetEvent())
	}
	return &Admitted{stream: s, promptTokens: int(event.GetAdmitted().GetPromptTokens())}, nil
}

// Next returns either more of the answer or the end, which comes exactly once. An
// error means that the answer is not whole.
func (a *Admitted) Next() (more *wire.Delta, end *wire.Finished, err error) {
	if a.finished {
		return nil, nil, fmt.Errorf("%w: read after Finished", ErrOrder)
	}
	event, err := a.stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%w: the stream ended before Finished", ErrOrder)
	}
	if err != nil {
		return nil, nil, err
	}
	switch e := event.GetEvent().(type) {
	case *wire.GenerateEvent_Delta:
		return e.Delta, nil, nil
	case *wire.GenerateEvent_Finished:
		a.finished = true
		return nil, e.Finished, nil
	}
	return nil, nil, fmt.Errorf("%w: %T after Admitted", ErrOrder, event.GetEvent())
}

// Door stands before the response to a request. Refusals are written by whoever
// made it.
type Door struct{ w http.ResponseWriter }

// NewDoor closes a response.
func NewDoor(w http.ResponseWriter) Door { return Door{w} }

// Open gives the response to write an answer to. It panics without a request
// that Await made: who calls it has no answer to write.
func (d Door) Open(a *Admitted) http.ResponseWriter {
	if a == nil || a.stream == nil {
		panic("admission: response opened without an admitted request")
	}
	return d.w
}
