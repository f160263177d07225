package engine_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// patience is what a slow machine under the race detector may need.
const patience = 5 * time.Minute

func model(t *testing.T, c tinymodel.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return path
}

// start serves the tiny model on a back end with these faults. The test ends with an
// orderly shutdown, after which nothing is left in memory.
func start(t *testing.T, o engine.Options, r ref.Options, faults ...func(op string) error) *engine.Engine {
	t.Helper()
	if o.ModelPath == "" {
		o.ModelPath = model(t, tinymodel.Default())
	}
	r.Poison = true
	if r.Threads == 0 {
		r.Threads = 2
	}
	if o.Backend == nil {
		o.Backend = ref.New(r)
	}
	for _, fault := range faults {
		o.Backend = tensortest.Faulty(o.Backend, fault)
	}
	e := engine.Start(o)
	t.Cleanup(func() {
		stop(e)
		if err := e.Wait(); err != nil && e.Status().State != engine.Failed {
			t.Errorf("engine ended with %v", err)
		}
		if m := o.Backend.Memory(); m.Active() != 0 || m.Live != 0 {
			t.Errorf("the engine left %+v", m)
		}
	})
	return e
}

// hybrid is a model of which two layers in three are recurrent.
func hybrid(t *testing.T) string {
	t.Helper()
	return hybridOf(t, tinymodel.Default())
}

func hybridOf(t *testing.T, c tinymodel.Config) string {
	t.Helper()
	c.Family, c.Layers, c.NormSpread = tinymodel.Qwen35, 3, 0.3
	c.Hybrid = tinymodel.Hybrid{Interval: 3, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 8, Taps: 4, Rotary: 0.5}
	path := filepath.Join(t.TempDir(), "hybrid")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	return path
}

