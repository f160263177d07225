package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// usageInterval is how often the gateway is informed of the tokens of a response that has
// not begun: a client that leaves before the end has used them.
const usageInterval = 500 * time.Millisecond

// answer writes the response to an admitted request. It requires an Admitted, so
// no part of a response can be sent before the engine accepted the request.
type answer struct {
	*handler
	admitted     *admission.Admitted
	form         form
	includeUsage bool
	// continuousUsage includes the usage so far in each chunk.
	continuousUsage bool
	id              string
	kept            *kept
	// progress reports the progress of the prompt to the client.
	progress bool
	// forms of all choices, of which form is the first; each is the number of
	// choices per prompt, and ask admits another one.
	forms []form
	each  int
	ask   func(i int) (*admission.Admitted, error)
}

// whole collects the response and writes it as one body. An error means that
// nothing was written.
func (a answer) whole(ctx context.Context, cancel context.CancelFunc, door admission.Door) (err error) {
	events, stop := a.begin(ctx, cancel)
	defer stop()
	got := make([]gathered, len(a.forms))
	all, u := make([]choice, len(a.forms)), used{choices: a.each}
	defer func() { err = a.charged(door, u, err) }()
	report := time.NewTicker(usageInterval)
	defer report.Stop()
	for {
		var e event
		select {
		case <-report.C:
			so := u.soFar(a.admitted.PromptTokens())
			door.Inform(a.admitted, agentapi.HeaderTokens, agentapi.TokensValue(so.PromptTokens, so.CompletionTokens))
			continue
		case e = <-events:
		case <-ctx.Done():
			return ended(ctx, ctx.Err())
		}
		if e.err != nil {
			return ended(ctx, e.err)
		}
		u.grow(e)
		if err := a.count(e.more, true); err != nil {
			return err
		}
		if err := toolsOnly(a.forms[e.choice], e.more); err != nil {
			return ended(ctx, err)
		}
		got[e.choice].add(e.more)
		e.written()
		if e.end == nil {
			continue
		}
		reason, ok := reasonOf(e.end)
		if !ok {
			return ended(ctx, failure(e.end))
		}
		all[e.choice] = choice{got[e.choice].piece(reason), reason}
		if u.add(e); u.ended < len(all) {
			continue
		}
		w, usage := door.Open(a.admitted), u.usage
		a.stopped(e.end)
		agentapi.SetTokens(w.Header(), agentapi.HeaderTokens, usage.PromptTokens, usage.CompletionTokens)
		a.textCalls(w.Header(), agentapi.HeaderCalls, u)
		defer front.BreakAfter(ctx, w)()
		return front.WriteJSON(w, a.body(all, usage))
	}
}

// stream writes the response as it arrives. An error means that nothing was
// written; after that, errors are sent inside the stream.
func (a answer) stream(ctx context.Context, cancel context.CancelFunc, door admission.Door) (err error) {
	events, stop := a.begin(ctx, cancel)
	defer stop()
	w, u := door.Open(a.admitted), used{choices: a.each}
	defer func() { err = a.charged(door, u, err) }()
	door.Inform(a.admitted, agentapi.HeaderTokens, agentapi.TokensValue(a.admitted.PromptTokens(), 0))
	out := &eventStream{EventWriter: openai.NewEventWriter(w), header: w.Header(), openings: a.openings(), unless: func() func() { return breakUnread(ctx, w) }}
	a.addUsage(out, &u)
	out.shown = out.usage
	idle := newIdle(a)
	defer idle.Stop()
	for {
		if out.wrote { // not where an event of the engine shows nothing
			out.wrote = false
			idle.Reset(a.KeepAlive)
		}
		select {
		case <-ctx.Done():
			return a.fail(ctx, out, ctx.Err())
		case <-idle.C:
			if err := idle.keepAlive(out, nil); err != nil {
				return front.Gone(err)
			}
		case e := <-events:
			if p := e.more.GetProgress(); p != nil {
				err := idle.progress(out, p)
				if e.written(); err != nil {
					return front.Gone(err)
				}
				continue
			}
			if e.err != nil {
				return a.fail(ctx, out, e.err)
			}
			if e.end != nil {
				idle.finished[e.choice] = true
				if err := a.finish(ctx, out, e, &u); err != nil || u.ended == len(a.forms) || u.failed {
					return err
				}
				continue
			}
			u.grow(e)
			a.addUsage(out, &u)
			if err := a.count(e.more, false); err != nil {
				return a.fail(ctx, out, err)
			}
			err := a.more(out, e)
			if e.written(); err != nil {
				return front.Gone(err)
			}
		}
	}
}

// addUsage adds the usage so far to the next chunks, if the client wants it.
func (a answer) addUsage(out *eventStream, u *used) {
	if a.continuousUsage {
		out.usage = u.soFar(a.admitted.PromptTokens())
	}
}

