package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	facts "metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// readerModel writes a tiny reader.
func readerModel(t *testing.T, name string) string {
	t.Helper()
	for _, r := range tinymodel.Readers() {
		if r.Name == name {
			dir := filepath.Join(t.TempDir(), "model")
			if err := r.Write(dir); err != nil {
				t.Fatal(err)
			}
			return dir
		}
	}
	t.Fatalf("no reader is called %q", name)
	return ""
}

var truncated = embed.Options{Truncate: true}

// byHand computes with a reader what an engine should.
func byHand(t *testing.T, path string, task facts.Task) *engine.Reader {
	t.Helper()
	r, err := engine.OpenReader(context.Background(), path, ref.New(ref.Options{Threads: 2}), task)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestVectorsAreTheSameInAnyCompany: many requests at once get what each text
// gets alone, in order, and what they read is counted.
func TestVectorsAreTheSameInAnyCompany(t *testing.T) {
	for _, name := range []string{"bert mean", "qwen3 embed"} {
		path := readerModel(t, name)
		alone := byHand(t, path, facts.Embed)
		e := ready(t, engine.Options{ModelPath: path, Sequences: 4}, ref.Options{})
		if got := e.Status().Task; got != facts.Embed {
			t.Errorf("%s: the task is %q", name, got)
		}
		var all sync.WaitGroup
		for i := range 6 {
			texts := append(tinymodel.ReaderTexts()[i:], fmt.Sprint("number ", i))
			want, tokens, err := alone.Embed(context.Background(), texts, truncated)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				got, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: texts, Options: truncated})
				if err != nil || got.PromptTokens != tokens || !slices.EqualFunc(got.Vectors, want, slices.Equal) {
					t.Errorf("%s, request %d: %v, %d tokens, want %d", name, i, err, got.PromptTokens, tokens)
				}
			})
		}
		all.Wait()
		if n := engine.Kept(e); n != 0 {
			t.Errorf("%s: %d requests are kept", name, n)
		}
	}
}

func TestScoresAreTheSameInAnyCompany(t *testing.T) {
	for _, name := range []string{"bert rerank", "xlm-roberta rerank", "qwen3 rerank"} {
		path := readerModel(t, name)
		documents := tinymodel.ReaderTexts()[1:]
		want, tokens, err := byHand(t, path, facts.Rerank).Rerank(context.Background(), "a man", documents, truncated)
		if err != nil {
			t.Fatal(err)
		}
		e := ready(t, engine.Options{ModelPath: path, Sequences: 2}, ref.Options{})
		got, err := e.Rerank(context.Background(), engine.RerankRequest{Query: "a man", Documents: documents, Options: truncated})
		if err != nil || !slices.Equal(got.Scores, want) || got.PromptTokens != tokens {
			t.Errorf("%s: %+v (%v), want %v of %d tokens", name, got, err, want, tokens)
		}
	}
}

// A thousand of each kind; the error names the right request.
func TestRequestOfTheWrongKindLeavesNothing(t *testing.T) {
	ctx := context.Background()
	generate := func(e *engine.Engine) error {
		_, err := e.Generate(ctx, engine.Request{Prompt: prompt("hello")})
		return err
	}
	vectors := func(e *engine.Engine) error {
		_, err := e.Embed(ctx, engine.EmbedRequest{Texts: []string{"a"}})
		return err
	}
	scores := func(e *engine.Engine) error {
		_, err := e.Rerank(ctx, engine.RerankRequest{Query: "a", Documents: []string{"b"}})
		return err
	}
	for name, c := range map[string]struct {
		path  string
		tries map[string]func(*engine.Engine) error
		says  string
	}{
		"an embedder": {path: readerModel(t, "bert mean"), tries: map[string]func(*engine.Engine) error{"text": generate, "scores": scores}, says: "use it for embeddings"},
		"a reranker":  {path: readerModel(t, "qwen3 rerank"), tries: map[string]func(*engine.Engine) error{"text": generate, "vectors": vectors}, says: "use it for rerank"},
		"a writer":    {tries: map[string]func(*engine.Engine) error{"vectors": vectors, "scores": scores}, says: "use it for chat or completions"},
	} {
		e := ready(t, engine.Options{ModelPath: c.path}, ref.Options{})
		for asked, try := range c.tries {
			for range 1000 {
				err := try(e)
				if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.Invalid || r.Param != "model" || !strings.Contains(r.Message, c.says) {
					t.Fatalf("%s, asked for %s: %v", name, asked, err)
				}
			}
		}
		if s := e.Status(); engine.Kept(e) != 0 || s.Running != 0 || s.Queued != 0 {
			t.Errorf("%s keeps %d requests: %+v", name, engine.Kept(e), s)
		}
	}
}

