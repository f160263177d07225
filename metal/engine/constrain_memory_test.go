//go:build !race

package engine_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
)

// heapBytes are those of the heap, garbage included.
func heapBytes() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// Clients that send the largest schemas at once do not take an engine over its limit: what they
// take fits in the slack between what was reserved and the limit. Garbage is half as much again,
// for which the reserved process has room.
func TestConstraintsFitInTheSlackOfTheLimit(t *testing.T) {
	slack := footprint.EngineLimit(0)
	if grammar.MostBytes > slack {
		t.Errorf("constraints take %d bytes at most, and the slack is %d", grammar.MostBytes, slack)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as the engine's process has it
	e := ready(t, engine.Options{Sequences: 8}, ref.Options{})
	ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 4})
	runtime.GC()
	base, most := heapBytes(), int64(0)
	done := make(chan struct{})
	var watch, clients sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				most = max(most, heapBytes()-base)
			}
		}
	})
	repeated := func(part string, n int) string { return strings.TrimSuffix(strings.Repeat(part+",", n), ",") }
	items := `"allOf":[` + repeated(`{"items":{}}`, 60) + `],"prefixItems":[` + repeated("{}", 60_000) + `]}`
	for client := range 16 {
		clients.Go(func() {
			for i := range 3 {
				c := form(grammar.JSONSchema, fmt.Sprintf(`{"title":"%d %d",%s`, client, i, items))
				if i%2 == 1 {
					c = form(grammar.EBNF, fmt.Sprintf(`root ::= "%d %d%s"`, client, i, strings.Repeat("a", 120_000)))
				}
				s, err := e.Generate(context.Background(), engine.Request{Tenant: fmt.Sprint(client % 3), Prompt: prompt("Hello"), MaxTokens: 1, Constraint: c})
				if err == nil {
					collect(t, s)
				}
			}
		})
	}
	clients.Wait()
	close(done)
	watch.Wait()
	t.Logf("the heap is %d MiB larger at most", most>>20)
	if most > slack+slack/2 {
		t.Errorf("the heap grew by %d MiB, and the slack is %d with half as much garbage", most>>20, slack>>20)
	}
}
