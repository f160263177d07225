package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/wire"
)

type send = func(*wire.GenerateEvent) error

// sayOwn answers each choice with its request's number, in two pieces.
func sayOwn() servetest.Script {
	return func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		_, own, another := strings.Cut(r.GetId(), "-")
		events := []*wire.GenerateEvent{servetest.Admit()}
		if r.GetEcho() {
			events = append(events, servetest.Prompt(r.GetPrompt()))
		}
		if !another {
			events = append(events, servetest.Text("0"), servetest.Text("!"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2))
		} else {
			events = append(events, servetest.Text(own), servetest.Text("?"), servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 3))
		}
		return servetest.Events(events...)(ctx, r, send)
	}
}

// admittedFirst is a script that waits after its request was admitted.
func admittedFirst(script servetest.Script, wait func(context.Context)) servetest.Script {
	return func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if err := send(servetest.Admit()); err != nil {
			return err
		}
		wait(ctx)
		return script(ctx, r, func(e *wire.GenerateEvent) error {
			if e.GetAdmitted() != nil {
				return nil
			}
			return send(e)
		})
	}
}

func TestEveryChoiceIsToldWholeAndItsTokensAreCounted(t *testing.T) {
	p := newPort(t, sayOwn())
	usage := `"usage":{"prompt_tokens":3,"completion_tokens":8,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}`
	resp := p.do("POST", "/v1/chat/completions", `{"model":"m","n":3,"messages":[{"role":"user","content":"hi"}]}`, agentapi.HeaderRequestID, "r")
	said := func(i int, text, reason string) string {
		return fmt.Sprintf(`{"index":%d,"message":{"role":"assistant","content":"%s","refusal":null},"logprobs":null,"finish_reason":"%s"}`, i, text, reason)
	}
	want := `{"id":"chatcmpl-X","object":"chat.completion","created":1,"model":"m","choices":[` +
		said(0, "0!", "stop") + "," + said(1, "1?", "length") + "," + said(2, "2?", "length") + `],` + usage + `}`
	if d := cmp.Diff(want, normal(read(t, resp))); d != "" {
		t.Error(d)
	}
	if got := resp.Header.Get(agentapi.HeaderTokens); !strings.Contains(got, "3") || !strings.Contains(got, "8") {
		t.Errorf("tokens told to the gateway: %q", got)
	}
	wrote := func(i int, text, reason string) string {
		return fmt.Sprintf(`{"index":%d,"text":"ask%s","logprobs":null,"finish_reason":"%s"}`, i, text, reason)
	}
	got := normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","n":3,"prompt":"ask","echo":true}`, agentapi.HeaderRequestID, "r")))
	want = `{"id":"cmpl-X","object":"text_completion","created":1,"model":"m","choices":[` +
		wrote(0, "0!", "stop") + "," + wrote(1, "1?", "length") + "," + wrote(2, "2?", "length") + `],` + usage + `}`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The gateway learns what a response that is not streamed has used before it is complete.
// Clients that do not ask may know no such report.
func TestUsageIsReportedBeforeTheResponseIsComplete(t *testing.T) {
	for name, c := range map[string]struct {
		asks bool
		want string
	}{"a gateway": {asks: true, want: "3+4"}, "another client": {}} {
		t.Run(name, func(t *testing.T) {
			enough := make(chan struct{})
			p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
				some := &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "a", Tokens: []int32{1, 2, 3, 4}}}}
				if err := servetest.Events(servetest.Admit(), some)(ctx, r, send); err != nil {
					return err
				}
				<-enough
				return servetest.Events(servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 4))(ctx, r, send)
			})
			end := sync.OnceFunc(func() { close(enough) })
			if !c.asks {
				time.AfterFunc(1200*time.Millisecond, end) // two reports would have been sent
			}
			reported := ""
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				reported = h.Get(agentapi.HeaderTokens)
				end()
				return nil
			}})
			r, err := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			if c.asks {
				r.Header.Set(agentapi.HeaderInforms, "true")
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // read to its end
			if read(t, resp); resp.StatusCode != 200 || reported != c.want {
				t.Errorf("status %d, reported %q, want %q", resp.StatusCode, reported, c.want)
			}
		})
	}
}

// A client may leave a stream before the trailer with its tokens: a gateway that asks is informed of
// those of the prompt before the first event.
func TestAStreamBeginsWithTheTokensOfItsPrompt(t *testing.T) {
	p := newPort(t, sayOwn())
	var reported []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		reported = append(reported, h.Get(agentapi.HeaderTokens))
		return nil
	}})
	r, err := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(agentapi.HeaderInforms, "true")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if read(t, resp); resp.StatusCode != 200 || !slices.Equal(reported, []string{"3+0"}) || resp.Header.Get(agentapi.HeaderTokens) != "" {
		t.Errorf("status %d, reported %q, headers %v", resp.StatusCode, reported, resp.Header)
	}
}