// held is a back end's fault that holds passes up until it is opened.
type held struct {
	gate chan struct{}
	on   atomic.Bool
	in   chan struct{}
}

func holding() *held { return &held{gate: make(chan struct{}), in: make(chan struct{}, 1000)} }

func (h *held) fault(op string) error {
	if op == "Embed" && h.on.Load() {
		h.in <- struct{}{}
		<-h.gate
	}
	return nil
}

// A request whose client left counts until its pass ends.
func TestActiveEmbeddingsAreCounted(t *testing.T) {
	const n = 5
	h := holding()
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Sequences: 2}, ref.Options{}, h.fault)
	h.on.Store(true)
	var all sync.WaitGroup
	ask := func(ctx context.Context, want engine.Kind) {
		all.Go(func() {
			_, err := e.Embed(ctx, engine.EmbedRequest{Texts: []string{"a", "b"}})
			var r *engine.Refusal
			if want == 0 && err != nil || want != 0 && (!errors.As(err, &r) || r.Kind != want) {
				t.Errorf("%v, want kind %v", err, want)
			}
		})
	}
	ask(context.Background(), 0)
	<-h.in // the first is under way
	for range n - 2 {
		ask(context.Background(), 0)
	}
	gone, leave := context.WithCancel(context.Background())
	ask(gone, engine.Cancelled)
	until(t, func() bool { return engine.Kept(e) >= n })
	leave()
	h.on.Store(false)
	close(h.gate)
	all.Wait()
	until(t, func() bool { return engine.Kept(e) == 0 })
	if s := e.Status(); s.Running != 0 || s.Queued != 0 {
		t.Errorf("after all ended: %+v", s)
	}
}

// TestTextsOfClientsThatLeftAreNotComputed to their end, unless others are in the same pass.
func TestTextsOfClientsThatLeftAreNotComputed(t *testing.T) {
	var stepped atomic.Bool
	op, next := make(chan struct{}), make(chan struct{})
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Sequences: 2}, ref.Options{}, func(string) error {
		if stepped.Load() {
			op <- struct{}{}
			<-next
		}
		return nil
	})
	// operations computes a text whose client leaves in the first operation or not at all.
	operations := func(leaves bool) (n int) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		stepped.Store(true)
		ended := make(chan error, 1)
		go func() {
			_, err := e.Embed(ctx, engine.EmbedRequest{Texts: []string{"the man is eating"}})
			ended <- err
		}()
		for {
			select {
			case <-op:
				if n++; leaves && n == 1 {
					leave()
					var r *engine.Refusal
					if err := <-ended; !errors.As(err, &r) || r.Kind != engine.Cancelled {
						t.Errorf("a client that left: %v", err)
					}
				}
				if leaves {
					time.Sleep(20 * time.Millisecond) // the engine notices it in another goroutine
				}
				next <- struct{}{}
			case <-time.After(time.Millisecond):
				if engine.Kept(e) == 0 && (leaves && n > 0 || !leaves && len(ended) > 0) {
					stepped.Store(false)
					return n
				}
			}
		}
	}
	whole := operations(false)
	if n := operations(true); whole < 8 || n > whole/2 {
		t.Errorf("%d of %d operations were computed for a client that left in the first", n, whole)
	}
}

// until polls what another goroutine brings about.
func until(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to be")
		}
	}
}

