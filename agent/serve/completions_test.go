package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/wire"
)

// completion is what tests read of an answer, or of the chunks of a stream together.
type completion struct {
	Choices []struct {
		Index        int
		Text         string
		FinishReason string `json:"finish_reason"`
		Logprobs     json.RawMessage
	}
	Usage json.RawMessage
}

func (p *port) complete(body string) completion {
	p.t.Helper()
	var c completion
	got := read(p.t, p.do("POST", "/v1/completions", `{"model":"m",`+body+`}`, agentapi.HeaderRequestID, "r"))
	if err := json.Unmarshal([]byte(got), &c); err != nil || c.Choices == nil {
		p.t.Fatalf("%s: %s, %v", body, got, err)
	}
	return c
}

// joined puts the chunks of a stream together: the text of each choice, and the usage.
func joined(t *testing.T, stream string) (texts map[int]string, usage string) {
	t.Helper()
	texts = map[int]string{}
	for _, e := range strings.Split(strings.TrimSpace(stream), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c completion
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		for _, one := range c.Choices {
			texts[one.Index] += one.Text + one.FinishReason
		}
		if len(c.Choices) == 0 {
			usage = string(c.Usage)
		}
	}
	return texts, usage
}

// sayPrompt answers with the prompt, and how many tokens that has.
func sayPrompt(ctx context.Context, r *wire.GenerateRequest, send send) error {
	said := r.GetPrompt() + fmt.Sprint(r.GetTokens().GetIds())
	admit, finish := servetest.Admit(), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2)
	n := int64(max(1, len(r.GetPrompt()), len(r.GetTokens().GetIds())))
	admit.GetAdmitted().PromptTokens, finish.GetFinished().Usage.PromptTokens = n, n
	return servetest.Events(admit, servetest.Text(said+"!"), finish)(ctx, r, send)
}

// Choices stand in the order of their prompts, and a prompt counts once.
func TestSeveralPromptsHaveTheirOwnChoices(t *testing.T) {
	usage := `{"prompt_tokens":6,"completion_tokens":12,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":0}}`
	for prompts, want := range map[string][]string{
		`["a","bb","ccc"]`:    {"a[]!", "a[]!", "bb[]!", "bb[]!", "ccc[]!", "ccc[]!"},
		`[[7],[7,8],[9,8,7]]`: {"[7]!", "[7]!", "[7 8]!", "[7 8]!", "[9 8 7]!", "[9 8 7]!"},
	} {
		p := newPort(t, sayPrompt)
		c := p.complete(`"n":2,"seed":7,"prompt":` + prompts)
		var got []string
		for i, one := range c.Choices {
			if one.Index != i || one.FinishReason != "stop" {
				t.Errorf("choice %d: %+v", i, one)
			}
			got = append(got, one.Text)
		}
		if d := cmp.Diff(want, got); d != "" || string(c.Usage) != usage {
			t.Errorf("%s: %s usage %s", prompts, d, c.Usage)
		}
		seeds := map[string][]int64{}
		var order []string
		for range want {
			r := <-p.seen
			prompt := r.GetPrompt() + fmt.Sprint(r.GetTokens().GetIds())
			order = append(order, prompt)
			seeds[prompt] = append(seeds[prompt], r.GetSampling().GetSeed())
		}
		for prompt, s := range seeds {
			if slices.Sort(s); !slices.Equal(s, []int64{7, 8}) {
				t.Errorf("%s has the seeds %v", prompt, s)
			}
		}
		if order[0]+"!" != want[0] {
			t.Errorf("the first request is for %s", order[0])
		}
		texts, streamed := joined(t, read(t, p.do("POST", "/v1/completions", `{"model":"m","n":2,"stream":true,"stream_options":{"include_usage":true},"prompt":`+prompts+`}`)))
		for i, text := range want {
			if texts[i] != text+"stop" {
				t.Errorf("choice %d of a stream: %q", i, texts[i])
			}
		}
		if len(texts) != len(want) || streamed != usage {
			t.Errorf("%d choices, usage %s", len(texts), streamed)
		}
	}
}

