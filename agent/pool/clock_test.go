package pool

import (
	"context"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/metal/wire"
)

// An engine got limits while the Mac's clock was an hour ahead, and ignores older ones.
func TestLimitsAreTakenAfterTheClockWasSetBack(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}))
		h := s.acquire("a")
		defer h.Release()
		ahead := &wire.Limits{Sequence: time.Now().Add(time.Hour).UnixNano(), PausePrefill: true, MemoryBytes: gib}
		var client process.Conn
		s.registry.read(func() { client = s.registry.entries[memory.Key{UID: "a", Epoch: 1}].engine.client })
		if _, err := client.SetLimits(context.Background(), ahead); err != nil {
			t.Fatal(err)
		}
		s.after(5 * time.Second)
		if l := s.twin.Engine("a").Limits(); l.GetPausePrefill() || l.GetMemoryBytes() == gib {
			t.Errorf("prompts wait, by limits that are older than 5 s: %v", l)
		}
	})
}

// TestAnEngineWhoseLastUseIsInTheFutureBecomesIdle: the journal was written, and the engine was
// adopted, while the clock was ahead.
func TestAnEngineWhoseLastUseIsInTheFutureBecomesIdle(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(time.Minute)))
		s.used("a")
		s.registry.change(func() {
			s.registry.entries[memory.Key{UID: "a", Epoch: 1}].engine.lastUse = time.Now().Add(24 * time.Hour).Round(0)
		})
		s.after(5 * time.Minute)
		s.wantResident("")
	})
}
