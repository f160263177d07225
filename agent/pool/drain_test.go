//go:build !race

package pool

import (
	"context"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// toDrain is an order to drain in place of another.
func toDrain(a v1alpha1.Assignment) v1alpha1.Assignment {
	a.Desired = v1alpha1.DesiredDrained
	return a
}

// An owner who deletes his model holds its memory no longer than one who keeps it:
// placement puts Always replicas where only OnDemand models are.
func TestALongDrainKeepsNoMemoryFromAnAlwaysReplica(t *testing.T) {
	play(t, func(s *stage) {
		busy := s.model("busy", enginetest.Script{HoldBytes: 50 * gib}, onDemand(0), of("other"), drain(86400))
		always := s.model("always", enginetest.Script{HoldBytes: 20 * gib}, of("team"))
		s.follow(busy)
		h := s.acquire("busy") // until its client leaves, which it does not
		defer h.Release()
		s.follow(toDrain(busy), always)
		s.after(almostAMinute)
		s.want("always", "Loaded False/WaitingForRoom")
		s.after(50 * time.Second)
		s.wantResident("busy") // its request may finish
		s.after(15 * time.Second)
		s.want("always", "Serving True/Serving")
		s.wantReclaims("busy/Drained")
	})
}

// A model is loaded in place of one that is idle, and not after the drain of another
// one, which its owner may have made as long as he likes.
func TestAnIdleModelGivesWayBeforeALongDrainEnds(t *testing.T) {
	for name, residency := range map[string]func(*v1alpha1.Assignment){"OnDemand": onDemand(0), "Always": func(*v1alpha1.Assignment) {}} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				busy := s.model("busy", enginetest.Script{HoldBytes: 24 * gib}, residency, of("other"), drain(86400))
				idle := s.model("idle", enginetest.Script{HoldBytes: 24 * gib}, onDemand(0), of("other"))
				asked := s.model("asked", enginetest.Script{HoldBytes: 20 * gib}, onDemand(0), of("team"))
				s.follow(busy, idle, asked)
				s.after(time.Second)
				h := s.acquire("busy")
				defer h.Release()
				s.used("idle")
				s.after(time.Minute)
				s.follow(toDrain(busy), idle, asked)
				ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
				defer cancel()
				got, err := s.Acquire(ctx, "asked", 1)
				if err != nil {
					t.Error(err)
					return
				}
				got.Release()
				s.wantReclaims("idle/MadeRoom")
				s.wantResident("asked busy")
			})
		})
	}
}

// What drains is shortened only for a model that waits for its memory.
func TestALongDrainLastsWhileNobodyWaits(t *testing.T) {
	play(t, func(s *stage) {
		busy := s.model("busy", enginetest.Script{HoldBytes: 24 * gib}, onDemand(0), of("other"), drain(86400))
		s.follow(busy)
		h := s.acquire("busy")
		s.follow(toDrain(busy), s.model("always", enginetest.Script{HoldBytes: 20 * gib}, of("team")))
		s.after(2 * time.Hour)
		s.wantResident("always busy")
		h.Release()
		s.after(time.Second)
		s.wantResident("always")
	})
}

// TestAnAgentThatRestartsDrainsForNoRequest: those of the one before ended with it, whether their
// drain was shortened or not.
func TestAnAgentThatRestartsDrainsForNoRequest(t *testing.T) {
	play(t, func(s *stage) {
		busy := s.model("busy", enginetest.Script{HoldBytes: 50 * gib}, onDemand(0), of("other"), drain(86400))
		always := s.model("always", enginetest.Script{HoldBytes: 20 * gib}, of("team"))
		s.follow(busy)
		s.acquire("busy")
		s.follow(toDrain(busy), always)
		s.after(5 * time.Second)
		s.wantResident("busy")
		s.halt()
		s.boot()
		s.follow(toDrain(busy), always)
		s.after(20 * time.Second)
		s.want("always", "Serving True/Serving")
	})
}