func ready(t *testing.T, o engine.Options, r ref.Options, faults ...func(op string) error) *engine.Engine {
	t.Helper()
	e := start(t, o, r, faults...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

func stop(e *engine.Engine) int {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	return e.Shutdown(expired)
}

// paced takes 2 ms for each step: a request of hundreds of tokens is still
// under way when the test, held up on a busy machine, comes to end it.
func paced(op string) error {
	if op == "Embed" {
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// answer is a whole stream.
type answer struct {
	text     string
	tokens   []int32
	logprobs []sample.Ranked
	calls    []output.Call
	finished engine.Finished
	// prompt that was echoed, and how likely its tokens were.
	prompt string
	ranked []sample.Ranked
}

func collect(t *testing.T, s *engine.Stream) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var a answer
	for {
		ev, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("stream: %v", err)
		}
		if !utf8.ValidString(ev.Text) {
			t.Errorf("a piece is not whole characters: %q", ev.Text)
		}
		a.text += ev.Text
		a.tokens = append(a.tokens, ev.Tokens...)
		a.logprobs = append(a.logprobs, ev.Logprobs...)
		a.calls = append(a.calls, ev.Calls...)
		if (ev.Prompt != "" || len(ev.PromptLogprobs) > 0) && len(a.tokens) > len(ev.Tokens) {
			t.Error("a piece of the prompt came after the answer had begun")
		}
		a.prompt, a.ranked = a.prompt+ev.Prompt, append(a.ranked, ev.PromptLogprobs...)
		if ev.Finished != nil {
			a.finished = *ev.Finished
			return a
		}
	}
}

func ask(t *testing.T, e *engine.Engine, r engine.Request) answer {
	t.Helper()
	s, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatalf("generate: %v", err)
	}
	return collect(t, s)
}

func prompt(text string) *string { return &text }

// draws samples at high temperature, so that requests differ.
func draws(seed uint64) *sample.Params {
	p := sample.Neutral()
	p.Temperature, p.Seed = 1.5, seed
	return &p
}

// alternatives asks for log-probabilities.
func alternatives(n int) *int { return &n }

// requests are of many lengths, long enough to be cut into chunks.
func requests() []engine.Request {
	var out []engine.Request
	for i := range uint64(7) {
		text := strings.Repeat("The fleet keeps every model. ", int(i)*4+1)
		out = append(out, engine.Request{Prompt: &text, Sampling: draws(i), MaxTokens: 20 + int(i)*3})
	}
	return out
}

func greedily(rs []engine.Request) []engine.Request {
	for i := range rs {
		p := sample.Greedy()
		rs[i].Sampling, rs[i].Logprobs = &p, nil
	}
	return rs
}

// together runs all requests at once.
func together(t *testing.T, e *engine.Engine, rs []engine.Request) []answer {
	t.Helper()
	out := make([]answer, len(rs))
	var wg sync.WaitGroup
	for i, r := range rs {
		wg.Go(func() { out[i] = ask(t, e, r) })
	}
	wg.Wait()
	return out
}

func same(t *testing.T, what string, got, want []answer) {
	t.Helper()
	for i := range want {
		if !slices.Equal(got[i].tokens, want[i].tokens) || got[i].text != want[i].text || got[i].finished != want[i].finished {
			t.Errorf("%s: request %d gave %d tokens %q, alone %d tokens %q", what, i, len(got[i].tokens), got[i].text, len(want[i].tokens), want[i].text)
		}
		if got[i].prompt != want[i].prompt || !reflect.DeepEqual(got[i].ranked, want[i].ranked) {
			t.Errorf("%s: request %d echoes another prompt, or other log-probabilities from token %d on", what, i, firstOther(got[i].ranked, want[i].ranked))
		}
		if !reflect.DeepEqual(got[i].logprobs, want[i].logprobs) {
			t.Errorf("%s: request %d has other log-probabilities, the first at token %d", what, i, firstOther(got[i].logprobs, want[i].logprobs))
		}
	}
}

func firstOther(a, b []sample.Ranked) int {
	for i := range min(len(a), len(b)) {
		if !reflect.DeepEqual(a[i], b[i]) {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestARequestGetsTheSameAnswerAloneAndInCompany(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 4}, ref.Options{})
	var alone []answer
	for _, r := range requests() {
		alone = append(alone, ask(t, e, r))
	}
	same(t, "in company", together(t, e, requests()), alone)
	if st := e.Status(); st.Running != 0 || st.Queued != 0 || st.Memory.KV != 0 || st.GeneratedTokens == 0 || st.Steps == 0 {
		t.Errorf("status afterwards is %+v", st)
	}
}

// One prompt with many seeds, temperatures, filters and penalties has the same
// answers alone, batched, and where the cache is so small that some are
// computed twice.
func TestEachRequestHasItsOwnSampler(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 512
	path := model(t, c)
	text := strings.Repeat("The fleet keeps every model. ", 12)
	var rs []engine.Request
	for i, change := range []func(*sample.Params){
		func(*sample.Params) {},
		func(p *sample.Params) { p.Temperature = 0 },
		func(p *sample.Params) { p.TopP = 0.6 },
		func(p *sample.Params) { p.TopK = 3 },
		func(p *sample.Params) { p.MinP = 0.2; p.Temperature = 0.7 },
		func(p *sample.Params) { p.FrequencyPenalty = 1.5 },
		func(p *sample.Params) { p.PresencePenalty = -1.5; p.Temperature = 0 },
		func(p *sample.Params) { p.Bias = map[int32]float32{40: 4, 70: -100} },
		func(p *sample.Params) { p.Seed = 0 },
		func(p *sample.Params) { p.Temperature = 0 },
		func(p *sample.Params) { p.RepetitionPenalty = 1.4; p.Temperature = 0 },
	} {
		p := *draws(uint64(i))
		change(&p)
		rs = append(rs, engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 170})
	}
	rs[8].Logprobs, rs[9].Logprobs = alternatives(3), alternatives(0)
	e := ready(t, engine.Options{ModelPath: path, Sequences: len(rs)}, ref.Options{})
	var alone []answer
	for _, r := range rs {
		alone = append(alone, ask(t, e, r))
	}
	for i := range alone[:8] {
		for j := range i {
			if slices.Equal(alone[i].tokens, alone[j].tokens) {
				t.Fatalf("requests %d and %d give the same: their samplers could be mixed up unseen", i, j)
			}
		}
	}
	if !slices.Equal(alone[0].tokens, alone[8].tokens) || !slices.Equal(alone[1].tokens, alone[9].tokens) {
		t.Error("the same request twice gives two answers, or another one for telling its log-probabilities")
	}
	if len(alone[0].logprobs) > 0 || len(alone[8].logprobs) != len(alone[8].tokens) || len(alone[9].logprobs) != len(alone[9].tokens) {
		t.Errorf("%d, %d and %d log-probabilities are returned", len(alone[0].logprobs), len(alone[8].logprobs), len(alone[9].logprobs))
	}
	same(t, "in company", together(t, e, rs), alone)
	tight := ready(t, engine.Options{ModelPath: path, Sequences: len(rs), CacheTokens: 1024}, ref.Options{})
	same(t, "in a tight cache", together(t, tight, rs), alone)
	if tight.Status().Preemptions == 0 {
		t.Error("nothing was preempted")
	}
}

func TestAHigherPriorityIsAdmittedFirst(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 1, Queue: 4}, ref.Options{})
	e.SetLimits(guard.Limits{PausePrefill: true, Sequence: 1}) // nothing is admitted meanwhile
	var order []int
	var streams []*engine.Stream
	for _, priority := range []int{0, -1, 7} {
		s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 3, Priority: priority})
		if err != nil {
			t.Fatal(err)
		}
		engine.OnFinish(s, func() { order = append(order, priority) })
		streams = append(streams, s)
	}
	e.SetLimits(guard.Limits{Sequence: 2})
	for _, s := range streams {
		_ = collect(t, s)
	}
	if !slices.Equal(order, []int{7, 0, -1}) {
		t.Errorf("the order of their ends is %v", order)
	}
}