// TestAStreamCarriesEveryChoice reads the chunks of each choice: its role, its
// text in order, its end; and after all of them one usage and one end.
func TestAStreamCarriesEveryChoice(t *testing.T) {
	p := newPort(t, sayOwn())
	resp := p.do("POST", "/v1/chat/completions", `{"model":"m","n":3,"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`, agentapi.HeaderRequestID, "r")
	events := strings.Split(strings.TrimSuffix(normal(read(t, resp)), "\n\n"), "\n\n")
	lead := `data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":1,"model":"m","choices":[`
	usage := lead + `],"usage":{"prompt_tokens":3,"completion_tokens":8,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}}`
	if n := len(events); n != 3*4+2 || events[n-2] != usage || events[n-1] != "data: [DONE]" {
		t.Fatalf("%d events, the last ones %q", n, events[max(0, n-2):])
	}
	for i, end := range []string{"stop", "length", "length"} {
		var own []string
		for _, e := range events {
			if rest, ok := strings.CutPrefix(e, fmt.Sprintf(`%s{"index":%d,`, lead, i)); ok {
				own = append(own, strings.TrimSuffix(rest, `],"usage":null}`))
			}
		}
		mark := "?"
		if i == 0 {
			mark = "!"
		}
		open := `"logprobs":null,"finish_reason":null}`
		want := []string{
			`"delta":{"role":"assistant","content":""},` + open, fmt.Sprintf(`"delta":{"content":"%d"},`, i) + open,
			`"delta":{"content":"` + mark + `"},` + open, `"delta":{},"logprobs":null,"finish_reason":"` + end + `"}`,
		}
		if d := cmp.Diff(want, own); d != "" {
			t.Errorf("choice %d: %s", i, d)
		}
	}
	if got := resp.Trailer.Get(agentapi.HeaderTokens); !strings.Contains(got, "3") || !strings.Contains(got, "8") {
		t.Errorf("tokens told to the gateway: %q", got)
	}
}

// TestEachChoiceHasItsOwnSeedAndFewRunAtOnce holds every choice that was admitted until those
// that may run at the same time do.
func TestEachChoiceHasItsOwnSeedAndFewRunAtOnce(t *testing.T) {
	const n, together = 9, 4
	var begun, under, most atomic.Int64
	enough := make(chan struct{}, n)
	say := sayOwn()
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if !strings.Contains(r.GetId(), "-") {
			return say(ctx, r, send) // the first, which the others wait for
		}
		return admittedFirst(say, func(ctx context.Context) {
			begun.Add(1)
			now := under.Add(1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			select {
			case <-enough:
			case <-ctx.Done():
			}
			under.Add(-1)
		})(ctx, r, send)
	})
	done := make(chan string, 1)
	go func() { // ends with the answer
		done <- read(t, p.do("POST", "/v1/completions", `{"model":"m","n":9,"prompt":"x","seed":7}`, agentapi.HeaderRequestID, "id"))
	}()
	for i := range n - 1 {
		eventually(t, "as many choices as may are under way", func() bool { return begun.Load() >= int64(min(n-1, together+i)) || begun.Load()-int64(i) >= together })
		enough <- struct{}{}
	}
	if body := <-done; strings.Count(body, `"index"`) != n {
		t.Errorf("want %d choices: %s", n, body)
	}
	if got := most.Load(); got != together {
		t.Errorf("%d choices were under way at once, want %d", got, together)
	}
	seeds := map[int64]int{}
	for range n {
		seeds[(<-p.seen).GetSampling().GetSeed()]++
	}
	want := map[int64]int{}
	for i := range int64(n) {
		want[7+i] = 1
	}
	if d := cmp.Diff(want, seeds); d != "" {
		t.Error(d)
	}
}

func TestAChoiceAsksAgainWhileTheQueueIsFull(t *testing.T) {
	var refused atomic.Int64
	say, began := sayOwn(), time.Now()
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if strings.HasSuffix(r.GetId(), "-2") && refused.Add(1) <= 2 {
			return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_QUEUE_FULL, Message: "full", RetryAfterMilliseconds: 1})
		}
		return say(ctx, r, send)
	})
	body := read(t, p.do("POST", "/v1/completions", `{"model":"m","n":3,"prompt":"x"}`, agentapi.HeaderRequestID, "r"))
	if !strings.Contains(body, `"text":"2?"`) || refused.Load() != 3 {
		t.Errorf("asked %d times: %s", refused.Load(), body)
	}
	if took := time.Since(began); took < 300*time.Millisecond { // the engine names a pause of 1 ms
		t.Errorf("asked %d times in %v", refused.Load(), took)
	}
}

