// Package admission represents "the engine accepted the request" as a value:
// nothing may be written to a client without one.
//
// It owns the order of an engine's events: Admitted, then text, then exactly one
// Finished; and the door to the response, which only an Admitted opens: the
// handlers of text routes get a Door and no http.ResponseWriter, so a 200 before
// the engine's admission does not compile. It rejects a stream that breaks the
// order of events.
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

// ErrOrder means that an engine broke the order of events.
var ErrOrder = errors.New("engine broke the order of events")

// Stream is the engine's side of one request.
type Stream interface {
	// Recv returns the next event, io.EOF after the last one.
	Recv() (*wire.GenerateEvent, error)
}

// Admitted is a request that passed every check of the engine. Only Await returns
// one, and its answer can be read only from it.
type Admitted struct {
	stream       Stream
	promptTokens int
	finished     bool
}

// PromptTokens is the number of prompt tokens that the engine counted.
func (a *Admitted) PromptTokens() int { return a.promptTokens }

// Await waits for the engine's admission. Its error is the engine's, or ErrOrder.
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

// Next returns either the next part of the answer or its end, exactly once. An
// error means that the answer is incomplete.
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

// Door gives access to the response of a request once it is admitted. The creator
// of the Door writes refusals.
type Door struct{ w http.ResponseWriter }

// NewDoor returns a closed door to a response.
func NewDoor(w http.ResponseWriter) Door { return Door{w} }

// informer sends a header before the response begins.
type informer interface{ Inform(name, value string) }

// Inform sends a header of a request from Await before its response is complete.
func (d Door) Inform(_ *Admitted, name, value string) {
	if w, ok := d.w.(informer); ok {
		w.Inform(name, value)
	}
}

// Open returns the response to write the answer to. It panics without a request
// from Await.
func (d Door) Open(a *Admitted) http.ResponseWriter {
	if a == nil || a.stream == nil {
		panic("admission: response opened without an admitted request")
	}
	return d.w
}
