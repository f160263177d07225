//go:build !race

package responses

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

// answering is a response to a request with these members.
func answering(t *testing.T, members string) *Answer {
	t.Helper()
	r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":"a"`+members+`}`))
	if err != nil {
		t.Fatal(err)
	}
	a := NewAnswer(NewID("mac-a"), 1, r)
	a.Mac = "mac-a"
	return a
}

// requiredFields are those of ResponseResource in the Open Responses specification of
// 2026-04-24.
var requiredFields = []string{"id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id", "instructions", "output", "error",
	"tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user",
	"usage", "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key"}

func TestResponsesHaveEveryFieldOfOpenResponses(t *testing.T) {
	a := answering(t, "")
	a.Text("x")
	a.Finish(false, &Usage{}, 5)
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(marshalled(t, a.Response)), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range requiredFields {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	for name, want := range map[string]string{"completed_at": "5", "top_p": "1", "temperature": "1", "presence_penalty": "0", "frequency_penalty": "0", "top_logprobs": "0", "max_tool_calls": "null",
		"safety_identifier": "null", "prompt_cache_key": "null", "truncation": `"disabled"`, "background": "false"} {
		if string(got[name]) != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
}

func TestResponsesShowTheValuesThatAreUsed(t *testing.T) {
	var got map[string]json.RawMessage
	a := answering(t, `,"top_p":0.5,"temperature":0,"presence_penalty":1,"frequency_penalty":-1,"top_logprobs":3,"max_tool_calls":4,"safety_identifier":"s","prompt_cache_key":"k",`+
		`"truncation":"auto","parallel_tool_calls":false,"service_tier":"priority","reasoning":{"effort":"low","summary":"auto"},"text":{"verbosity":"low"},"instructions":"i","user":"u"`)
	a.Finish(true, &Usage{}, 5)
	if err := json.Unmarshal([]byte(marshalled(t, a.Response)), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"completed_at": "null", "top_p": "0.5", "temperature": "0", "presence_penalty": "1", "frequency_penalty": "-1", "top_logprobs": "3", "max_tool_calls": "4",
		"safety_identifier": `"s"`, "prompt_cache_key": `"k"`, "truncation": `"auto"`, "parallel_tool_calls": "false", "service_tier": `"default"`,
		"reasoning": `{"effort":"low","summary":null}`, "text": `{"format":{"type":"text"}}`, "instructions": `"i"`, "user": `"u"`, "incomplete_details": `{"reason":"max_output_tokens"}`} {
		if string(got[name]) != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
}

// TestResponsesShowNoLongLabels: each event with the response would be as large.
func TestResponsesShowNoLongLabels(t *testing.T) {
	for _, name := range []string{"user", "safety_identifier", "prompt_cache_key"} {
		for _, c := range []struct {
			bytes int
			shown bool
		}{{512, true}, {maxLabel, true}, {maxLabel + 1, false}, {1 << 20, false}} {
			text := strings.Repeat("x", c.bytes)
			var got map[string]json.RawMessage
			if err := json.Unmarshal([]byte(marshalled(t, answering(t, `,"`+name+`":"`+text+`"`).Response)), &got); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: `"` + text + `"`, false: "null"}[c.shown]; string(got[name]) != want {
				t.Errorf("%s of %d bytes: %d bytes are shown, want it: %t", name, c.bytes, len(got[name]), c.shown)
			}
		}
	}
}

// played returns what a client's accumulator makes of events: the items by their index,
// with the text of their deltas.
func played(t *testing.T, events []openai.NamedEvent) (items []Item, texts []string, last Response) {
	t.Helper()
	for n, e := range events {
		var data struct {
			Type           string
			SequenceNumber int    `json:"sequence_number"`
			OutputIndex    int    `json:"output_index"`
			ItemID         string `json:"item_id"`
			Delta          string
			Item           Item
			Response       Response
		}
		if err := json.Unmarshal([]byte(marshalled(t, e.Data)), &data); err != nil {
			t.Fatal(err)
		}
		if data.Type != e.Name || data.SequenceNumber != n {
			t.Errorf("event %d is %s, number %d, in an event %s", n, data.Type, data.SequenceNumber, e.Name)
		}
		switch {
		case e.Name == "response.output_item.added":
			items, texts = append(items, data.Item), append(texts, "")
		case e.Name == "response.output_item.done":
			if items[data.OutputIndex].ID != data.Item.ID {
				t.Errorf("item %d ends with another id", data.OutputIndex)
			}
			items[data.OutputIndex] = data.Item
		case strings.HasSuffix(e.Name, ".delta"):
			texts[data.OutputIndex] += data.Delta
			if items[data.OutputIndex].ID != data.ItemID {
				t.Errorf("a delta of item %d has another id", data.OutputIndex)
			}
		case data.Response.ID != "":
			last = data.Response
		}
	}
	return items, texts, last
}

func TestStreamedItemsAreThoseOfTheFinalResponse(t *testing.T) {
	const tools = `,"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}]}]`
	run := func(end func(a *Answer) []openai.NamedEvent) (all []openai.NamedEvent) {
		a := answering(t, tools)
		for _, more := range []func() []openai.NamedEvent{
			a.Opening, func() []openai.NamedEvent { return a.Thinking("Hm") }, func() []openai.NamedEvent { return a.Text("See") }, func() []openai.NamedEvent { return a.Text(".") },
			func() []openai.NamedEvent { return a.Call("n__f") }, func() []openai.NamedEvent { return a.Arguments(`{"a"`) }, func() []openai.NamedEvent { return a.Arguments(`:1}`) },
			func() []openai.NamedEvent { return a.EndCall(true) },
			func() []openai.NamedEvent { return a.Call("n__g") }, func() []openai.NamedEvent { return a.Arguments(`{"in`) }, func() []openai.NamedEvent { return a.Arguments(`put":"l`) },
			func() []openai.NamedEvent { return a.Arguments(`s\n"}`) }, func() []openai.NamedEvent { return a.EndCall(true) },
			func() []openai.NamedEvent { return a.Text("So") }, func() []openai.NamedEvent { return end(a) },
		} {
			all = append(all, more()...)
		}
		return all
	}
	for name, tc := range map[string]struct {
		end          func(a *Answer) []openai.NamedEvent
		event, state string
	}{
		"completed":  {end: func(a *Answer) []openai.NamedEvent { return a.Finish(false, &Usage{}, 2) }, event: "response.completed", state: StatusCompleted},
		"incomplete": {end: func(a *Answer) []openai.NamedEvent { return a.Finish(true, &Usage{}, 2) }, event: "response.incomplete", state: StatusIncomplete},
		"failed":     {end: func(a *Answer) []openai.NamedEvent { return a.Fail(StatusFailed, openai.RouteNotFound("", "")) }, event: "response.failed", state: StatusIncomplete},
	} {
		events := run(tc.end)
		items, texts, last := played(t, events)
		if got := events[len(events)-1].Name; got != tc.event {
			t.Errorf("%s: the last event is %s", name, got)
		}
		if d := cmp.Diff(items, last.Output); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if want := []string{"Hm", "See.", `{"a":1}`, "ls\n", "So"}; !cmp.Equal(texts, want) {
			t.Errorf("%s: the texts are %q", name, texts)
		}
		if len(items) != 5 {
			t.Fatalf("%s: %d items", name, len(items))
		}
		if f := items[2]; f.Type != ItemCall || f.Namespace != "n" || f.Name != "f" || *f.Arguments != texts[2] || f.Input != nil {
			t.Errorf("%s: the call of a function is %+v", name, f)
		}
		if g := items[3]; g.Type != ItemCustomCall || g.Namespace != "n" || g.Name != "g" || *g.Input != texts[3] || g.Arguments != nil || !strings.HasPrefix(g.ID, "ctc_") {
			t.Errorf("%s: the call of a custom tool is %+v", name, g)
		}
		if items[4].Status != tc.state || items[0].Status != StatusCompleted {
			t.Errorf("%s: the last item is %s, the first %s", name, items[4].Status, items[0].Status)
		}
		for _, i := range items {
			if mac, ok := MacOf(i.ID); !ok || mac != "mac-a" {
				t.Errorf("%s: the id of %s names %q", name, i.Type, mac)
			}
		}
	}
}

func TestLogprobsAreThoseOfTheText(t *testing.T) {
	ranked := func(token string) openai.Ranked {
		l := openai.Likely{Bytes: []byte(token), Logprob: -1}
		return openai.Ranked{Likely: l, Top: []openai.Likely{l}}
	}
	one := func(token string) string {
		return `{"token":"` + token + `","logprob":-1,"bytes":[` + map[string]string{"a": "97", "b": "98"}[token] + `],"top_logprobs":[{"token":"` + token + `","logprob":-1,"bytes":[` + map[string]string{"a": "97", "b": "98"}[token] + `]}]}`
	}
	a := answering(t, `,"include":["message.output_text.logprobs"],"top_logprobs":1`)
	events := append(a.Text("a", ranked("a")), a.Text("b", ranked("b"))...)
	events = append(events, a.Finish(false, &Usage{}, 1)...)
	got := map[string]string{}
	for _, e := range events {
		got[e.Name] += marshalled(t, e.Data)
	}
	for name, want := range map[string]string{
		"response.output_text.delta":  `"delta":"a","logprobs":[` + one("a") + `]}`,
		"response.output_text.done":   `"text":"ab","logprobs":[` + one("a") + `,` + one("b") + `]}`,
		"response.content_part.done":  `"annotations":[],"logprobs":[` + one("a") + `,` + one("b") + `]}}`,
		"response.content_part.added": `"annotations":[],"logprobs":[]}}`,
		"response.completed":          `"logprobs":[` + one("a") + `,` + one("b") + `]`,
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	a = answering(t, "")
	if got := marshalled(t, a.Text("a", ranked("a"))[2].Data); !strings.Contains(got, `"logprobs":[]`) {
		t.Errorf("without a request for them: %s", got)
	}
}
