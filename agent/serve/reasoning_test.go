package serve_test

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/metal/wire"
)

func TestWhatAClientSaysOfReasoningReachesTheTemplate(t *testing.T) {
	const on, off = `{"enable_thinking":true,"thinking":true}`, `{"enable_thinking":false,"thinking":false}`
	for extra, want := range map[string]struct{ effort, arguments string }{
		``:                            {},
		`,"reasoning_effort":"low"`:   {effort: "low"},
		`,"reasoning_effort":"none"`:  {effort: "none"},
		`,"enable_thinking":true`:     {arguments: on},
		`,"enable_thinking":false`:    {effort: "none", arguments: off},
		`,"enable_thinking":null`:     {},
		`,"thinking":true`:            {arguments: on},
		`,"thinking":{"type":"auto"}`: {arguments: on},
		`,"thinking":{"type":"enabled","budget_tokens":10}`:               {arguments: on},
		`,"thinking":{"type":"disabled"}`:                                 {effort: "none", arguments: off},
		`,"reasoning":{"effort":"high"}`:                                  {effort: "high"},
		`,"reasoning":{"enabled":false}`:                                  {effort: "none", arguments: off},
		`,"reasoning":{"max_tokens":2000}`:                                {arguments: on},
		`,"reasoning":{"effort":"low","enabled":true,"exclude":true}`:     {effort: "low", arguments: on},
		`,"reasoning":{}`:                                                 {},
		`,"reasoning_effort":"high","reasoning":{"effort":"high"}`:        {effort: "high"},
		`,"chat_template_kwargs":{"enable_thinking":false,"x":[1]}`:       {arguments: `{"enable_thinking":false,"x":[1]}`},
		`,"chat_template_kwargs":{"add_generation_prompt":true}`:          {arguments: `{"add_generation_prompt":true}`},
		`,"chat_template_kwargs":{}`:                                      {arguments: `{}`},
		`,"enable_thinking":true,"chat_template_kwargs":{"thinking":"x"}`: {arguments: `{"enable_thinking":true,"thinking":"x"}`},
	} {
		p := newPort(t, servetest.Say("x"))
		resp := p.chat(extra)
		if got := read(t, resp); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", extra, resp.StatusCode, got)
			continue
		}
		chat := (<-p.seen).GetChat()
		if chat.GetReasoningEffort() != want.effort || chat.GetTemplateArgumentsJson() != want.arguments {
			t.Errorf("%s: effort %q, arguments %s", extra, chat.GetReasoningEffort(), chat.GetTemplateArgumentsJson())
		}
	}
	for extra, param := range map[string]string{
		`,"enable_thinking":true,"thinking":{"type":"disabled"}`:    "thinking",
		`,"reasoning_effort":"low","reasoning":{"effort":"high"}`:   "reasoning.effort",
		`,"thinking":{"type":"sometimes"}`:                          "thinking.type",
		`,"enable_thinking":"yes"`:                                  "enable_thinking",
		`,"reasoning":"high"`:                                       "reasoning",
		`,"chat_template_kwargs":[]`:                                "chat_template_kwargs",
		`,"chat_template_kwargs":{"messages":[]}`:                   "chat_template_kwargs.messages",
		`,"chat_template_kwargs":{"add_generation_prompt":false}`:   "chat_template_kwargs.add_generation_prompt",
		`,"chat_template_kwargs":{"a":1,"a":2}`:                     "chat_template_kwargs.a",
		`,"reasoning":{"enabled":false},"chat_template_kwargs":"x"`: "chat_template_kwargs",
	} {
		resp := newPort(t, servetest.Say("x")).chat(extra)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"`+param+`"`) {
			t.Errorf("%s: %d %s", extra, resp.StatusCode, got)
		}
	}
}

// TestAttackTemplateArgumentsThatGrow: each sign that package json escapes had six bytes on the
// way to the engine, which counts them nowhere.
func TestAttackTemplateArgumentsThatGrow(t *testing.T) {
	own := `{"a":"` + strings.Repeat("<", 1000) + `"}`
	p := newPort(t, servetest.Say("x"))
	read(t, p.chat(`,"enable_thinking":true,"chat_template_kwargs":`+own))
	if n := len((<-p.seen).GetChat().GetTemplateArgumentsJson()); n > len(own)+100 {
		t.Errorf("%d bytes of variables became %d", len(own), n)
	}
	resp := newPort(t, servetest.Say("x")).chat(`,"chat_template_kwargs":{"a":"` + strings.Repeat("x", 1<<20) + `"}`)
	if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"param":"chat_template_kwargs"`) {
		t.Errorf("variables of a MiB: %d %.200s", resp.StatusCode, got)
	}
}

