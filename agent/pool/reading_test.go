package pool

import (
	"context"
	"errors"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAReadingLivesAsLongAsItsHold: vectors come under a hold, what the engine
// refuses stays typed, and with the hold the call ends.
func TestAReadingLivesAsLongAsItsHold(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, Task: "Embed", ListMilliseconds: 2048_000})) // a second a text
		s.want("a", "Serving True/Serving")
		h := s.acquire("a")
		got, err := h.Embed(s.ctx, &wire.EmbedRequest{Texts: []string{"one two"}})
		if err != nil || len(got.GetVectors()) != 1 || got.GetVectors()[0].GetValues()[0] != 2 {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := h.Rerank(s.ctx, &wire.RerankRequest{Query: "q", Documents: []string{"d"}}); wire.RefusalOf(err).GetCode() != wire.Code_CODE_INVALID {
			t.Errorf("scores of a model that makes vectors: %v", err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := h.Embed(s.ctx, &wire.EmbedRequest{Texts: make([]string, 100)})
			ended <- err
		}()
		s.after(time.Second)
		h.Release()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a reading whose hold was released: %v", err)
		}
		if _, err := h.Embed(s.ctx, &wire.EmbedRequest{Texts: []string{"a"}}); !errors.Is(err, errReleased) {
			t.Errorf("a reading without a hold: %v", err)
		}
	})
}
