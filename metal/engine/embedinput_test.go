package engine

import (
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/wire"
)

// readerInput processes the input of a tiny embedding model or reranker.
func readerInput(t *testing.T, name string) *inputProcessor {
	t.Helper()
	return withTokenizer(t, name, func(text string) string { return text })
}

// withTokenizer is readerInput of a model whose tokenizer.json is changed.
func withTokenizer(t *testing.T, name string, change func(string) string) *inputProcessor {
	t.Helper()
	all := tinymodel.Readers()
	r := all[slices.IndexFunc(all, func(r tinymodel.Reader) bool { return r.Name == name })]
	dir := filepath.Join(t.TempDir(), "model")
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(change(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &inputProcessor{context: 1 << 20, ends: map[int32]bool{}, task: model.Embed, long: share.NewTurns(1), received: share.NewBytes(receivedBytes), texts: share.NewBytes(waitingTextBytes), renders: share.NewTurns(renderPlaces)}
	if r.Rerank {
		p.task = model.Rerank
	}
	if err := p.open(t.Context(), f, ""); err != nil {
		t.Fatal(err)
	}
	return p
}

// written are n short texts with an instruction before each.
func (p *inputProcessor) written(t *testing.T, n, instruction int) texts {
	t.Helper()
	o := embed.Options{Instruction: strings.Repeat("x", instruction), Truncate: true, MaxTokens: 160}
	if p.task == model.Embed {
		return p.embedTexts(EmbedRequest{Texts: slices.Repeat([]string{"a"}, n), Options: o})
	}
	all, refusal := p.rerankTexts(RerankRequest{Query: "q", Documents: slices.Repeat([]string{"a"}, n), Options: o})
	if refusal != nil {
		t.Fatal(refusal)
	}
	return all
}

// TestAttackAnInstructionOfManyTexts: it counts for each text that it is written before, and
// nothing is tokenized of texts that are too long with it.
func TestAttackAnInstructionOfManyTexts(t *testing.T) {
	for _, name := range []string{"qwen3 embed", "qwen3 rerank"} {
		p := readerInput(t, name)
		most := p.conventions.Limit * textBytesPerToken
		for _, c := range []struct {
			texts, instruction int
			kind               Kind
		}{
			{texts: maxInputs, instruction: maxInputBytes / maxInputs, kind: Invalid},
			{texts: 2, instruction: most, kind: ContextLength},
		} {
			all, read := p.written(t, c.texts, c.instruction), 0
			input := all.input
			all.input = func(ctx context.Context, i int) (embed.Tokenized, error) { read++; return input(ctx, i) }
			_, refusal := p.embeddingOf(t.Context(), "a", all)
			if refusal == nil || refusal.Kind != c.kind || read > 0 {
				t.Errorf("%s: %d texts after %d bytes: %v, want kind %v; %d were tokenized", name, c.texts, c.instruction, refusal, c.kind, read)
			}
		}
		if e, refusal := p.embeddingOf(t.Context(), "a", p.written(t, 2, 100)); refusal != nil || len(e.inputs) != 2 {
			t.Errorf("%s: a short instruction: %v", name, refusal)
		}
	}
}

// TestAttackTextsOfOneTenantThatWait: a tenant's requests hold at most half of the room, what
// does not fit is refused before it is tokenized, and nothing stays counted of it.
func TestAttackTextsOfOneTenantThatWait(t *testing.T) {
	for _, name := range []string{"bert rerank", "qwen3 rerank", "qwen3 embed"} {
		p := readerInput(t, name)
		p.conventions.Width = 0
		p.texts = share.NewBytes(8 * 10 * textBytes)
		ask := func(tenant string, count int) (*embedding, *Refusal, int) {
			all, read := p.written(t, count, 0), 0
			input := all.input
			all.input = func(ctx context.Context, i int) (embed.Tokenized, error) { read++; return input(ctx, i) }
			e, refusal := p.embeddingOf(t.Context(), tenant, all)
			return e, refusal, read
		}
		e, refusal, _ := ask("hog", 20)
		if refusal != nil {
			t.Fatal(name, refusal)
		}
		held := p.texts.Held()
		if _, refusal, read := ask("hog", 30); refusal == nil || refusal.Kind != QueueFull || refusal.RetryAfter == 0 || read > 0 {
			t.Errorf("%s: beyond the share of the tenant: %v; %d texts were tokenized", name, refusal, read)
		}
		if _, refusal, read := ask("hog", 100); refusal == nil || refusal.Kind != Invalid || read > 0 {
			t.Errorf("%s: more than fits ever: %v; %d texts were tokenized", name, refusal, read)
		}
		all := p.written(t, 10, 0)
		all.input = func(context.Context, int) (embed.Tokenized, error) { panic("a text") }
		if err := contained(slog.New(slog.DiscardHandler), "input", func() error { p.embeddingOf(t.Context(), "other", all); return nil }); err == nil {
			t.Errorf("%s: no panic", name)
		}
		if p.texts.Held() != held {
			t.Errorf("%s: %d bytes are counted after refusals, want %d", name, p.texts.Held(), held)
		}
		if _, refusal, _ := ask("other", 10); refusal != nil {
			t.Errorf("%s: another tenant: %v", name, refusal)
		}
		e.end(nil)
		if _, refusal, _ := ask("hog", 20); refusal != nil {
			t.Errorf("%s: when the first has ended: %v", name, refusal)
		}
	}
}

// TestTextsFitInTheSlackOfTheLimit: what waits of texts fits between what was reserved and the
// limit, and the longest request into the share of a tenant. An engine knows its limit of garbage
// (Options.HeapLimit).
func TestTextsFitInTheSlackOfTheLimit(t *testing.T) {
	if slack, most := footprint.EngineLimit(0), int64(waitingTextBytes+receivedTextBytes); most > slack {
		t.Errorf("texts take %d bytes, and the slack is %d", most, slack)
	}
	if most := share.NewBytes(waitingTextBytes).Limit("a"); maxInputTokens*tokenBytes+maxInputs*textBytes > most {
		t.Errorf("the longest request takes %d bytes, and a tenant has %d", maxInputTokens*tokenBytes+maxInputs*textBytes, most)
	}
}

// The two longest lists of texts wait at once, also of long vectors, where the limit has room for
// them; elsewhere no more than texts take.
func TestListsOfLongVectorsFitInTheirRoom(t *testing.T) {
	for _, c := range []struct {
		name        string
		width       int
		limited     bool
		slack, want int64
	}{
		{name: "scores", width: 1, want: waitingTextBytes + 16<<10},
		{name: "no limit", width: 4096, want: waitingTextBytes + 64<<20},
		{name: "a small model", width: 1024, limited: true, slack: 64 << 20, want: waitingTextBytes},
		{name: "a limit without slack", width: 1024, limited: true, slack: -1 << 30, want: waitingTextBytes},
		{name: "a large model", width: 4096, limited: true, slack: 400 << 20, want: waitingTextBytes + 64<<20},
		{name: "a model of 2.4 GB", width: 2560, limited: true, slack: 120 << 20, want: 75 << 20},
	} {
		p := &inputProcessor{conventions: &embed.Conventions{Width: c.width}}
		got := p.waitingBytes(c.limited, c.slack)
		if got != c.want || c.limited && got+receivedTextBytes > max(c.slack, footprint.EngineLimit(0)) {
			t.Errorf("%s: %d bytes for texts and vectors, want %d", c.name, got, c.want)
		}
		if list := maxInputs * (textBytes + p.resultBytes()); list > share.NewBytes(got).Limit("a") {
			t.Errorf("%s: the longest list takes %d bytes, more than the share of a tenant of %d", c.name, list, got)
		}
	}
}

// A request has no more texts than vectors fit into one message to the agent, which could not be sent after
// all of them were computed. More are refused before any is read.
func TestVectorsOfARequestFitInOneMessage(t *testing.T) {
	for _, c := range []struct{ width, want int }{
		{width: 1, want: maxInputs}, {width: 4096, want: maxInputs}, {width: 8192, want: 2046}, {width: 16384, want: 1023},
	} {
		p := readerInput(t, "qwen3 embed")
		p.conventions.Width, p.texts = c.width, share.NewBytes(1<<30)
		e, refusal := p.embeddingOf(t.Context(), "a", p.written(t, c.want, 0))
		if refusal != nil {
			t.Fatalf("%d texts of %d numbers each: %v", c.want, c.width, refusal)
		}
		vector := make([]float32, c.width)
		answer := &wire.EmbedResponse{Usage: &wire.Usage{PromptTokens: math.MaxInt64}}
		for range e.inputs {
			answer.Vectors = append(answer.Vectors, &wire.Vector{Values: vector})
		}
		if n := proto.Size(answer); n > wire.MaxMessageBytes {
			t.Errorf("%d vectors of %d numbers take %d bytes, more than a message", c.want, c.width, n)
		}
		e.end(nil)
		all, read := p.written(t, c.want+1, 0), 0
		all.input = func(context.Context, int) (in embed.Tokenized, err error) { read++; return in, nil }
		if _, refusal := p.embeddingOf(t.Context(), "a", all); refusal == nil || refusal.Kind != Invalid || read > 0 {
			t.Errorf("%d texts of %d numbers each: %v, after %d were read", all.count, c.width, refusal, read)
		}
	}
}

// What a request will keep of vectors is counted before any text is read, and until it ends. A list
// that would take more than its tenant may have is refused.
func TestVectorsOfARequestAreCountedUntilItEnds(t *testing.T) {
	p := readerInput(t, "bert mean")
	p.conventions.Width = 1024
	const vector = 4 * 1024
	p.texts = share.NewBytes(100 * vector)
	e, refusal := p.embeddingOf(t.Context(), "a", p.written(t, 30, 0))
	if refusal != nil {
		t.Fatal(refusal)
	}
	if held := p.texts.Of("a"); held < 30*vector {
		t.Errorf("%d bytes are counted of vectors that take %d", held, 30*vector)
	}
	for count, want := range map[int]Kind{20: QueueFull, 50: Invalid} {
		if _, refusal := p.embeddingOf(t.Context(), "a", p.written(t, count, 0)); refusal == nil || refusal.Kind != want {
			t.Errorf("%d more texts: %v, want kind %v", count, refusal, want)
		}
	}
	if e.end(nil); p.texts.Held() != 0 {
		t.Errorf("%d bytes are counted when the request has ended", p.texts.Held())
	}
}

// TestAListGivesWayBetweenItsTexts: another tenant waits for one text of it, also if it is short.
func TestAListGivesWayBetweenItsTexts(t *testing.T) {
	p := readerInput(t, "qwen3 embed")
	for _, instruction := range []int{longBytes / 256, 10} {
		synctest.Test(t, func(t *testing.T) {
			p.long, p.renders = share.NewTurns(1), share.NewTurns(1)
			list, turns := p.written(t, 300, instruction), p.renders
			if list.long() {
				turns = p.long
			}
			read, input := 0, list.input
			list.input = func(ctx context.Context, i int) (embed.Tokenized, error) {
				read++
				if i == 0 { // while another waits
					go func() {
						if err := turns.Take(ctx, "b"); err != nil || read > 1 {
							t.Errorf("another tenant has the turn after %d of %d texts (%v)", read, list.count, err)
						}
						turns.Give("b")
					}()
					synctest.Wait()
				}
				return input(ctx, i)
			}
			if _, refusal := p.embeddingOf(t.Context(), "a", list); refusal != nil {
				t.Error(refusal)
			}
			synctest.Wait()
			if p.long.Free() != 1 || p.renders.Free() != 1 || read != list.count {
				t.Errorf("%d turns and %d places are free after %d of %d texts", p.long.Free(), p.renders.Free(), read, list.count)
			}
		})
	}
}

// TestAttackLongListsTakeTurns: texts that are long together wait for the turn of long ones,
// short texts do not.
func TestAttackLongListsTakeTurns(t *testing.T) {
	for _, name := range []string{"qwen3 embed", "qwen3 rerank"} {
		p := readerInput(t, name)
		synctest.Test(t, func(t *testing.T) {
			p.long = share.NewTurns(1)
			if err := p.long.Take(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			if _, refusal := p.embeddingOf(t.Context(), "b", p.written(t, 1, 100)); refusal != nil {
				t.Errorf("%s: a short text: %v", name, refusal)
			}
			long := p.written(t, 300, longBytes/256)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan *Refusal, 2)
			for _, ctx := range []context.Context{ctx, t.Context()} {
				go func() { _, refusal := p.embeddingOf(ctx, "a", long); ended <- refusal }()
			}
			synctest.Wait()
			if len(ended) > 0 {
				t.Errorf("%s: %d long lists did not wait", name, len(ended))
			}
			cancel()
			if refusal := <-ended; refusal == nil || refusal.Kind != Cancelled {
				t.Errorf("%s: after its client left: %v", name, refusal)
			}
			p.long.Give("other")
			if refusal := <-ended; refusal != nil {
				t.Errorf("%s: when the turn is free: %v", name, refusal)
			}
			if p.long.Free() != 1 {
				t.Errorf("%s: the turn is not given back", name)
			}
		})
	}
}
