package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// answer writes what an admitted request brings. There is none without an
// Admitted, so nothing of an answer can be sent before the engine took the
// request.
type answer struct {
	*handler
	admitted     *admission.Admitted
	form         form
	includeUsage bool
	id           string
}

// whole collects the answer and writes it as one body. An error means that
// nothing was written.
func (a answer) whole(ctx context.Context, door admission.Door) error {
	var text strings.Builder
	var ranked []openai.Ranked
	for {
		more, end, err := a.admitted.Next()
		if err != nil {
			return ended(ctx, err)
		}
		text.WriteString(more.GetText())
		ranked = append(ranked, rankedOf(more)...)
		if end == nil {
			continue
		}
		reason, ok := reasonOf(end)
		if !ok {
			return ended(ctx, failure(end))
		}
		w, usage := door.Open(a.admitted), usageOf(end.GetUsage())
		a.stopped(end)
		agentapi.SetTokens(w.Header(), agentapi.HeaderTokens, usage.PromptTokens, usage.CompletionTokens)
		return writeJSON(w, a.form.whole(piece{text.String(), ranked}, reason, usage))
	}
}

// event is what one Next returned.
type event struct {
	more *wire.Delta
	end  *wire.Finished
	err  error
}

// stream writes the answer as it comes. An error means that nothing was
// written; once something was, errors are told inside the stream.
func (a answer) stream(ctx context.Context, cancel context.CancelFunc, door admission.Door) error {
	events := make(chan event)
	var reader sync.WaitGroup
	reader.Go(func() { a.read(ctx, events) })
	defer reader.Wait()
	defer cancel()

	w := door.Open(a.admitted)
	out := &eventStream{EventWriter: openai.NewEventWriter(w), header: w.Header(), opening: a.form.opening()}
	silence := time.NewTicker(a.KeepAlive)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return a.fail(ctx, out, ctx.Err())
		case <-silence.C:
			if err := out.comment(); err != nil {
				return fmt.Errorf("%w: %w", errClientGone, err)
			}
		case e := <-events:
			silence.Reset(a.KeepAlive)
			if e.err != nil {
				return a.fail(ctx, out, e.err)
			}
			if e.end != nil {
				return a.finish(ctx, out, e.end)
			}
			p := piece{e.more.GetText(), rankedOf(e.more)}
			if p.text == "" && p.ranked == nil {
				continue // a character is not whole yet
			}
			if err := out.send(a.form.text(p)); err != nil {
				return fmt.Errorf("%w: %w", errClientGone, err)
			}
		}
	}
}

// read hands on the engine's events until the last one or the end of ctx.
func (a answer) read(ctx context.Context, events chan<- event) {
	for {
		var e event
		e.more, e.end, e.err = a.admitted.Next()
		select {
		case events <- e:
		case <-ctx.Done():
			return
		}
		if e.end != nil || e.err != nil {
			return
		}
	}
}

// finish ends a stream with its last chunks, or with the engine's error.
func (a answer) finish(ctx context.Context, out *eventStream, end *wire.Finished) error {
	reason, ok := reasonOf(end)
	if !ok {
		return a.fail(ctx, out, failure(end))
	}
	usage := usageOf(end.GetUsage())
	a.stopped(end)
	agentapi.SetTokens(out.header, http.TrailerPrefix+agentapi.HeaderTokens, usage.PromptTokens, usage.CompletionTokens)
	err := out.send(a.form.finish(reason))
	if err == nil && a.includeUsage {
		err = out.send(a.form.usage(usage))
	}
	if err == nil {
		err = a.close(out)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// stopped tells a form that wants to know by what the text was ended.
func (a answer) stopped(end *wire.Finished) {
	if t, ok := a.form.(teller); ok {
		t.stopped(end.GetStop())
	}
}

// close ends a stream whose last chunk was sent.
func (a answer) close(out *eventStream) error {
	if _, named := a.form.(teller); named {
		out.End()
		return nil
	}
	return out.Done()
}

// breakOff ends a stream that had begun with an error, in the form's own words.
func (a answer) breakOff(out *eventStream, e *openai.Error) error {
	t, named := a.form.(teller)
	if !named {
		return out.Fail(e)
	}
	defer out.End()
	return out.one(t.failed(e, a.id))
}

// fail ends a stream with an error event, which no client takes for the end of
// an answer. Where nothing was sent yet the error is returned, and becomes an
// ordinary refusal.
func (a answer) fail(ctx context.Context, out *eventStream, cause error) error {
	err := ended(ctx, cause)
	if !out.Started() || errors.Is(err, errClientGone) {
		return err
	}
	e, _ := refused(err)
	a.Log.Info("stream broken off", "requestID", a.id, "reason", e.Error())
	if err := a.breakOff(out, e); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// failure is the error of an engine's last event.
func failure(end *wire.Finished) error {
	if end.GetError() != nil {
		return wire.Refuse(end.GetError())
	}
	return fmt.Errorf("%w: finished for the reason %s without an error", admission.ErrOrder, end.GetReason())
}

// eventStream sends the opening chunk before the first event. It waits for
// that event: as long as nothing was sent, another Mac may take over.
type eventStream struct {
	*openai.EventWriter
	header  http.Header // and trailer
	opening any
}

func (s *eventStream) send(chunk any) error {
	if s.opening != nil {
		if err := s.one(s.opening); err != nil {
			return err
		}
		s.opening = nil
	}
	return s.one(chunk)
}

// one sends a chunk, or what a form with named events made of it.
func (s *eventStream) one(chunk any) error {
	events, named := chunk.([]openai.NamedEvent)
	if !named {
		return s.Send(chunk)
	}
	for _, e := range events {
		if err := s.Event(e.Name, e.Data); err != nil {
			return err
		}
	}
	return nil
}

func (s *eventStream) comment() error { return s.Comment(openai.KeepAlive) }

// writeJSON writes a whole answer. Nothing is returned once writing began: a
// client that is gone cannot be told so.
func writeJSON(w http.ResponseWriter, v any) error {
	body, err := openai.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// boundedWriter gives every write a deadline: a client that never reads must
// not hold an engine.
type boundedWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
}

func newBoundedWriter(w http.ResponseWriter, timeout time.Duration) *boundedWriter {
	return &boundedWriter{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout}
}

// Unwrap lets http.ResponseController reach the connection.
func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *boundedWriter) Write(p []byte) (int, error) {
	if err := b.rc.SetWriteDeadline(time.Now().Add(b.timeout)); err != nil {
		return 0, fmt.Errorf("bound a write: %w", err)
	}
	return b.ResponseWriter.Write(p)
}

// FlushError sends what was written. The deadline is lifted after it: with
// HTTP/2 it would end a stream that only waits for the engine.
func (b *boundedWriter) FlushError() error {
	if err := b.rc.SetWriteDeadline(time.Now().Add(b.timeout)); err != nil {
		return fmt.Errorf("bound a write: %w", err)
	}
	if err := b.rc.Flush(); err != nil {
		return err
	}
	return b.rc.SetWriteDeadline(time.Time{})
}
