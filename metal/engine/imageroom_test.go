//go:build !race

package engine_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
)

// TestAnImageWithoutRoomLetsOthersPass: while an answer is generated, an image waits for its
// memory. Smaller ones do not wait for it, and neither do prompts that are longer than its own.
func TestAnImageWithoutRoomLetsOthersPass(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 3}, ref.Options{}, paced)
	publish := publisher(e)
	image := func(size, seed int) engine.Request {
		r := about("what is ", "?", picture(t, size, size, seed))
		r.Logprobs, r.MaxTokens = nil, 2
		return r
	}
	seed := 0
	fits := func(size int) bool {
		seed++
		s, err := e.Generate(t.Context(), image(size, seed))
		return err == nil && collect(t, s).finished.Err == nil
	}
	const large, small = 300, 40
	var room int64 = 1 << 30
	for step := room / 2; step >= 1<<20; step /= 2 { // the least memory with room for the large one
		publish(guard.Limits{Memory: room - step})
		if fits(large) {
			room -= step
		}
	}
	room -= 4 << 20
	publish(guard.Limits{Memory: room})
	if fits(large) || !fits(small) {
		t.Fatalf("with %d bytes the large image has room, or the small one has none", room)
	}
	greedy := sample.Greedy()
	streaming, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("a b c"), Sampling: &greedy, MaxTokens: 450, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := streaming.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting, err := e.Generate(t.Context(), image(large, -1))
	if err != nil {
		t.Fatal(err)
	}
	if !fits(small) {
		t.Error("the small image is refused")
	}
	longer := engine.Request{Prompt: prompt(strings.Repeat("The fleet. ", 80)), Sampling: &greedy, MaxTokens: 2}
	if a := ask(t, e, longer); a.finished.Err != nil {
		t.Errorf("the longer prompt is refused: %v", a.finished.Err)
	}
	if e.Status().Running < 2 {
		t.Errorf("others waited until the answer had ended, after %d tokens", e.Status().GeneratedTokens)
	}
	streaming.Cancel()
	waiting.Cancel()
}

// TestLayersOfAnImageTakeTurnsWithSteps: an image whose layers take long leaves half of the time to the
// answers that are generated meanwhile.
func TestLayersOfAnImageTakeTurnsWithSteps(t *testing.T) {
	var serving atomic.Pointer[engine.Engine]
	var generated []int64 // before each layer
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 2}, ref.Options{}, func(op string) error {
		switch e := serving.Load(); {
		case e != nil && op == "AttendAll": // of the tower
			generated = append(generated, e.Status().GeneratedTokens)
			time.Sleep(200 * time.Millisecond)
		case op == "Argmax": // of a step: the answer is not to end meanwhile
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
	serving.Store(e)
	greedy := sample.Greedy()
	streaming, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("a b c"), Sampling: &greedy, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := streaming.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := about("what is ", "?", picture(t, 40, 40, 1))
	r.MaxTokens, r.Logprobs = 1, nil
	ask(t, e, r)
	streaming.Cancel()
	collect(t, streaming)
	for i := range generated[1:] {
		if n := generated[i+1] - generated[i]; n < 3 {
			t.Errorf("the other answer got %d tokens between layer %d of the image and the next one, which takes as long as many steps", n, i)
		}
	}
	if len(generated) < 2 {
		t.Errorf("%d layers of the image were computed", len(generated))
	}
}

// TestAPromptThatComesDoesNotWaitForLayersOfAnImage: it is in a step after the layer in which it comes.
func TestAPromptThatComesDoesNotWaitForLayersOfAnImage(t *testing.T) {
	var serving atomic.Pointer[engine.Engine]
	var other *engine.Stream
	layers, before := 0, 0
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 3}, ref.Options{}, func(op string) error {
		switch e := serving.Load(); {
		case e == nil:
		case op == "AttendAll": // of the tower
			if layers++; layers == 1 {
				other, _ = e.Generate(t.Context(), engine.Request{Prompt: prompt("a b c"), Tenant: "other", MaxTokens: 1})
			}
			time.Sleep(30 * time.Millisecond) // short enough for the next one to follow if no other request comes
		case op == "Embed" && layers > 0 && before == 0: // of a step
			before = layers
		}
		return nil
	})
	serving.Store(e)
	r := about("what is ", "?", picture(t, 40, 40, 1), picture(t, 40, 40, 2))
	r.MaxTokens, r.Logprobs, r.Tenant = 1, nil, "sees"
	ask(t, e, r)
	if other == nil {
		t.Fatal("the other request has no place")
	}
	collect(t, other)
	if before != 1 {
		t.Errorf("%d of %d layers were computed before the step of a prompt that came in the first of them", before, layers)
	}
}