// The first choices of all prompts come before the others, which find their prompts
// in the cache.
func TestFirstChoicesOfAllPromptsComeFirst(t *testing.T) {
	begun := make(chan string, 16)
	enough := make(chan struct{})
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if begun <- r.GetPrompt(); !strings.Contains(r.GetId(), "-") {
			return sayPrompt(ctx, r, send)
		}
		return admittedFirst(sayPrompt, func(ctx context.Context) {
			select {
			case <-enough:
			case <-ctx.Done():
			}
		})(ctx, r, send)
	})
	done := make(chan completion, 1)
	go func() { done <- p.complete(`"n":3,"prompt":["a","b","c","d"]`) }() // ends with the answer
	var first []string
	for range 5 { // the first one, and then four at once in any order
		first = append(first, <-begun)
	}
	if slices.Sort(first[1:]); !slices.Equal(first, []string{"a", "a", "b", "c", "d"}) {
		t.Errorf("the first requests are for %v", first)
	}
	close(enough)
	if c := <-done; len(c.Choices) != 12 {
		t.Errorf("%d choices", len(c.Choices))
	}
}

// A refused prompt refuses the request: no answer is whole without it.
func TestPromptThatIsRefusedFailsTheRequest(t *testing.T) {
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send send) error {
		if r.GetPrompt() == "b" {
			return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "too long", Param: "messages"})
		}
		return sayPrompt(ctx, r, send)
	})
	if resp := p.do("POST", "/v1/completions", `{"model":"m","prompt":["a","b"]}`); resp.StatusCode != 400 {
		t.Errorf("%d %s", resp.StatusCode, read(t, resp))
	}
}

// scored is a token of a prompt.
func scored(text string, logprob float32, more ...string) *wire.TokenLogprobs {
	l := &wire.TokenLogprobs{Chosen: &wire.Logprob{Text: []byte(text), Logprob: logprob}}
	for _, m := range more {
		l.Top = append(l.Top, &wire.Logprob{Text: []byte(m), Logprob: -0.25})
	}
	return l
}

// As lm-evaluation-harness reads it: a token's log-probability belongs to the text
// before it, so the first has none.
func TestEchoedPromptHasLogprobs(t *testing.T) {
	script := servetest.Events(servetest.Admit(), servetest.Prompt("Hé a", scored("Hé", 0), scored(" ", -1, "b")), servetest.Prompt("", scored("a", -0.25, "a")),
		ranked("!", "!"), servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 1))
	p := newPort(t, script)
	const prompt = `"tokens":["Hé"," ","a"`
	for body, want := range map[string]string{
		`"logprobs":1,"max_tokens":1,"echo":true`: prompt + `,"!"],"token_logprobs":[null,-1,-0.25,-0.5],"top_logprobs":[null,{" ":-1,"b":-0.25},{"a":-0.25},{"!":-0.5}],"text_offset":[0,2,3,4]`,
	} {
		c := p.complete(`"prompt":"Hé a",` + body)
		if c.Choices[0].Text != "Hé a!" || string(c.Choices[0].Logprobs) != "{"+want+"}" {
			t.Errorf("%s: %q %s, want %s", body, c.Choices[0].Text, c.Choices[0].Logprobs, want)
		}
		r := <-p.seen
		if r.GetMaxTokens() != 1 || r.GetPromptOnly() || !r.GetEcho() || r.GetTopLogprobs() != 1 {
			t.Errorf("the engine is asked for %v", r)
		}
	}
	got := normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"Hé a","logprobs":1,"echo":true,"stream":true}`)))
	for _, want := range []string{
		`"text":"Hé a","logprobs":{` + prompt + `],"token_logprobs":[null,-1,-0.25],"top_logprobs":[null,{" ":-1,"b":-0.25},{"a":-0.25}],"text_offset":[0,2,3]}`,
		`"text":"!","logprobs":{"tokens":["!"],"token_logprobs":[-0.5],"top_logprobs":[{"!":-0.5}],"text_offset":[4]}`,
	} {
		if _, rest, found := strings.Cut(got, want); !found {
			t.Fatalf("%s\nhas no\n%s", got, want)
		} else {
			got = rest
		}
	}
}

// Nothing is generated with max_tokens 0.
func TestMaxTokensZeroComputesThePromptAlone(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Prompt("a b", scored("a", 0), scored(" b", -2)), servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 0)))
	c := p.complete(`"prompt":"a b","max_tokens":0,"echo":true,"logprobs":0`)
	if one := c.Choices[0]; one.Text != "a b" || one.FinishReason != "length" || !strings.Contains(string(one.Logprobs), `"token_logprobs":[null,-2]`) {
		t.Errorf("%+v %s", one, one.Logprobs)
	}
	if r := <-p.seen; !r.GetPromptOnly() {
		t.Errorf("the engine is asked for %v", r)
	}
	texts, _ := joined(t, read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"a b","max_tokens":0,"echo":true,"stream":true}`)))
	if texts[0] != "a blength" {
		t.Errorf("streamed: %q", texts[0])
	}
}