// more writes the content of an event: reasoning, then text, then tool calls.
func (a answer) more(out *eventStream, e event) error {
	f := a.forms[e.choice]
	if prompt := e.more.GetPrompt(); prompt != nil {
		t, ok := f.(echoes)
		if !ok {
			return fmt.Errorf("%w: the engine echoed a prompt that was not wanted", admission.ErrOrder)
		}
		t.echo(prompt)
		return nil
	}
	out.echo(e.choice, f)
	if t, ok := f.(thinker); ok && e.more.GetReasoning() != "" {
		if chunk := t.thinks(e.more.GetReasoning()); chunk != nil {
			if err := out.send(e.choice, chunk); err != nil {
				return err
			}
		}
	}
	p := piece{text: e.more.GetText(), ranked: rankedOf(e.more.GetLogprobs())}
	if p.text != "" || p.ranked != nil { // else a character is incomplete
		if err := out.send(e.choice, f.text(p)); err != nil {
			return err
		}
	}
	if err := toolsOnly(f, e.more); err != nil {
		return err
	}
	for _, c := range e.more.GetCalls() {
		if chunk := f.(toolCaller).calls(c); chunk != nil {
			if err := out.send(e.choice, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// toolsOnly refuses tool calls for a form that has none.
func toolsOnly(f form, d *wire.Delta) error {
	if _, ok := f.(toolCaller); !ok && len(d.GetCalls()) > 0 {
		return fmt.Errorf("%w: the engine sent tool calls for a request without tools", admission.ErrOrder)
	}
	return nil
}

// finish ends a choice with its last chunk, and after the last choice the stream,
// or fails the stream with the engine's error.
func (a answer) finish(ctx context.Context, out *eventStream, e event, u *used) error {
	reason, ok := reasonOf(e.end)
	if !ok {
		u.failed = true
		return a.fail(ctx, out, failure(e.end))
	}
	u.add(e)
	usage, last := u.usage, u.ended == len(a.forms)
	if last {
		agentapi.SetTokens(out.header, http.TrailerPrefix+agentapi.HeaderTokens, usage.PromptTokens, usage.CompletionTokens)
		a.textCalls(out.header, http.TrailerPrefix+agentapi.HeaderCalls, *u)
	}
	a.stopped(e.end)
	out.echo(e.choice, a.forms[e.choice])
	a.addUsage(out, u)
	err := out.send(e.choice, a.forms[e.choice].finish(reason))
	if err == nil && last && a.includeUsage {
		err = out.send(0, a.form.usage(usage))
	}
	if err == nil && last {
		err = a.close(out)
	}
	if err != nil {
		return front.Gone(err)
	}
	return nil
}

// textCalls counts the tool calls that were returned as text, and marks the
// response.
func (a answer) textCalls(h http.Header, name string, u used) {
	if u.textCalls > 0 {
		a.TextCalls(u.textCalls)
		h.Set(name, agentapi.CallsText)
	}
}

// stopped passes the finish reason to a form that needs it.
func (a answer) stopped(end *wire.Finished) {
	if t, ok := a.form.(eventForm); ok {
		t.stopped(end)
	}
}

// close ends a stream whose last chunk was sent.
func (a answer) close(out *eventStream) error {
	if _, named := a.form.(eventForm); named {
		out.End()
		return nil
	}
	return out.Done()
}

// breakOff ends a stream in progress with an error, in the events of its form.
func (a answer) breakOff(out *eventStream, e *openai.Error) error {
	t, named := a.form.(eventForm)
	if !named {
		return out.Fail(e)
	}
	defer out.End()
	return out.one(t.failed(e, a.id))
}

// fail ends a stream with an error event, which no client mistakes for the end of
// a response. If nothing was sent yet the error is returned, and becomes an
// ordinary refusal.
func (a answer) fail(ctx context.Context, out *eventStream, cause error) error {
	err := ended(ctx, cause)
	if !out.Started() || errors.Is(err, front.ErrClientGone) {
		return err
	}
	e, _ := refused(err)
	a.Log.Info("the stream was aborted", "requestID", a.id, "reason", e.Error())
	if err := a.breakOff(out, e); err != nil {
		return front.Gone(err)
	}
	return nil
}

// failure is the error of an engine's last event.
func failure(end *wire.Finished) error {
	if end.GetError() != nil {
		return wire.Refuse(end.GetError())
	}
	return fmt.Errorf("%w: finished with reason %s but without an error", admission.ErrOrder, end.GetReason())
}

// eventStream sends the opening chunk of a choice before its first event. It
// waits for that event: until something was sent, another Mac may serve the
// request.
type eventStream struct {
	*openai.EventWriter
	header   http.Header // and trailer
	openings []any       // nil if there is none, or it was sent
	// usage so far, for the chunks of a stream that includes it in each; else nil.
	usage *openai.Usage
	// shown is the usage of the last chunk. The opening of a choice repeats it, because
	// it shows no token.
	shown *openai.Usage
	wrote bool // since that was last set to false
	// unless breaks a write off if the answer has to give way before stop is called.
	unless func() (stop func())
}

// echo makes the echoed prompt the opening of its choice.
func (s *eventStream) echo(choice int, f form) {
	if t, ok := f.(echoes); ok {
		if chunk := t.echoed(); chunk != nil {
			s.openings[choice] = chunk
		}
	}
}

func (s *eventStream) send(choice int, chunk any) error {
	if opening := s.openings[choice]; opening != nil {
		now := s.usage
		s.usage = s.shown
		if err := s.one(opening); err != nil {
			return err
		}
		s.usage, s.openings[choice] = now, nil
	}
	return s.one(chunk)
}

// one sends a chunk, or the named events that the form made of it.
func (s *eventStream) one(chunk any) error {
	defer s.unless()()
	s.wrote, s.shown = true, s.usage
	events, named := chunk.([]openai.NamedEvent)
	if !named {
		return s.Send(s.withUsage(chunk))
	}
	for _, e := range events {
		if err := s.Event(e.Name, e.Data); err != nil {
			return err
		}
	}
	return nil
}

// withUsage adds the usage so far to a chunk, unless it has its own.
func (s *eventStream) withUsage(chunk any) any {
	if s.usage == nil {
		return chunk
	}
	usage := openai.ChunkUsage{Present: true, Usage: s.usage}
	switch c := chunk.(type) {
	case openai.ChatCompletionChunk:
		if c.Usage.Usage == nil {
			c.Usage = usage
		}
		return c
	case openai.Completion:
		if c.Usage.Usage == nil {
			c.Usage = usage
		}
		return c
	}
	return chunk
}