func TestPreemptionChangesNoAnswer(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 512
	path := model(t, c)
	var rs []engine.Request
	for i := range uint64(3) {
		text := strings.Repeat("The fleet keeps every model. ", 12)
		rs = append(rs, engine.Request{Prompt: &text, Sampling: draws(i), MaxTokens: 180})
	}
	roomy := ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{})
	want := together(t, roomy, rs)
	// Two blocks of 256 for three requests that grow past one.
	tight := ready(t, engine.Options{ModelPath: path, Sequences: 3, CacheTokens: 512}, ref.Options{})
	// On a busy machine one request may end before the next is there, and none
	// is preempted: the same is asked again, and every answer compared.
	for range 30 {
		same(t, "in a tight cache", together(t, tight, rs), want)
		if tight.Status().Preemptions > 0 || t.Failed() {
			return
		}
	}
	t.Error("nothing was preempted in 30 rounds")
}

func TestCancelReturnsTheMemory(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{}, paced)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := e.Generate(ctx, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 500})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(context.Background()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Cancelled || a.finished.Usage.Generated == 0 {
		t.Errorf("a cancelled stream ends with %+v", a.finished)
	}
	if st := e.Status(); st.Running != 0 || st.Memory.KV != 0 {
		t.Errorf("after the cancel %d run and hold %d bytes", st.Running, st.Memory.KV)
	}
}

