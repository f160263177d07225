package serve_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
)

// clock is a client that notes when it was sent something.
type clock struct {
	header http.Header
	began  time.Time
	at     []time.Duration // of each write
	text   []string
}

func (c *clock) Header() http.Header { return c.header }
func (c *clock) WriteHeader(int)     {}
func (c *clock) Write(p []byte) (int, error) {
	c.at, c.text = append(c.at, time.Since(c.began)), append(c.text, string(p))
	return len(p), nil
}
func (c *clock) FlushError() error                { return nil }
func (c *clock) SetWriteDeadline(time.Time) error { return nil }
func (c *clock) SetReadDeadline(time.Time) error  { return nil }

// ask sends a request to a port in virtual time.
func ask(script servetest.Script, path, body string, headers ...string) *clock {
	fake := servetest.New()
	fake.Add("m", here, script)
	h := serve.NewHandler(serve.Config{Engines: fake, Mac: "mac-a", Log: logr.Discard()})
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := &clock{header: http.Header{}, began: time.Now()}
	h.ServeHTTP(c, r)
	return c
}

// longest is the longest time without an event that clients parse.
func (c *clock) longest() time.Duration {
	last, longest := time.Duration(0), time.Duration(0)
	for i, text := range c.text {
		if strings.Contains("\n"+text, "\ndata: ") {
			longest = max(longest, c.at[i]-last)
			last = c.at[i]
		}
	}
	return longest
}

// after waits, as an engine does that computes.
func after(d time.Duration, e *wire.GenerateEvent) servetest.Script {
	return func(ctx context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		select {
		case <-time.After(d):
			return send(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func inOrder(all ...servetest.Script) servetest.Script {
	return func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		for _, s := range all {
			if err := s(ctx, r, send); err != nil {
				return err
			}
		}
		return nil
	}
}

var streamed = map[string]string{
	dialect.PathChat:        `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`,
	dialect.PathCompletions: `{"model":"m","stream":true,"prompt":"hi"}`,
	dialect.PathMessages:    `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`,
	dialect.PathResponses:   `{"model":"m","stream":true,"input":"hi"}`,
}

const silence = 400 * time.Second // longer than clients with a timer of 300 s wait

// A client with an idle timer over parsed events survives a long prefill, and an
// engine whose events show nothing.
func TestLongSilencesAreFilledWithEvents(t *testing.T) {
	hidden := func(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		for range int(silence / time.Second) {
			time.Sleep(time.Second)
			if err := send(servetest.Text("")); err != nil { // half a character, or thoughts that are not shown
				return err
			}
		}
		return nil
	}
	end := servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2)
	for name, script := range map[string]servetest.Script{
		"prefill":                  inOrder(after(0, servetest.Admit()), after(silence, servetest.Text("a")), after(0, end)),
		"between tokens":           inOrder(after(0, servetest.Admit()), after(0, servetest.Text("a")), after(silence, servetest.Text("b")), after(0, end)),
		"before the end":           inOrder(after(0, servetest.Admit()), after(0, servetest.Text("a")), after(silence, end)),
		"events that show nothing": inOrder(after(0, servetest.Admit()), hidden, after(0, servetest.Text("a")), after(0, end)),
	} {
		for path, body := range streamed {
			t.Run(name+path, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := ask(script, path, body)
					if got := c.longest(); got > 10*time.Second || c.at[len(c.at)-1] < silence {
						t.Errorf("%s without an event, in %s: %q", got, c.at[len(c.at)-1], c.text)
					}
					if path == dialect.PathResponses && !strings.HasPrefix(c.text[0], "event: response.created\n") {
						t.Errorf("a response begins with %q", c.text[0]) // which accumulators reject
					}
					if !dialect.Of(path).Ends([]byte(c.text[len(c.text)-1])) {
						t.Errorf("the stream ends with %q", c.text[len(c.text)-1])
					}
				})
			})
		}
	}
}

// call makes pieces of a call of a tool.
func call(d *wire.CallDelta) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Calls: []*wire.CallDelta{d}}}}
}

// A response's accumulators replace what they have by the response of a lifecycle
// event, so within an item an empty delta is sent, and between two the items so far.
func TestSilenceWithinAResponseLosesNoItem(t *testing.T) {
	const body = `{"model":"m","stream":true,"input":"hi","tools":[{"type":"function","name":"f","parameters":{}}]}`
	synctest.Test(t, func(t *testing.T) {
		c := ask(inOrder(after(0, servetest.Admit()), after(0, servetest.Text("a")), after(10*time.Second, servetest.Text("b")),
			after(0, call(&wire.CallDelta{Name: "f", Arguments: `{"a"`})), after(10*time.Second, call(&wire.CallDelta{Arguments: `:1}`, Ended: true})),
			after(10*time.Second, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2))), dialect.PathResponses, body)
		var types []string
		var items []any
		for i, text := range c.text {
			_, data, _ := strings.Cut(text, "data: ")
			var e struct {
				Type           string
				SequenceNumber int `json:"sequence_number"`
				Delta          *string
				Response       struct{ Output []any }
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil || e.SequenceNumber != i {
				t.Fatalf("event %d: %q, %v", i, text, err)
			}
			if c.at[i]%(10*time.Second) != 0 {
				types = append(types, e.Type)
				if e.Delta != nil && *e.Delta != "" {
					t.Errorf("event %d adds %q", i, *e.Delta)
				}
				items = e.Response.Output
			}
		}
		want := "response.output_text.delta response.function_call_arguments.delta response.in_progress"
		if got := strings.Join(types, " "); got != want || len(items) != 2 {
			t.Errorf("idle events %s with %d items, want %s with 2", got, len(items), want)
		}
	})
}

