//go:build !race

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
)

const pictureBytes = 64 * 64 * 3

// showing is a request of a tenant with images, each of pictureBytes and of its own content.
func showing(t *testing.T, tenant string, images, seed, tokens int) engine.Request {
	t.Helper()
	var all [][]byte
	for i := range images {
		all = append(all, picture(t, 64, 64, seed+i))
	}
	r := about("what is ", "?", all...)
	r.Tenant, r.MaxTokens, r.IgnoreEnd, r.Logprobs = tenant, tokens, true, nil
	return r
}

// TestTenantsWithLongAnswersLeaveRoomForImages: tenants whose answers go on hold as many images as they
// may. Others are served meanwhile, and these answers end as all do.
func TestTenantsWithLongAnswersLeaveRoomForImages(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 5}, ref.Options{}, paced)
	engine.LimitImages(e, 31*pictureBytes/2)
	var long []*engine.Stream
	for i, images := range []int{7, 4, 2, 1} {
		s, err := e.Generate(t.Context(), showing(t, string(rune('a'+i)), images, 10*i, 300))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		long = append(long, s)
	}
	for i := range 3 {
		s, err := e.Generate(t.Context(), showing(t, "v", 1, 100+i, 2))
		if err != nil {
			t.Fatalf("after %d requests with an image: %v", i, err)
		}
		if a := collect(t, s); a.finished.Err != nil {
			t.Errorf("request %d: %v", i, a.finished.Err)
		}
	}
	for i, s := range long {
		if a := collect(t, s); a.finished.Err != nil || a.finished.Usage.Generated != 300 {
			t.Errorf("long answer %d ended after %d tokens: %v", i, a.finished.Usage.Generated, a.finished.Err)
		}
	}
	if n := engine.ImageBytes(e); n != 0 {
		t.Errorf("%d bytes of images are held after all requests", n)
	}
}

// TestAnAnswerWithoutItsImagesEndsWhenItsKVIsLost: one whose images gave way continues after a turn of
// another request if its KV is in the prefix cache. Else it ends, and may be tried again.
func TestAnAnswerWithoutItsImagesEndsWhenItsKVIsLost(t *testing.T) {
	for name, cached := range map[string]bool{"with a prefix cache": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 2, CacheMemory: map[bool]int64{true: 64 << 20}[cached]}, ref.Options{}, paced)
			engine.LimitImages(e, 10*pictureBytes)
			engine.HoldImages(e, "x", 7*pictureBytes/2)
			greedy := sample.Greedy() // with another request of its tenant, its turn is short
			text, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("a b c"), Sampling: &greedy, MaxTokens: 450, IgnoreEnd: true, Tenant: "a", Priority: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer text.Cancel()
			long, err := e.Generate(t.Context(), showing(t, "a", 3, 1, 400))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := long.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, err := e.Generate(t.Context(), showing(t, "b", 2, 10, 4))
			if err != nil {
				t.Fatal(err)
			}
			if b := collect(t, s); b.finished.Err != nil {
				t.Errorf("the other request: %v", b.finished.Err)
			}
			a := collect(t, long)
			switch err := a.finished.Err; {
			case cached && (err != nil || a.finished.Usage.Generated != 400):
				t.Errorf("the answer ended after %d tokens: %v", a.finished.Usage.Generated, err)
			case !cached && (err == nil || err.Kind != engine.Aborted || err.RetryAfter == 0):
				t.Errorf("the answer ended with %v, want %v", err, engine.Aborted)
			}
			if e.Status().Preemptions == 0 {
				t.Error("the answer did not give way")
			}
		})
	}
}
