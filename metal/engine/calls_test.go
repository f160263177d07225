package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

const oneTool = `[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`

// calling is an answer of a model that may call f.
func calling(t *testing.T, single bool, stops ...string) *active {
	t.Helper()
	return callingBy(t, single, nil, stops...)
}

// callingBy is the same where the vocabulary has control tokens.
func callingBy(t *testing.T, single bool, tokens []string, stops ...string) *active {
	t.Helper()
	tools, err := toolcall.ReadTools([]byte(oneTool))
	if err != nil {
		t.Fatal(err)
	}
	p, err := toolcall.New(toolcall.Hermes, tools, toolcall.Options{Tokens: tokens, Held: true})
	if err != nil {
		t.Fatal(err)
	}
	return &active{caller: &caller{parser: p, single: single}, stops: sample.NewStopMatcher(stops), stream: newStream(nil, nil)}
}

// brought are the events of an answer in these pieces, read at its end, and
// whether it was ended before.
func brought(a *active, pieces ...string) (events []Event, stopped bool) {
	l := new(looping)
	for _, piece := range pieces {
		if stopped = l.tell(a, a.caller.read(piece)); stopped {
			break
		}
	}
	if !stopped {
		l.tell(a, a.caller.rest(false))
	}
	for {
		ev, ok, _ := a.stream.take()
		if !ok {
			return events, stopped
		}
		events = append(events, ev)
	}
}

const oneCall = `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`

func TestCallsComeAfterTheirText(t *testing.T) {
	f := Call{Name: "f", Arguments: `{"a": 1}`, Ended: true}
	for name, c := range map[string]struct {
		stops   []string
		single  bool
		pieces  []string
		want    []Event
		stopped bool
	}{
		"text, calls, text":       {nil, false, []string{"Hi ", oneCall, oneCall, "so"}, []Event{{Text: "Hi", Calls: []Call{f, f}}, {Text: "so"}}, false},
		"one call and no more":    {nil, true, []string{oneCall + "so", "on"}, []Event{{Calls: []Call{f}}}, true},
		"a stop in the text":      {[]string{"E"}, false, []string{"aE", oneCall}, []Event{{Text: "a"}}, true},
		"half a stop before":      {[]string{"ab"}, false, []string{"a", oneCall, "b"}, []Event{{Text: "a", Calls: []Call{f}}, {Text: "b"}}, false},
		"a stop in the arguments": {[]string{"arguments"}, false, []string{oneCall}, []Event{{Calls: []Call{f}}}, false},
		"a call that is broken": {nil, true, []string{`<tool_call>{"name": "f", "arguments": {x`},
			[]Event{{Calls: []Call{{Name: "f", Arguments: "{", Ended: true, Written: `{"name": "f", "arguments": {`}}}, {Text: "x"}}, false},
	} {
		got, stopped := brought(calling(t, c.single, c.stops...), c.pieces...)
		if d := cmp.Diff(c.want, got); d != "" || stopped != c.stopped {
			t.Errorf("%s: stopped %v %s", name, stopped, d)
		}
	}
}

func TestTokensOfCallsHaveNoLogprobs(t *testing.T) {
	a, l := calling(t, false), new(looping)
	for i, piece := range []string{"Hi", " ", `<tool_call>`, `{"name": "f", "argum`, `ents": {"a": `, `1}}`, `</tool_`, `call>`, "so"} {
		a.untold.add(&sample.Ranked{Chosen: sample.Likely{ID: int32(i)}}, 0)
		l.tell(a, a.caller.read(piece))
	}
	l.tell(a, a.caller.rest(false))
	var ids []int32
	for {
		ev, ok, _ := a.stream.take()
		if !ok {
			break
		}
		for _, r := range ev.Logprobs {
			ids = append(ids, r.Chosen.ID)
		}
	}
	if d := cmp.Diff([]int32{0, 8}, ids); d != "" {
		t.Error(d)
	}
}

func TestControlTokensOfACallAreReadAndShownNowhere(t *testing.T) {
	a := callingBy(t, false, []string{"<tool_call>", "</tool_call>"})
	a.caller.hidden = map[int32]string{7: toolcall.Hermes.Mark("<tool_call>"), 8: toolcall.Hermes.Mark("</tool_call>")}
	a.caller.ends = map[int32]bool{9: true}
	d := thinker(t, false).NewDecoder(true)
	got, _ := brought(a, "<tool_call>", a.caller.mark(7, d), a.caller.shown(`{"name": "f"}`)+a.caller.mark(1, d), a.caller.mark(8, d), a.caller.mark(8, d))
	if d := cmp.Diff([]Event{{Text: "<tool_call>", Calls: []Call{{Name: "f", Arguments: "{}", Ended: true}}}}, got); d != "" {
		t.Error(d)
	}
	s := &serving{ends: map[int32]bool{2: true}}
	for name, c := range map[string]struct {
		r    Request
		c    *caller
		want map[int32]bool
	}{
		"a call":                {Request{}, a.caller, map[int32]bool{2: true, 9: true}},
		"no tools":              {Request{}, nil, map[int32]bool{2: true}},
		"stop tokens":           {Request{StopTokens: []int32{5, 2}}, a.caller, map[int32]bool{2: true, 5: true, 9: true}},
		"ends that are ignored": {Request{IgnoreEnd: true, StopTokens: []int32{5}}, a.caller, map[int32]bool{5: true}},
		"a form":                {Request{IgnoreEnd: true, Constraint: new(Constraint)}, nil, map[int32]bool{2: true}},
	} {
		if d := cmp.Diff(c.want, s.endingOf(c.r, c.c).tokens); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if shown := a.caller.shown("a\ufdd0b\ufdef\ufdf0"); shown != "a\ufffdb\ufffd\ufdf0" || (*caller)(nil).shown("\ufdd0") != "\ufdd0" {
		t.Errorf("text of a model that looks like a control token becomes %q", shown)
	}
}