// Accumulators take a chunk of a finished choice for a new beginning.
func TestKeepAliveEventsBelongToAnUnfinishedChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		c := ask(func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
			wait := silence
			if first {
				first, wait = false, 0
			}
			return inOrder(after(0, servetest.Admit()), after(wait, servetest.Text("a")), after(0, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))(ctx, r, send)
		}, dialect.PathChat, strings.Replace(streamed[dialect.PathChat], "{", `{"n":2,`, 1))
		n := 0
		for i, text := range c.text {
			if c.at[i] > 0 && c.at[i] < silence {
				if n++; !strings.Contains(text, `"index":1,"delta":{}`) {
					t.Errorf("after the first choice had finished: %s", text)
				}
			}
		}
		if n < 40 {
			t.Errorf("%d events in %s", n, silence)
		}
	})
}

func progress(processed int64) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Progress: &wire.Progress{ProcessedTokens: processed, CachedTokens: 1}}}}
}

// Only clients that ask for it receive how much of the prompt is computed.
func TestProgressOfThePromptIsOptional(t *testing.T) {
	const figures = `"prompt_progress":{"total":3,"cache":1,"processed":2,"time_ms":1000}`
	for path, body := range streamed {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked bool
				script := func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
					asked = r.GetProgress()
					return inOrder(after(0, servetest.Admit()), after(time.Second, progress(2)), after(0, progress(2)), after(time.Second, progress(3)),
						after(0, servetest.Text("a")), after(0, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))(ctx, r, send)
				}
				c := ask(script, path, body, agentapi.HeaderProgress, "true")
				got := strings.Join(c.text, "")
				if !asked || strings.Count(got, figures) != 1 || strings.Count(got, `"processed":3`) != 1 {
					t.Errorf("asked %v: %s", asked, got)
				}
				named := strings.Replace(body, "{", `{"return_progress":true,`, 1)
				ofLlama := path == dialect.PathChat || path == dialect.PathCompletions // other APIs ignore llama.cpp's field
				if c := ask(script, path, named); asked != ofLlama || strings.Contains(strings.Join(c.text, ""), figures) != ofLlama {
					t.Errorf("asked %v by return_progress: %q", asked, c.text)
				}
				if c := ask(script, path, body); asked || strings.Contains(strings.Join(c.text, ""), "prompt_progress") {
					t.Errorf("asked %v without being asked: %q", asked, c.text)
				}
				whole := strings.Replace(body, `"stream":true`, `"stream":false`, 1)
				if c := ask(script, path, whole, agentapi.HeaderProgress, "true"); asked || len(c.text) != 1 {
					t.Errorf("a whole answer: asked %v, %q", asked, c.text)
				}
			})
		})
	}
}

// The other choices reuse what was computed of the prompt, so they are not asked
// for before that is done, and report nothing of their own.
func TestOtherChoicesWaitForThePromptWhoseProgressIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		var reports []bool
		began := time.Now()
		c := ask(func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
			asked, reports = append(asked, time.Since(began)), append(reports, r.GetProgress())
			return inOrder(after(0, servetest.Admit()), after(5*time.Second, progress(2)), after(5*time.Second, servetest.Text("a")),
				after(0, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))(ctx, r, send)
		}, dialect.PathChat, strings.Replace(streamed[dialect.PathChat], "{", `{"n":2,`, 1), agentapi.HeaderProgress, "true")
		if len(asked) != 2 || asked[1] != 10*time.Second || !reports[0] || reports[1] {
			t.Errorf("asked after %v, with progress %v: %q", asked, reports, c.text)
		}
	})
}

// The gateway may have sent the id to the client already.
func TestTheGatewayChoosesTheIDOfAStream(t *testing.T) {
	for path, body := range streamed {
		if path == dialect.PathMessages {
			continue // its client sees none before the answer
		}
		c := ask(servetest.Say("a"), path, body, agentapi.HeaderResponseID, "chosen")
		if got := strings.Join(c.text, ""); !strings.Contains(got, `"id":"chosen"`) || strings.Contains(got, `"id":"chatcmpl-`) || strings.Contains(got, `"id":"resp_`) {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// Each event repeats what the request has of tools and
// metadata, so that there are fewer of larger ones.
func TestProgressOfALargeResponseIsRare(t *testing.T) {
	const megabytes, seconds = 4, 60
	synctest.Test(t, func(t *testing.T) {
		var all []servetest.Script
		all = append(all, after(0, servetest.Admit()))
		for range 2 * seconds {
			all = append(all, after(500*time.Millisecond, progress(2)))
		}
		all = append(all, after(0, servetest.Text("a")), after(0, servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))
		body := `{"model":"m","stream":true,"input":"x","instructions":"` + strings.Repeat("x", megabytes<<20) + `"}`
		c := ask(inOrder(all...), dialect.PathResponses, body, agentapi.HeaderProgress, "true")
		n := strings.Count(strings.Join(c.text, ""), `"prompt_progress":`)
		if most := seconds/megabytes + 1; n < most/2 || n > most {
			t.Errorf("progress is reported %d times in %d s, want about %d", n, seconds, most)
		}
	})
}