func TestAbortEndsEmbeddingsAndTheEngineContinues(t *testing.T) {
	h := holding()
	e := ready(t, engine.Options{ModelPath: readerModel(t, "xlm-roberta cls"), Sequences: 1}, ref.Options{}, h.fault)
	h.on.Store(true)
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: slices.Repeat([]string{"the man is eating"}, 100)})
			ended <- err
		}()
	}
	<-h.in
	until(t, func() bool { return engine.Kept(e) >= 2 })
	aborted := make(chan int, 1)
	go func() {
		n, err := e.Abort(context.Background(), "memory")
		if err != nil {
			t.Error(err)
		}
		aborted <- n
	}()
	until(t, func() bool { return engine.Kept(e) >= 3 }) // the abort waits for the pass
	h.on.Store(false)
	close(h.gate)
	if n := <-aborted; n != 2 {
		t.Errorf("%d requests were aborted, want 2", n)
	}
	for range 2 {
		var r *engine.Refusal
		if err := <-ended; !errors.As(err, &r) || r.Kind != engine.Aborted || r.RetryAfter == 0 {
			t.Errorf("ended with %v", err)
		}
	}
	if s := e.Status(); s.Running+s.Queued != 0 {
		t.Errorf("after the abort: %+v", s)
	}
	if _, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a"}}); err != nil {
		t.Errorf("after an abort: %v", err)
	}
}

// TestALongListHoldsNobodyUp: a text that arrives after a list of hundreds is
// computed in the next pass.
func TestALongListHoldsNobodyUp(t *testing.T) {
	h := holding()
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Sequences: 2}, ref.Options{}, h.fault)
	h.on.Store(true)
	long := make(chan error, 1)
	go func() {
		_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: slices.Repeat([]string{strings.Repeat("x ", 30)}, 800)})
		long <- err
	}()
	<-h.in
	short := make(chan int64, 1)
	go func() {
		if _, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a"}}); err != nil {
			t.Error(err)
		}
		short <- e.Status().Steps
	}()
	until(t, func() bool { return engine.Kept(e) >= 2 })
	h.on.Store(false)
	close(h.gate)
	behind := <-short
	if err := <-long; err != nil {
		t.Error(err)
	}
	if all := e.Status().Steps; all < 100 || behind > all/2 {
		t.Errorf("the text was read by step %d of %d", behind, all)
	}
}

// TestReadingsAreRefusedAsOtherRequestsAre, before anything is computed.
func TestReadingsAreRefusedAsOtherRequestsAre(t *testing.T) {
	ctx := context.Background()
	vectors := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean")}, ref.Options{})
	pairs := ready(t, engine.Options{ModelPath: readerModel(t, "bert rerank"), ContextTokens: 20}, ref.Options{})
	judge := ready(t, engine.Options{ModelPath: readerModel(t, "qwen3 rerank")}, ref.Options{})
	embedding := func(r engine.EmbedRequest) func() error {
		return func() error { _, err := vectors.Embed(ctx, r); return err }
	}
	ranking := func(r engine.RerankRequest) func() error {
		return func() error { _, err := pairs.Rerank(ctx, r); return err }
	}
	for name, c := range map[string]struct {
		try  func() error
		kind engine.Kind
		says string
	}{
		"no texts":            {try: embedding(engine.EmbedRequest{}), kind: engine.Invalid, says: "0 texts, want 1 to 2048"},
		"too many":            {try: embedding(engine.EmbedRequest{Texts: make([]string, 2049)}), kind: engine.Invalid, says: "2049 texts"},
		"no documents":        {try: ranking(engine.RerankRequest{Query: "a"}), kind: engine.Invalid, says: "0 texts"},
		"a text that is long": {try: embedding(engine.EmbedRequest{Texts: []string{"a", strings.Repeat("a ", 100)}}), kind: engine.ContextLength, says: "text 1: the input is too long"},
		"bytes":               {try: embedding(engine.EmbedRequest{Texts: []string{strings.Repeat("a", 1<<20)}, Options: truncated}), kind: engine.ContextLength, says: "text 0 has 1048576 bytes"},
		"a long query":        {try: ranking(engine.RerankRequest{Query: strings.Repeat("a", 1<<20), Documents: []string{"b"}, Options: truncated}), kind: engine.ContextLength, says: "the query has 1048576 bytes"},
		"the context promised": {try: ranking(engine.RerankRequest{Query: "a", Documents: []string{strings.Repeat("b ", 20)}}), kind: engine.ContextLength,
			says: "the model supports 20"},
		"a query for many documents": {try: func() error {
			_, err := judge.Rerank(ctx, engine.RerankRequest{Query: strings.Repeat("a", 17<<10), Documents: make([]string, 2048), Options: truncated})
			return err
		}, kind: engine.Invalid, says: "too long together"},
		"no such prompt": {try: embedding(engine.EmbedRequest{Texts: []string{"a"}, Options: embed.Options{Prompt: "query"}}), kind: engine.Invalid, says: "the model has none"},
	} {
		err := c.try()
		if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != c.kind || !strings.Contains(r.Message, c.says) || r.Param == "" {
			t.Errorf("%s: %v, want kind %v saying %q", name, err, c.kind, c.says)
		}
	}
	if engine.Kept(vectors) != 0 || engine.Kept(pairs) != 0 || vectors.Status().Steps != 1 {
		t.Errorf("refusals left something: %+v", vectors.Status())
	}
}

