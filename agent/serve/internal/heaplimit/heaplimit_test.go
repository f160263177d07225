package heaplimit

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestFullWhileMemoryIsLive: the limit asks the collector, so what counts is what is used, and not
// what was allocated.
func TestFullWhileMemoryIsLive(t *testing.T) {
	const size = 64 << 20
	runtime.GC()
	var relieved atomic.Int64
	l := &Limit{Bytes: Live() + size/2, Relieve: func() { relieved.Add(1) }}
	if l.Full() {
		t.Fatal("full without the memory")
	}
	memory := make([]byte, size)
	runtime.GC()
	for range 2 {
		if !l.Full() {
			t.Fatal("not full with the memory")
		}
	}
	for until := time.Now().Add(30 * time.Second); relieved.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("nothing was relieved")
		}
	}
	runtime.KeepAlive(memory)
	for until := time.Now().Add(30 * time.Second); l.Full(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("full long after the memory was left")
		}
	}
	if n := relieved.Load(); n > 1 {
		t.Errorf("relieved %d times", n)
	}
}

func TestTheZeroValueIsNeverFull(t *testing.T) {
	if l := (&Limit{}); l.Full() {
		t.Error("full")
	}
}