func TestRequestsThatCannotBeMeantAreRefusedBeforeAnything(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	hot := func(change func(*sample.Params)) *sample.Params {
		p := sample.Neutral()
		change(&p)
		return &p
	}
	long := strings.Repeat("long ", 5000)
	for name, c := range map[string]struct {
		r     engine.Request
		kind  engine.Kind
		param string
	}{
		"nothing to do":        {r: engine.Request{}, kind: engine.Invalid, param: "prompt"},
		"two inputs":           {r: engine.Request{Prompt: prompt("a"), Tokens: []int32{1}}, kind: engine.Invalid, param: "prompt"},
		"empty prompt":         {r: engine.Request{Prompt: prompt("")}, kind: engine.Invalid, param: "prompt"},
		"empty tokens":         {r: engine.Request{Tokens: []int32{}}, kind: engine.Invalid, param: "prompt"},
		"unknown token":        {r: engine.Request{Tokens: []int32{1, 512}}, kind: engine.Invalid, param: "prompt"},
		"negative token":       {r: engine.Request{Tokens: []int32{-1}}, kind: engine.Invalid, param: "prompt"},
		"negative max_tokens":  {r: engine.Request{Prompt: prompt("a"), MaxTokens: -1}, kind: engine.Invalid, param: "max_tokens"},
		"too many stops":       {r: engine.Request{Prompt: prompt("a"), Stop: make([]string, 17)}, kind: engine.Invalid, param: "stop"},
		"temperature":          {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.Temperature = -1 })}, kind: engine.Invalid, param: "temperature"},
		"alternatives":         {r: engine.Request{Prompt: prompt("a"), Logprobs: alternatives(21)}, kind: engine.Invalid, param: "top_logprobs"},
		"fewer than none":      {r: engine.Request{Prompt: prompt("a"), Logprobs: alternatives(-1)}, kind: engine.Invalid, param: "top_logprobs"},
		"bias too large":       {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.Bias = map[int32]float32{1: 101} })}, kind: engine.Invalid, param: "logit_bias"},
		"bias of no token":     {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.Bias = map[int32]float32{512: 1} })}, kind: engine.Invalid, param: "logit_bias"},
		"bias below tokens":    {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.Bias = map[int32]float32{-1: 1} })}, kind: engine.Invalid, param: "logit_bias"},
		"top_p":                {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.TopP = 2 })}, kind: engine.Invalid, param: "top_p"},
		"prompt too long":      {r: engine.Request{Prompt: &long}, kind: engine.ContextLength, param: "messages"},
		"huge text":            {r: engine.Request{Prompt: prompt(strings.Repeat("x", 200_000))}, kind: engine.ContextLength, param: "messages"},
		"huge messages":        {r: engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: strings.Repeat("x", 200_000)}}}}, kind: engine.ContextLength, param: "messages"},
		"broken tools":         {r: engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "a"}}, Tools: []byte("{")}}, kind: engine.Invalid, param: "messages"},
		"prompt fills context": {r: engine.Request{Tokens: make([]int32, 512)}, kind: engine.ContextLength, param: "messages"},
		"one token too many":   {r: engine.Request{Tokens: make([]int32, 513), PromptOnly: true}, kind: engine.ContextLength, param: "messages"},
		"negative min_tokens":  {r: engine.Request{Prompt: prompt("a"), MinTokens: -1}, kind: engine.Invalid, param: "min_tokens"},
		"more than max_tokens": {r: engine.Request{Prompt: prompt("a"), MinTokens: 5, MaxTokens: 4}, kind: engine.Invalid, param: "min_tokens"},
		"many stop tokens":     {r: engine.Request{Prompt: prompt("a"), StopTokens: make([]int32, 129)}, kind: engine.Invalid, param: "stop_token_ids"},
		"unknown stop token":   {r: engine.Request{Prompt: prompt("a"), StopTokens: []int32{512}}, kind: engine.Invalid, param: "stop_token_ids"},
		"repetition penalty":   {r: engine.Request{Prompt: prompt("a"), Sampling: hot(func(p *sample.Params) { p.RepetitionPenalty = -1 })}, kind: engine.Invalid, param: "repetition_penalty"},
		"echo of messages":     {r: engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "a"}}}, Echo: true}, kind: engine.Invalid, param: "echo"},
	} {
		s, err := e.Generate(context.Background(), c.r)
		var r *engine.Refusal
		if !errors.As(err, &r) || r.Kind != c.kind || r.Param != c.param || s != nil {
			t.Errorf("%s: error %#v, want kind %v about %q", name, err, c.kind, c.param)
		} else if (r.Limit > 0) != (r.Kind == engine.ContextLength) {
			t.Errorf("%s: a limit of %d bytes", name, r.Limit)
		}
	}
	if st := e.Status(); st.PromptTokens != 0 {
		t.Errorf("refused prompts were counted: %+v", st)
	}
}

func TestQueueIsBounded(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 1, Queue: 2}, ref.Options{})
	e.SetLimits(guard.Limits{PausePrefill: true, Sequence: 1}) // nothing is admitted meanwhile
	var streams []*engine.Stream
	for range 3 {
		s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	_, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	var r *engine.Refusal
	if !errors.As(err, &r) || r.Kind != engine.QueueFull || r.RetryAfter <= 0 {
		t.Errorf("the fourth request: %v, want QueueFull with a time to retry", err)
	}
	e.SetLimits(guard.Limits{PausePrefill: false, Sequence: 1}) // a publication that is not newer
	e.SetLimits(guard.Limits{Sequence: 2})
	for _, s := range streams {
		if a := collect(t, s); a.finished.Err != nil {
			t.Errorf("a queued request ended with %v", a.finished.Err)
		}
	}
	if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1}); a.finished.Err != nil {
		t.Errorf("after the queue emptied: %v", a.finished.Err)
	}
}

func TestOlderLimitsAreIgnored(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	e.SetLimits(guard.Limits{PausePrefill: true, Sequence: 5})
	e.SetLimits(guard.Limits{PausePrefill: false, Sequence: 4})
	s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if ev, err := s.Next(short); err == nil {
		t.Fatalf("an older publication lifted the pause: %+v", ev)
	}
	e.SetLimits(guard.Limits{Sequence: 6})
	collect(t, s)
}