func TestTooManyReadingsAreRefused(t *testing.T) {
	h := holding()
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Sequences: 1, Queue: 1}, ref.Options{}, h.fault)
	h.on.Store(true)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if _, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a"}}); err != nil {
				t.Error(err)
			}
		})
	}
	<-h.in
	until(t, func() bool { return engine.Kept(e) >= 2 })
	_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a"}})
	if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.QueueFull || r.RetryAfter == 0 {
		t.Errorf("a third request: %v", err)
	}
	h.on.Store(false)
	close(h.gate)
	all.Wait()
}

// With figures, before anything is computed. Requests that wait while prompts
// are paused are computed later.
func TestEmbeddingThatDoesNotFitIsRefused(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Supervised: true}, ref.Options{})
	held := e.Status().Memory.Active() + engine.Overhead(e)
	e.SetLimits(guard.Limits{Memory: held + 1000, Sequence: 1})
	ask := func() error {
		_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"where does a man eat"}})
		return err
	}
	err := ask()
	if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.OutOfMemory || r.Needed == 0 || r.Limit != held+1000 || r.Param != "input" {
		t.Errorf("under a limit: %#v", err)
	}
	if s := e.Status(); s.Steps != 1 || s.Guard.Refused != 1 || engine.Kept(e) != 0 {
		t.Errorf("the refusal left something: %+v", s)
	}
	e.SetLimits(guard.Limits{Memory: held + 1<<30, Sequence: 2, PausePrefill: true})
	done := make(chan error, 1)
	go func() { done <- ask() }()
	until(t, func() bool { return e.Status().Queued+e.Status().Running == 1 })
	if n := e.Status().Steps; n != 1 {
		t.Errorf("%d passes while prompts are paused", n)
	}
	e.SetLimits(guard.Limits{Memory: held + 1<<30, Sequence: 3})
	if err := <-done; err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// What fitted at admission may not fit any more.
func TestEmbeddingIsCheckedAgainBeforeItIsComputed(t *testing.T) {
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean"), Supervised: true}, ref.Options{})
	held := e.Status().Memory.Active() + engine.Overhead(e)
	e.SetLimits(guard.Limits{Memory: held + 1<<30, Sequence: 1, PausePrefill: true})
	done := make(chan error, 1)
	go func() {
		_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"where does a man eat"}})
		done <- err
	}()
	until(t, func() bool { return e.Status().Queued+e.Status().Running == 1 })
	e.SetLimits(guard.Limits{Memory: held + 1000, Sequence: 2})
	err := <-done
	if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.OutOfMemory || r.Needed == 0 || r.Limit != held+1000 {
		t.Errorf("under a limit that came later: %#v", err)
	}
	if s := e.Status(); s.Steps != 1 || s.Guard.Aborted != 1 || engine.Kept(e) != 0 {
		t.Errorf("it left something: %+v", s)
	}
}

// TestADecoderKeepsNoMoreThanWasPromised: of many short texts no more stand in
// the cache at once than sequences were promised.
func TestADecoderKeepsNoMoreThanWasPromised(t *testing.T) {
	var served atomic.Pointer[engine.Engine]
	var most atomic.Int64
	o := engine.Options{ModelPath: readerModel(t, "qwen3 embed"), Sequences: 2}
	e := ready(t, o, ref.Options{}, func(op string) error {
		if e := served.Load(); e != nil && op == "Unit" {
			most.Store(max(most.Load(), e.Status().Memory.KV))
		}
		return nil
	})
	served.Store(e)
	if _, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: slices.Repeat([]string{"a"}, 9)}); err != nil {
		t.Fatal(err)
	}
	const block = 256 * 2 * 2 * 2 * 32 * 4 // tokens, keys and values, layers, heads, their size, bytes
	if got := most.Load(); got != 2*block {
		t.Errorf("%d bytes of KV are held at once, want those of 2 texts: %d", got, 2*block)
	}
}