func TestReasoningIsLeftOutOnRequest(t *testing.T) {
	thought := func() servetest.Script {
		return servetest.Events(servetest.Admit(), &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Reasoning: "Hmm."}}},
			servetest.Text("a"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2))
	}
	for extra, hidden := range map[string]bool{``: false, `,"include_reasoning":true`: false, `,"include_reasoning":false`: true, `,"reasoning":{"exclude":true}`: true} {
		for _, stream := range []string{``, `,"stream":true`} {
			got := read(t, newPort(t, thought()).chat(extra+stream))
			if strings.Contains(got, "Hmm.") == hidden || !strings.Contains(got, `"content":"a"`) {
				t.Errorf("%s%s: %s", extra, stream, got)
			}
		}
	}
}

func TestReasoningOfEarlierTurnsHasTwoNames(t *testing.T) {
	turn := func(extra string) string {
		return `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"` + extra + `},{"role":"user","content":"c"}]}`
	}
	for extra, want := range map[string]struct{ extra, ignored string }{
		`,"reasoning_content":"t"`:                   {extra: `{"reasoning_content":"t"}`, ignored: ""},
		`,"reasoning":"t"`:                           {extra: `{"reasoning_content":"t"}`, ignored: ""},
		`,"reasoning":"t","reasoning_content":"t"`:   {extra: `{"reasoning_content":"t"}`, ignored: ""},
		`,"reasoning":"s","reasoning_content":"t"`:   {extra: `{"reasoning_content":"t"}`, ignored: ""},
		`,"reasoning":null,"reasoning_content":null`: {extra: "", ignored: ""},
		`,"reasoning":{"text":"t"}`:                  {extra: "", ignored: "messages[].reasoning"},
		`,"reasoning":"t","reasoning_details":[{}]`:  {extra: `{"reasoning_content":"t"}`, ignored: "messages[].reasoning_details"},
	} {
		p := newPort(t, servetest.Say("x"))
		resp := p.do("POST", "/v1/chat/completions", turn(extra))
		if got := read(t, resp); resp.StatusCode != 200 || resp.Header.Get("X-Metalfleet-Ignored") != want.ignored {
			t.Errorf("%s: %d, ignored %q: %s", extra, resp.StatusCode, resp.Header.Get("X-Metalfleet-Ignored"), got)
			continue
		}
		if got := (<-p.seen).GetChat().GetMessages()[1].GetExtraJson(); got != want.extra {
			t.Errorf("%s: the template sees %s", extra, got)
		}
	}
}

func TestContinuousUsageStandsInEveryChunk(t *testing.T) {
	piece := func(text string, tokens ...int32) *wire.GenerateEvent {
		return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: text, Tokens: tokens}}}
	}
	script := func() servetest.Script {
		return servetest.Events(servetest.Admit(), piece("", 1), piece("a", 2), piece("b", 3), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 4))
	}
	usage := func(n string) string {
		return `"usage":{"prompt_tokens":3,"completion_tokens":` + n + `,"total_tokens":`
	}
	for path, prompt := range map[string]string{"/v1/chat/completions": `"messages":[{"role":"user","content":"hi"}]`, "/v1/completions": `"prompt":"x"`} {
		body := `{"model":"m",` + prompt + `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":`
		got := read(t, newPort(t, script()).do("POST", path, body+`true}}`))
		events := strings.Split(strings.TrimSuffix(strings.TrimSpace(got), "\n\ndata: [DONE]"), "\n\n")
		want := []string{usage("2"), usage("3"), usage("4"), usage("4")} // the end of a turn is a token, too
		if path == "/v1/chat/completions" {
			want = append([]string{usage("0")}, want...) // the chunk with the role
		}
		if len(events) != len(want) {
			t.Fatalf("%s: %s", path, got)
		}
		for i := range want {
			if !strings.Contains(events[i], want[i]) {
				t.Errorf("%s: chunk %d is %s, want %s", path, i, events[i], want[i])
			}
		}
		got = read(t, newPort(t, script()).do("POST", path, body+`false}}`))
		if strings.Count(got, `"prompt_tokens"`) != 1 || strings.Contains(got, "ignored") {
			t.Errorf("%s: %s", path, got)
		}
	}
}
