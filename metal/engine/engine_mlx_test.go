//go:build mlx

package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// onMLX serves the tiny model; the test ends with a shutdown that finds nothing
// left. Everything but Memory, Name and SetLimits happens on the engine's own
// goroutine, or the bridge refuses it.
func onMLX(t *testing.T, o engine.Options) (*engine.Engine, tensor.Backend) {
	t.Helper()
	var err error
	if o.Backend, err = backends.Open("mlx", backends.Options{}); err != nil {
		t.Fatal(err)
	}
	e := engine.Start(o)
	t.Cleanup(func() {
		stop(e)
		if err := e.Wait(); err != nil {
			t.Errorf("engine ended with %v", err)
		}
		if m := o.Backend.Memory(); m.Active() != 0 || m.Live != 0 {
			t.Errorf("the engine left %+v", m)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return e, o.Backend
}

func TestMLXAnswersAsRefDoes(t *testing.T) {
	want := together(t, ready(t, engine.Options{Sequences: 4}, ref.Options{}), greedily(requests()))
	e, _ := onMLX(t, engine.Options{Sequences: 4, ModelPath: model(t, tinymodel.Default())})
	same(t, "with mlx", together(t, e, greedily(requests())), want)
}

// The host reads the rows of requests with log-probabilities and of those in
// the same step; all sample the same tokens as they do alone.
func TestMLXTellsTheLogprobsThatRefDoes(t *testing.T) {
	rs := greedily(requests())
	for i := range rs {
		if i%2 == 1 {
			rs[i].Logprobs = alternatives(i)
		}
		if i%3 == 1 {
			rs[i].Sampling.Bias = map[int32]float32{int32(40 + i): 3, 70: -100}
		}
	}
	want := together(t, ready(t, engine.Options{Sequences: 4}, ref.Options{}), rs)
	e, _ := onMLX(t, engine.Options{Sequences: 4, ModelPath: model(t, tinymodel.Default())})
	got := together(t, e, rs)
	for i, r := range rs {
		if (len(got[i].logprobs) > 0) != (r.Logprobs != nil) {
			t.Errorf("request %d: %d log-probabilities", i, len(got[i].logprobs))
		}
	}
	sameButCached(t, "with mlx", got, want)
}

func TestMLXAnswersAsRefDoesWithAHybrid(t *testing.T) {
	path := hybrid(t)
	want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 4}, ref.Options{}), greedily(requests()))
	e, b := onMLX(t, engine.Options{Sequences: 4, ModelPath: path})
	same(t, "with mlx", together(t, e, greedily(requests())), want)
	if m := b.Memory(); m.KV != 0 {
		t.Errorf("%d bytes of keys, values and states are held without a request", m.KV)
	}
}

func TestRequestsThatAreCancelledLeaveNothingOnMLX(t *testing.T) {
	cancelledLeaveNothing(t, model(t, tinymodel.Default()))
}

func TestHybridsThatAreCancelledLeaveNothingOnMLX(t *testing.T) { cancelledLeaveNothing(t, hybrid(t)) }

func cancelledLeaveNothing(t *testing.T, path string) {
	t.Helper()
	e, b := onMLX(t, engine.Options{Sequences: 4, ModelPath: path})
	before := b.Memory()
	var all sync.WaitGroup
	for i, r := range append(requests(), requests()...) {
		all.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s, err := e.Generate(ctx, r)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			for range i % 5 { // some at once, some after a few pieces
				ev, err := s.Next(ctx)
				if err != nil {
					t.Errorf("request %d: %v", i, err)
				}
				if err != nil || ev.Finished != nil {
					return
				}
			}
			s.Cancel()
			if a := collect(t, s); a.finished.Err == nil && a.finished.Usage.Generated == 0 {
				t.Errorf("request %d ended with nothing", i)
			}
		})
	}
	all.Wait()
	// One more, so that what the last step held has gone.
	if a := ask(t, e, greedily(requests())[0]); a.finished.Err != nil {
		t.Fatal(a.finished.Err)
	}
	// The step that follows an answer is begun before its end is known.
	m := b.Memory()
	for until := time.Now().Add(patience); (m.KV != 0 || m.Live != before.Live) && time.Now().Before(until); m = b.Memory() {
		time.Sleep(time.Millisecond)
	}
	if m.KV != 0 || m.Live != before.Live || m.Weights != before.Weights {
		t.Errorf("memory is %+v, was %+v", m, before)
	}
}

// Within prompts and after answers; nothing is held in the end.
func TestMLXContinuesFromRestoredTokens(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			rs := greedily(conversation(400))
			plain, _ := onMLX(t, engine.Options{ModelPath: path})
			want := askAll(t, plain, rs)
			e, b := onMLX(t, engine.Options{ModelPath: path, Sequences: 2, CacheMemory: mebi})
			sameButCached(t, "computed and saved", askAll(t, e, rs), want)
			got := together(t, e, rs)
			sameButCached(t, "restored", got, want)
			for i, a := range got {
				if least := []int{256, 256, 256, 128, 0}[i]; a.finished.Usage.Cached < least {
					t.Errorf("request %d: %d tokens were restored, want %d", i, a.finished.Usage.Cached, least)
				}
			}
			if m := b.Memory(); m.KV != 0 {
				t.Errorf("%d bytes of keys, values and states are held without a request", m.KV)
			}
		})
	}
}

// Constrained rows are masked by the host, others in the same step choose on
// the device.
func TestMLXConstrainsAnswersLikeRef(t *testing.T) {
	rs := greedily(requests())
	for i := range rs {
		if i%2 == 0 {
			rs[i].Constraint = form(grammar.Regex, `[a-z]{3,8}( [a-z]{1,6}){2,4}\.`)
		}
	}
	want := together(t, ready(t, engine.Options{Sequences: 4}, ref.Options{}), rs)
	e, _ := onMLX(t, engine.Options{Sequences: 4, ModelPath: model(t, tinymodel.Default())})
	got := together(t, e, rs)
	for i, r := range rs {
		if r.Constraint != nil && (got[i].finished.Err != nil || strings.Trim(got[i].text, "abcdefghijklmnopqrstuvwxyz .") != "") {
			t.Errorf("request %d: %q, %+v", i, got[i].text, got[i].finished)
		}
	}
	sameButCached(t, "with mlx", got, want)
}

// Drafts change no answer on MLX either: the state before a wrong one comes back, and the
// second token of a step is computed as in a step of its own.
func TestMLXDraftsChangeNoAnswer(t *testing.T) {
	for name, drafts := range heads() {
		t.Run(name, func(t *testing.T) {
			path, _ := drafting(t, drafts)
			want := askAll(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), greedily(requests()))
			e, b := onMLX(t, engine.WithDraftCost(engine.Options{ModelPath: path, Sequences: 4, Drafts: true}, 1.5))
			same(t, "with mlx", askAll(t, e, greedily(requests())), want)
			if s := e.Status(); s.Drafts == 0 || s.RightDrafts == s.Drafts || drafts == tinymodel.LikelyDrafts && s.RightDrafts < s.Drafts/2 {
				t.Errorf("%d of %d drafts are right", s.RightDrafts, s.Drafts)
			}
			same(t, "with mlx in company", together(t, e, greedily(requests())), want)
			if m := b.Memory(); m.KV != 0 {
				t.Errorf("%d bytes are held without a request", m.KV)
			}
		})
	}
}