// TestAChoiceThatFailsFailsTheRequest has the third choice refused, and broken
// off: a whole answer is none, and a stream ends with the error.
func TestAChoiceThatFailsFailsTheRequest(t *testing.T) {
	memory := &wire.Refusal{Code: wire.Code_CODE_MEMORY, Message: "no memory", RetryAfterMilliseconds: 5}
	for name, fails := range map[string]servetest.Script{
		"refused":    servetest.Refuse(memory),
		"broken off": servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.FailWith(memory)),
	} {
		t.Run(name, func(t *testing.T) {
			say := sayOwn()
			p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
				if strings.HasSuffix(r.GetId(), "-2") {
					return fails(ctx, r, send)
				}
				return say(ctx, r, send)
			})
			ask := func(more string) *http.Response {
				return p.do("POST", "/v1/completions", `{"model":"m","n":3,"prompt":"x"`+more+`}`, agentapi.HeaderRequestID, "r")
			}
			if resp := ask(""); resp.StatusCode < 400 || strings.Contains(read(t, resp), "choices") {
				t.Errorf("a whole answer with a choice too few: %d", resp.StatusCode)
			}
			body := read(t, ask(`,"stream":true`))
			if strings.Contains(body, "[DONE]") || !strings.Contains(body, `"error"`) {
				t.Errorf("the stream ends as if it were whole: %s", body)
			}
			eventually(t, "every choice is given up, and the hold given back", func() bool {
				holds, _ := p.fake.Holds(here)
				return holds == 0
			})
		})
	}
}

// TestNoRequestIsMoreUrgentThanItsKey: what a body names counts as far as the
// gateway allows; lower ones go first, for the engine higher ones.
func TestNoRequestIsMoreUrgentThanItsKey(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	for name, tc := range map[string]struct {
		allowed, named string
		want           int32
		refused        string
	}{
		"nothing is said":            {allowed: "", named: "", want: 0, refused: ""},
		"without a bound":            {allowed: "", named: "-7", want: 7, refused: ""},
		"what the key has":           {allowed: "-3", named: "", want: 3, refused: ""},
		"a key of low rank":          {allowed: "4", named: "", want: -4, refused: ""},
		"less urgent than allowed":   {allowed: "-3", named: "5", want: -5, refused: ""},
		"as urgent as allowed":       {allowed: "-3", named: "-3", want: 3, refused: ""},
		"more urgent than allowed":   {allowed: "-3", named: "-4", want: 0, refused: "priority"},
		"more urgent than everybody": {allowed: "0", named: "-1", want: 0, refused: "priority"},
		"beyond all bounds":          {allowed: "", named: "-1001", want: 0, refused: "priority"},
		"no number":                  {allowed: "", named: `"high"`, want: 0, refused: "priority"},
		"a header of words":          {allowed: "urgent", named: "", want: 0, refused: agentapi.HeaderPriority},
	} {
		t.Run(name, func(t *testing.T) {
			body, headers := `{"model":"m","prompt":"x"`, []string{}
			if tc.named != "" {
				body += `,"priority":` + tc.named
			}
			if tc.allowed != "" {
				headers = append(headers, agentapi.HeaderPriority, tc.allowed)
			}
			resp := p.do("POST", "/v1/completions", body+"}", headers...)
			said := read(t, resp)
			if tc.refused != "" {
				if resp.StatusCode != http.StatusBadRequest || !strings.Contains(said, tc.refused) {
					t.Errorf("%d %s, want a refusal that names %s", resp.StatusCode, said, tc.refused)
				}
				return
			}
			if got := (<-p.seen).GetPriority(); got != tc.want {
				t.Errorf("the engine gets %d, want %d", got, tc.want)
			}
		})
	}
}

// TestAttackChoicesOfALongRequest: the engine is sent the next one when it has admitted the one
// before, because each has all of the request.
func TestAttackChoicesOfALongRequest(t *testing.T) {
	var asked, most atomic.Int64
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if n := asked.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(time.Millisecond) // others may be asked meanwhile
		asked.Add(-1)
		return sayOwn()(ctx, r, send)
	})
	resp := p.do("POST", "/v1/chat/completions", `{"model":"m","n":16,"messages":[{"role":"user","content":"hi"}]}`, agentapi.HeaderRequestID, "r")
	if body := read(t, resp); resp.StatusCode != http.StatusOK || strings.Count(body, `"index"`) != 16 {
		t.Fatalf("%d: %s", resp.StatusCode, body)
	}
	if most.Load() != 1 {
		t.Errorf("%d choices were requested at once", most.Load())
	}
}
