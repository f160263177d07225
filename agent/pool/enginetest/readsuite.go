package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/wire"
)

// RunReader checks the same of an engine that answers once, with vectors or
// scores; what it loads must read a few lists of 2,048 texts for longer than the suite
// takes to end them.
func RunReader(t *testing.T, p Program) {
	t.Run("hello names the assignment, the configuration and the process", func(t *testing.T) { p.hello(t) })
	t.Run("the process that listens is known while it is stopped", func(t *testing.T) { p.stopped(t) })
	t.Run("a request is answered with its result", func(t *testing.T) { p.read(t) })
	t.Run("a request of another kind is refused with a type and leaves no state", func(t *testing.T) { p.misread(t) })
	t.Run("a cancelled request leaves no state", func(t *testing.T) { p.unread(t) })
	t.Run("limits are answered with the engine's memory", func(t *testing.T) { p.limits(t) })
	t.Run("a trim reports the bytes it freed", func(t *testing.T) { p.trim(t) })
	t.Run("an abort ends running requests with a typed error and the engine keeps running", func(t *testing.T) {
		p.endReading(t, wire.Code_CODE_ABORTED, func(r *running) {
			if a, err := r.Abort(bounded(t), &wire.AbortRequest{Reason: "the suite wants it"}); err != nil || a.GetAborted() != lists {
				t.Errorf("%v, %v", a, err)
			}
			if n, err := r.ask(bounded(t), []string{"a"}); err != nil || n < 1 {
				t.Errorf("after an abort: %d, %v", n, err)
			}
		})
	})
	t.Run("shutdown cancels running requests with a typed error and exits with 0", func(t *testing.T) {
		p.endReading(t, wire.Code_CODE_CANCELLED, func(r *running) {
			if _, err := r.Shutdown(bounded(t), &wire.ShutdownRequest{}); err != nil {
				t.Error(err)
			}
			r.exits(t)
		})
	})
}

// ask embeds texts or ranks them as documents, and returns how many tokens they
// had.
func (r *running) ask(ctx context.Context, texts []string) (int64, error) {
	status, err := r.Watch(ctx, &wire.WatchRequest{})
	if err != nil {
		return 0, err
	}
	s, err := status.Recv()
	if err != nil {
		return 0, err
	}
	if s.GetTask() == wire.Task_TASK_RERANK {
		got, err := r.Rerank(ctx, &wire.RerankRequest{Id: "suite", Query: "one", Documents: texts, Truncate: true})
		if err == nil && len(got.GetScores()) != len(texts) {
			return 0, fmt.Errorf("%d scores of %d documents", len(got.GetScores()), len(texts))
		}
		return got.GetUsage().GetPromptTokens(), err
	}
	got, err := r.Embed(ctx, &wire.EmbedRequest{Id: "suite", Texts: texts, Truncate: true})
	if err == nil && len(got.GetVectors()) != len(texts) {
		return 0, fmt.Errorf("%d vectors of %d texts", len(got.GetVectors()), len(texts))
	}
	return got.GetUsage().GetPromptTokens(), err
}

// lists of many texts, asked for at once, take a while.
const lists = 6

func many() []string { return slices.Repeat([]string{strings.Repeat("one two three ", 100)}, 2048) }

func (p Program) read(t *testing.T) {
	r := p.start(t).ready(t)
	if n, err := r.ask(bounded(t), []string{"one", "two three"}); err != nil || n < 3 {
		t.Errorf("%d tokens, %v", n, err)
	}
	r.idle(t)
}

func (p Program) misread(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), prompt(4))
	if err == nil {
		_, err = stream.Recv()
	}
	if got := wire.RefusalOf(err); got.GetCode() != wire.Code_CODE_INVALID || got.GetParam() != "model" {
		t.Errorf("%v: %v", err, got)
	}
	r.idle(t)
}

func (p Program) unread(t *testing.T) {
	r := p.start(t).ready(t)
	ctx, cancel := context.WithCancel(bounded(t))
	done := make(chan error, 1)
	go func() {
		_, err := r.ask(ctx, many())
		done <- err
	}()
	r.busy(t)
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled request was answered")
	}
	r.idle(t)
}

// endReading runs a long request until end ends it.
func (p Program) endReading(t *testing.T, code wire.Code, end func(*running)) {
	r := p.start(t).ready(t)
	done := make(chan error, lists)
	for range lists {
		go func() {
			_, err := r.ask(bounded(t), many())
			done <- err
		}()
	}
	r.runs(t, func(n int64) bool { return n == lists })
	end(r)
	for range lists {
		if got := wire.RefusalOf(<-done); got.GetCode() != code {
			t.Errorf("a running request ended with %v, want %v", got, code)
		}
	}
}

// busy waits until something runs, idle until nothing does.
func (r *running) busy(t *testing.T) { r.runs(t, func(n int64) bool { return n > 0 }) }
func (r *running) idle(t *testing.T) { r.runs(t, func(n int64) bool { return n == 0 }) }

func (r *running) runs(t *testing.T, want func(int64) bool) {
	t.Helper()
	watch, err := r.Watch(bounded(t), &wire.WatchRequest{IntervalMilliseconds: 20})
	for err == nil {
		var s *wire.Status
		if s, err = watch.Recv(); err == nil && want(s.GetActivity().GetRunning()+s.GetActivity().GetQueued()) {
			return
		}
	}
	t.Errorf("it never runs as it should: %v", err)
}