func TestStopStringsAndLengthEndTheText(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	whole := ask(t, e, engine.Request{Prompt: prompt("The capital"), Sampling: draws(3), MaxTokens: 60})
	if whole.finished.Reason != engine.Length || whole.finished.Stop != "" || whole.finished.Usage.Generated != 60 || whole.finished.Usage.Prompt == 0 {
		t.Fatalf("an answer of 60 tokens ended with %+v", whole.finished)
	}
	runes := []rune(whole.text)
	stopAt := string(runes[len(runes)/2 : len(runes)/2+3])
	cut := ask(t, e, engine.Request{Prompt: prompt("The capital"), Sampling: draws(3), MaxTokens: 60, Stop: []string{stopAt, "never seen here"}})
	want, _, _ := strings.Cut(whole.text, stopAt)
	if cut.finished.Reason != engine.Stop || cut.finished.Stop != stopAt || cut.text != want {
		t.Errorf("with stop %q the text is %q (%v, by %q), want %q", stopAt, cut.text, cut.finished.Reason, cut.finished.Stop, want)
	}
}

func TestShutdownDrainsAndThenCancels(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{})
	s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 30})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if n := e.Shutdown(ctx); n != 0 {
		t.Errorf("%d requests were cancelled within a long drain", n)
	}
	if a := collect(t, s); a.finished.Err != nil || a.finished.Usage.Generated != 30 {
		t.Errorf("the drained request ended with %+v", a.finished)
	}
	var r *engine.Refusal
	if _, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello")}); !errors.As(err, &r) || r.Kind != engine.NotReady {
		t.Errorf("a stopped engine answers %v", err)
	}

	e = ready(t, engine.Options{Sequences: 1}, ref.Options{}, paced)
	running, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 500})
	if err != nil {
		t.Fatal(err)
	}
	waiting, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 500})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := running.Next(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := stop(e); n != 2 {
		t.Errorf("%d requests were cancelled, want 2", n)
	}
	for _, s := range []*engine.Stream{running, waiting} {
		if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Cancelled {
			t.Errorf("a request past the drain deadline ended with %+v", a.finished)
		}
	}
}

func TestShutdownWhileLoadingIsOrderly(t *testing.T) {
	c := tinymodel.Large(60 << 20)
	e := start(t, engine.Options{ModelPath: model(t, c)}, ref.Options{})
	for e.Status().LoadedBytes == 0 && e.Status().State == engine.Loading {
		runtime.Gosched()
	}
	stop(e)
	if err := e.Wait(); err != nil {
		t.Errorf("engine ended with %v", err)
	}
	if st := e.Status(); st.State != engine.Stopped {
		t.Errorf("state %v", st.State)
	}
}

func TestABackEndFaultEndsItsRequestsAndTheEngineGoesOn(t *testing.T) {
	var failing atomic.Bool
	broken := errors.New("device lost")
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{}, func(op string) error {
		if op == "AppendAttend" && failing.Load() {
			return broken
		}
		return nil
	})
	want := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 10})
	for round := range 2 {
		failing.Store(true)
		if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 10}); a.finished.Err == nil || a.finished.Err.Kind != engine.Internal {
			t.Fatalf("round %d: a failed step ended with %+v", round, a.finished)
		}
		failing.Store(false)
		same(t, "after the fault", []answer{ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 10})}, []answer{want})
	}
	failing.Store(true)
	for range 3 {
		if s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello")}); err == nil {
			collect(t, s)
		}
	}
	if err := e.Wait(); !errors.Is(err, engine.ErrBackend) {
		t.Errorf("after three failures in a row the engine ended with %v", err)
	}
	if st := e.Status(); st.State != engine.Failed || st.Reason != "BackendFailed" {
		t.Errorf("status is %v, %s", st.State, st.Reason)
	}
}

// TestWeightsThatGenerateNoTokenAreNeverReady: they load, every step succeeds, and
// what comes out are no numbers.
func TestWeightsThatGenerateNoTokenAreNeverReady(t *testing.T) {
	c := tinymodel.Default()
	c.NormSpread = math.NaN()
	e := start(t, engine.Options{ModelPath: model(t, c)}, ref.Options{})
	if err := e.Wait(); err == nil {
		t.Error("the engine ended without an error")
	}
	if st := e.Status(); st.State != engine.Failed || st.Reason != "CanaryFailed" || !strings.Contains(st.Message, "cannot generate a token") {
		t.Errorf("status is %v, %s: %s", st.State, st.Reason, st.Message)
	}
}