func TestSamplingOfOtherServersReachesTheEngine(t *testing.T) {
	penalty := float32(1.25)
	for fields, want := range map[string]*wire.GenerateRequest{
		`"repetition_penalty":1.25`:                                {Sampling: &wire.Sampling{RepetitionPenalty: &penalty}},
		`"repeat_penalty":1.25`:                                    {Sampling: &wire.Sampling{RepetitionPenalty: &penalty}},
		`"min_tokens":5,"ignore_eos":true`:                         {Sampling: &wire.Sampling{}, MinTokens: 5, IgnoreEos: true},
		`"stop_token_ids":[5,6],"min_tokens":0`:                    {Sampling: &wire.Sampling{}, StopTokenIds: []int32{5, 6}},
		`"stop_token_ids":[],"ignore_eos":false,"min_tokens":null`: {Sampling: &wire.Sampling{}},
	} {
		p := newPort(t, servetest.Say("a"))
		want.Id, want.MaxTokens = "r", 9
		if resp := p.do("POST", "/v1/completions", `{"model":"m","prompt":"p","max_tokens":9,`+fields+`}`, agentapi.HeaderRequestID, "r"); resp.StatusCode != 200 || resp.Header.Get(agentapi.HeaderIgnored) != "" {
			t.Errorf("%s: %d %s", fields, resp.StatusCode, read(t, resp))
		}
		want.Input = &wire.GenerateRequest_Prompt{Prompt: "p"}
		if d := cmp.Diff(want, <-p.seen, protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", fields, d)
		}
		if resp := p.chat(`,` + fields); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", fields, resp.StatusCode, read(t, resp))
		}
	}
}

// The engine counts the tokens of thoughts, and each API has a place for them.
func TestUsageHasTheTokensOfThoughts(t *testing.T) {
	end := servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 9)
	end.GetFinished().Usage.ReasoningTokens = 6
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), end))
	for path, c := range map[string]struct{ body, want string }{
		"/v1/chat/completions": {body: `"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}`, want: `"completion_tokens_details":{"reasoning_tokens":6}`},
		"/v1/responses":        {body: `"input":"hi"`, want: `"output_tokens_details":{"reasoning_tokens":6}`},
		"/v1/messages":         {body: `"max_tokens":9,"messages":[{"role":"user","content":"hi"}]`, want: `"output_tokens_details":{"thinking_tokens":6}`},
	} {
		whole := strings.Replace(c.body, `,"stream_options":{"include_usage":true}`, "", 1)
		for _, body := range []string{whole, c.body + `,"stream":true`} {
			if got := read(t, p.do("POST", path, `{"model":"m",`+body+`}`)); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s", body, got)
			}
		}
	}
	got := read(t, p.chat(`,"n":2`))
	if !strings.Contains(got, `"completion_tokens":18`) || !strings.Contains(got, `{"reasoning_tokens":12}`) {
		t.Errorf("two choices: %s", got)
	}
}
