package engine

import (
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine/output"
)

// Arguments that come in many pieces and are not read take no more time with each piece.
func TestAttackArgumentsThatNoClientReads(t *testing.T) {
	s := newStream([]int32{1}, nil, unread{})
	piece := strings.Repeat("a", 16)
	push := func(c output.Call) { s.push([]output.Delta{{Calls: []output.Call{c}}}, 0) }
	push(output.Call{Name: "f"})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4000 {
		push(output.Call{Arguments: piece})
	}
	push(output.Call{Ended: true, Written: "w"})
	push(output.Call{Name: "g", Arguments: "{}"})
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("%d bytes are allocated", n)
	}
	ev, err := s.Next(t.Context())
	if err != nil || len(ev.Calls) != 2 || ev.Calls[0].Arguments != strings.Repeat(piece, 4000) || !ev.Calls[0].Ended || ev.Calls[0].Written != "w" || ev.Calls[1].Arguments != "{}" {
		t.Errorf("%d calls (%v)", len(ev.Calls), err)
	}
	push(output.Call{Arguments: "b"})
	push(output.Call{Arguments: "c"})
	if ev, err := s.Next(t.Context()); err != nil || len(ev.Calls) != 1 || ev.Calls[0].Arguments != "bc" {
		t.Errorf("%+v (%v)", ev.Calls, err)
	}
}