func TestModelsThatCannotBeServedFailWithAReason(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.gguf")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a model ", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	whole := model(t, tinymodel.Default())
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.gguf")
	if err := os.WriteFile(cut, b[:len(b)-1000], 0o644); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign.gguf")
	if err := os.WriteFile(foreign, bytes.Replace(b, []byte("gpt2"), []byte("gpt9"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o      engine.Options
		reason string
	}{
		"foreign tokenizer": {o: engine.Options{ModelPath: foreign}, reason: "UnsupportedModel"},
		"missing":           {o: engine.Options{ModelPath: filepath.Join(dir, "none.gguf")}, reason: "ModelNotFound"},
		"garbage":           {o: engine.Options{ModelPath: garbage}, reason: "InvalidModel"},
		"truncated":         {o: engine.Options{ModelPath: cut}, reason: "InvalidModel"},
		"context too long":  {o: engine.Options{ModelPath: whole, ContextTokens: 513}, reason: "InvalidConfiguration"},
		"cache too small":   {o: engine.Options{ModelPath: whole, ContextTokens: 100, CacheTokens: 99}, reason: "InvalidConfiguration"},
		"limit too small":   {o: engine.Options{ModelPath: whole, LimitBytes: 1 << 20}, reason: "MemoryLimit"},
		"nothing is served": {o: engine.Options{ModelPath: dir + "/*"}, reason: "ModelNotFound"},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, c.o, ref.Options{})
			if err := e.Wait(); err == nil {
				t.Error("the engine ended without an error")
			}
			if st := e.Status(); st.State != engine.Failed || st.Reason != c.reason || st.Message == "" {
				t.Errorf("status is %v, %s: %s; want %s", st.State, st.Reason, st.Message, c.reason)
			}
			if n := e.Status().LoadedBytes; n != 0 {
				t.Errorf("%d bytes of weights were read for it", n)
			}
		})
	}
}

// The process bounds the garbage of its heap by what the engine reports.
func TestTheHeapOfAnEngineIsBounded(t *testing.T) {
	var told []int64
	const limit = 200 << 20
	ready(t, engine.Options{LimitBytes: limit, HeapLimit: func(n int64) { told = append(told, n) }}, ref.Options{})
	if len(told) != 1 || told[0] < 64<<20 || told[0] >= limit {
		t.Errorf("the heap may take %d bytes", told)
	}
	ready(t, engine.Options{HeapLimit: func(n int64) { t.Errorf("without a limit the heap may take %d bytes", n) }}, ref.Options{})
}

func TestPromptThatDoesNotFitIsRefused(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 1 << 20
	e := ready(t, engine.Options{ModelPath: model(t, c), ContextTokens: 200_000, LimitBytes: 60 << 20}, ref.Options{})
	_, err := e.Generate(context.Background(), engine.Request{Tokens: make([]int32, 150_000), MaxTokens: 1})
	var r *engine.Refusal
	if !errors.As(err, &r) || r.Kind != engine.OutOfMemory || r.Limit != 60<<20 || r.Needed <= 0 || r.Used <= 0 || r.Used+r.Needed <= r.Limit {
		t.Errorf("error %#v, want OutOfMemory with used, needed and limit", err)
	}
	if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1}); a.finished.Err != nil {
		t.Errorf("a short prompt: %v", a.finished.Err)
	}
}

func TestChatGoesThroughTheTemplate(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	greedy := sample.Greedy()
	s, err := e.Generate(context.Background(), engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi <|im_end|>"}}}, Sampling: &greedy, MaxTokens: 3})
	if err != nil {
		t.Fatal(err)
	}
	ids := s.Prompt()
	collect(t, s)
	starts := 0
	for _, id := range ids {
		if id == 1 {
			starts++
		}
	}
	if ids[0] != 1 || starts != 3 { // system, user, assistant
		t.Errorf("prompt %v has %d turns, want 3", ids, starts)
	}
}

func TestStatusNeverWaitsForAStep(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var armed atomic.Bool
	e := ready(t, engine.Options{}, ref.Options{}, func(op string) error {
		if armed.Load() {
			once.Do(func() {
				close(entered)
				<-leave
			})
		}
		return nil
	})
	armed.Store(true)
	s, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	<-entered // the loop now stands inside a step
	if st := e.Status(); st.Running != 1 || st.State != engine.Ready || st.Memory.Weights == 0 {
		t.Errorf("status inside a step is %+v", st)
	}
	e.SetLimits(guard.Limits{Sequence: 1, Memory: 1 << 40})
	close(leave)
	collect(t, s)
}

var _ tensor.Backend = (*ref.Backend)(nil)