// One of two texts in a pass hits the limit however small the pass is; the
// engine continues.
func TestEmbeddingThatRunsOutOfMemoryFailsAlone(t *testing.T) {
	var full atomic.Bool
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean")}, ref.Options{}, func(op string) error {
		if full.Load() && op == "GELU" {
			return fmt.Errorf("no bytes: %w", tensor.ErrMemory)
		}
		return nil
	})
	full.Store(true)
	_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a", "b"}})
	if r := new(engine.Refusal); !errors.As(err, &r) || r.Kind != engine.OutOfMemory {
		t.Errorf("out of memory: %v", err)
	}
	full.Store(false)
	if _, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"a", "b"}}); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestABackEndThatFailsEndsItsReadings, and the third time in a row the engine.
func TestABackEndThatFailsEndsItsReadings(t *testing.T) {
	var broken atomic.Bool
	e := ready(t, engine.Options{ModelPath: readerModel(t, "bert rerank")}, ref.Options{}, func(op string) error {
		if broken.Load() && op == "GELU" {
			return errors.New("device lost")
		}
		return nil
	})
	ask := func() error {
		_, err := e.Rerank(context.Background(), engine.RerankRequest{Query: "a", Documents: []string{"b"}})
		return err
	}
	for round := range 2 { // two failures, a success between them and three more
		broken.Store(true)
		for range 2 + round {
			if r, err := new(engine.Refusal), ask(); !errors.As(err, &r) || r.Kind != engine.Internal {
				t.Errorf("a broken back end: %v", err)
			}
		}
		broken.Store(false)
		if err := ask(); (err == nil) != (round == 0) {
			t.Errorf("round %d, then: %v", round, err)
		}
	}
	if err := e.Wait(); !errors.Is(err, engine.ErrBackend) || e.Status().State != engine.Failed {
		t.Errorf("the engine ended with %v", err)
	}
}

// TestAShutdownLetsReadingsFinishOrCancelsThem.
func TestAShutdownLetsReadingsFinishOrCancelsThem(t *testing.T) {
	for _, patient := range []bool{true, false} {
		h := holding()
		e := ready(t, engine.Options{ModelPath: readerModel(t, "bert mean")}, ref.Options{}, h.fault)
		h.on.Store(true)
		ended := make(chan error, 1)
		go func() {
			_, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: slices.Repeat([]string{strings.Repeat("x ", 30)}, 50)})
			ended <- err
		}()
		<-h.in
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if !patient {
			cancel()
		}
		cancelled := make(chan int, 1)
		go func() { cancelled <- e.Shutdown(ctx) }()
		until(t, func() bool { return e.Status().State == engine.Draining })
		h.on.Store(false)
		close(h.gate)
		err, n := <-ended, <-cancelled
		var r *engine.Refusal
		if patient && (err != nil || n != 0) || !patient && (!errors.As(err, &r) || r.Kind != engine.Cancelled || n != 1) {
			t.Errorf("patient %v: %v, %d cancelled", patient, err, n)
		}
		cancel()
	}
}

// TestADecoderThatSaysNothingMayBeWantedForAnything, an encoder may not.
func TestADecoderThatSaysNothingMayBeWantedForAnything(t *testing.T) {
	e := ready(t, engine.Options{Task: facts.Embed}, ref.Options{})
	if got, err := e.Embed(context.Background(), engine.EmbedRequest{Texts: []string{"hello"}}); err != nil || len(got.Vectors) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	encoder := start(t, engine.Options{Task: facts.Generate, ModelPath: readerModel(t, "bert mean")}, ref.Options{})
	if err := encoder.Wait(); err == nil || encoder.Status().Reason != "UnsupportedModel" {
		t.Errorf("an encoder that is to write text: %v, %+v", err, encoder.Status())
	}
}
