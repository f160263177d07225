package server

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// stuck is a call whose client takes one message and reads no more.
type stuck struct {
	grpc.ServerStream
	ctx  context.Context
	took chan struct{}
}

func (s *stuck) Context() context.Context { return s.ctx }

func (s *stuck) Send(*wire.GenerateEvent) error {
	select {
	case s.took <- struct{}{}:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// A call whose client does not read ends with an abort, although its answer was complete: what
// was being sent is freed.
func TestAttackAClientThatStopsReadingIsAborted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := engine.Start(engine.Options{ModelPath: path, Backend: ref.New(ref.Options{Threads: 1})})
		if err := e.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := &service{engine: e}
		ctx, hangUp := context.WithCancel(t.Context())
		out := &stuck{ctx: ctx, took: make(chan struct{}, 1)}
		top := int32(20)
		ended := make(chan error, 1)
		go func() {
			ended <- s.Generate(&wire.GenerateRequest{Id: "a", Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: []int32{5, 6, 7}}},
				MaxTokens: 40, IgnoreEos: true, TopLogprobs: &top}, out)
		}()
		synctest.Wait()
		if n := e.Status().GeneratedTokens; n != 40 || len(ended) > 0 {
			t.Fatalf("%d tokens are generated, and %d calls have ended", n, len(ended))
		}
		if _, err := e.Abort(t.Context(), "short of memory"); err != nil {
			t.Fatal(err)
		}
		if r := wire.RefusalOf(<-ended); r.GetCode() != wire.Code_CODE_ABORTED {
			t.Errorf("the call ended with %v", r)
		}
		hangUp() // as a call's context is when it has ended
		s.sending.Wait()
		e.Shutdown(ctx)
	})
}
