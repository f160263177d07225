package engine_test

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/pages"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// For blocks of prompts and of answers; none is held once there are no
// requests.
func TestBlockMemoryIsPreparedDuringSteps(t *testing.T) {
	for name, r := range map[string]engine.Request{
		"a prompt":  {Tokens: tokensOf(1, 500, 400), Sampling: draws(1), MaxTokens: 1},
		"an answer": {Tokens: tokensOf(2, 60, 400), Sampling: draws(2), MaxTokens: 200},
	} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.Options{ModelPath: model(t, tinymodel.Default()), Sequences: 2, CacheMemory: mebi}, ref.Options{})
			for asked := 0; engine.Prepared(e) == 0; asked++ {
				if asked == 100 {
					t.Fatal("no room was made ahead for the blocks of 100 requests")
				}
				r.Tokens = tokensOf(uint64(100+asked), len(r.Tokens), 400)
				ask(t, e, greedily([]engine.Request{r})[0])
			}
			noRoomIsHeld(t, e)
		})
	}
}

// An answer ends before it fills a block.
func TestUnusedPreparedMemoryIsFreed(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: model(t, tinymodel.Default()), Sequences: 2, CacheMemory: mebi}, ref.Options{})
	for i := range 5 {
		ask(t, e, greedily([]engine.Request{{Tokens: tokensOf(uint64(i), 60, 400), Sampling: draws(1), MaxTokens: 60}})[0])
		noRoomIsHeld(t, e)
	}
}

// noRoomIsHeld waits until all bytes are those of blocks.
func noRoomIsHeld(t *testing.T, e *engine.Engine) {
	t.Helper()
	held := func() (bytes, blocks int64) {
		p := e.Status().Prefixes
		return p.Bytes, int64(p.Blocks)
	}
	block := pages.Held(engine.BlockBytes(e))
	bytes, blocks := held()
	for deadline := time.Now().Add(patience); bytes != blocks*block; bytes, blocks = held() {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are held for %d blocks of %d", bytes, blocks, block)
		}
		time.Sleep(time.Millisecond)
	}
}
