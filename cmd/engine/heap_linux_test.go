//go:build !race

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAttackLongTextsLeaveGarbage: several copies of long texts, each given up when the next is
// made, stay within what the engine's limit has besides its arrays. They took 146 MiB.
func TestAttackLongTextsLeaveGarbage(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// The promise for the cache, of 64 MiB, is not used here.
	const contextTokens, limit, most = 1 << 17, 160 << 20, 96 << 20
	c := tinymodel.Default()
	c.Context = contextTokens
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	p := serveConfig(t, wire.Config{ReplicaUID: "uid", Epoch: 1, ModelPath: path, ContextTokens: contextTokens, Sequences: 4, CacheTokens: contextTokens, LimitBytes: limit})
	p.awaitReady(t, ctx)
	var senders sync.WaitGroup
	text := strings.Repeat("1", 15<<20)
	for i := range 3 {
		senders.Go(func() {
			for n := range 4 {
				s, err := p.client.Generate(ctx, &wire.GenerateRequest{
					Id: fmt.Sprint(i, n), Tenant: fmt.Sprint(i), MaxTokens: 1,
					Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: text}}}},
				})
				if err == nil {
					_, err = s.Recv()
				}
				if err == nil {
					t.Error("a text that no context holds is not refused")
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { senders.Wait(); close(done) }()
	var peak int64
	for {
		select {
		case <-done:
			if peak > most {
				t.Errorf("the engine took %d MiB, want at most %d", peak>>20, most>>20)
			}
			return
		case <-time.After(10 * time.Millisecond):
			if n, err := (probe.System{}).Footprint(p.cmd.Process.Pid); err == nil {
				peak = max(peak, n)
			}
		}
	}
}
