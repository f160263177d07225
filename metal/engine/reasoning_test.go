package engine

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/text"
)

// told runs an answer of thinker through a reasoner.
func told(t *testing.T, r *reasoner, ids ...int32) (thoughts, answer string, counted int) {
	t.Helper()
	d := thinker(t, false).NewDecoder(true)
	for _, id := range ids {
		shown, err := d.Push(id)
		if err != nil {
			t.Fatal(err)
		}
		th, an, counts := r.see(id, shown)
		thoughts, answer = thoughts+th, answer+an
		if counts {
			counted++
		}
	}
	th, an := r.rest(d.Flush())
	return thoughts + th, answer + an, counted
}

func TestThoughtsAreToldApartFromTheAnswer(t *testing.T) {
	tags := text.Reasoning{Opens: "<think>", Closes: "</think>"}
	for name, c := range map[string]struct {
		prompt, ids      []int32
		thoughts, answer string
		counted, thought int
	}{
		"the model opens":            {nil, []int32{tokOpens, tokLine, tokA, tokLine, tokB, tokLine, tokCloses, tokLine, tokLine, tokB, tokLine, tokA}, "a\nb", "b\na", 3, 5},
		"the template opened":        {[]int32{tokOpens, tokLine}, []int32{tokA, tokCloses, tokB}, "a", "b", 1, 1},
		"the template closed":        {[]int32{tokOpens, tokLine, tokCloses, tokLine}, []int32{tokA, tokOpens, tokB}, "", "a<think>b", 3, 0},
		"no thoughts":                {nil, []int32{tokA, tokOpens, tokB, tokCloses}, "", "a<think>b</think>", 4, 0},
		"cut while it thinks":        {nil, []int32{tokOpens, tokA, tokLine}, "a", "", 0, 2},
		"nothing thought":            {nil, []int32{tokOpens, tokLine, tokLine, tokCloses, tokLine, tokA}, "", "a", 1, 2},
		"a second thought is answer": {nil, []int32{tokOpens, tokA, tokCloses, tokB, tokOpens, tokA}, "a", "b<think>a", 3, 1},
	} {
		r := reasonerOf(thinker(t, false), tags, c.prompt)
		thoughts, answer, counted := told(t, r, c.ids...)
		if thoughts != c.thoughts || answer != c.answer || counted != c.counted || r.counted() != c.thought {
			t.Errorf("%s: thought %q in %d tokens, answered %q in %d", name, thoughts, r.counted(), answer, counted)
		}
	}
	if thoughts, answer, _ := told(t, nil, tokOpens, tokA, tokCloses); thoughts != "" || answer != "<think>a</think>" {
		t.Errorf("nobody asked to split: %q, %q", thoughts, answer)
	}
	if r := reasonerOf(thinker(t, false), text.Reasoning{}, nil); r != nil {
		t.Errorf("a model that does not think: %+v", r)
	}
}

// The form of an answer begins with the message of its channel, also where its
// header contains more.
func TestHeaderOfTheAnswerEndsAThought(t *testing.T) {
	const start, channel, message, end = 100, 101, 102, 103
	control := map[string]int32{"<|start|>": start, "<|channel|>": channel, "<|message|>": message, "<|end|>": end, "<|constrain|>": 104}
	analysis := "<|channel|> analysis <|message|> final . <|end|> <|start|> assistant "
	for written, want := range map[string]string{
		analysis + "<|channel|> final <|message|> {}":                       "{}",
		analysis + "<|channel|> fin al <|message|> {}":                      "{}",
		analysis + "<|channel|> final <|constrain|> json <|message|> {}":    "{}",
		analysis + "<|channel|> commentary to=f <|message|> {} <|channel|>": "",
		"<|message|> {}":                      "{}",
		"<|channel|> analysis <|message|> {}": "",
	} {
		th := thought{underWay: true, channels: &channels{start: start, channel: channel, message: message, end: end, header: true}}
		answer := ""
		for _, word := range strings.Fields(written) {
			id, isControl := control[word]
			if isControl {
				word = ""
			}
			if !th.underWay {
				answer += word
			} else {
				th.underWay = !th.ends(id, word)
			}
		}
		if answer != want {
			t.Errorf("%s: the answer is %q, want %q", written, answer, want)
		}
	}
}

// What GPT-OSS writes behind <|start|>assistant; control tokens show no text.
func TestChannelsAreToldApart(t *testing.T) {
	const start, channel, message, end = 100, 101, 102, 103
	control := map[string]int32{"<|start|>": start, "<|channel|>": channel, "<|message|>": message, "<|end|>": end}
	counts := map[string]int{
		"<|channel|> analysis <|message|> Think . <|end|> <|start|> assistant <|channel|> final <|message|> Yes .": 2,
		"<|channel|> ana lysis <|message|> a <|end|> <|start|> assistant":                                          1,
	}
	for written, want := range map[string][2]string{
		"<|channel|> analysis <|message|> Think . <|end|> <|start|> assistant <|channel|> final <|message|> Yes .": {"Think.", "Yes."},
		"<|channel|> final <|message|> Yes":                               {"", "Yes"},
		"<|message|> Yes":                                                 {"", "Yes"},
		"<|channel|> commentary to=f json <|message|> {}":                 {"{}", ""},
		"<|channel|> ana lysis <|message|> a <|end|> <|start|> assistant": {"a", ""},
	} {
		r := &reasoner{channels: &channels{start: start, channel: channel, message: message, end: end, header: true}}
		var thoughts, answer string
		for _, word := range strings.Fields(written) {
			id, isControl := control[word]
			if isControl {
				word = ""
			}
			th, an, counts := r.see(id, word)
			thoughts, answer = thoughts+th, answer+an
			if counts != (an != "") {
				t.Errorf("%q counts: %v", word, counts)
			}
		}
		if thoughts != want[0] || answer != want[1] {
			t.Errorf("%s: thought %q, answered %q", written, thoughts, answer)
		}
		if r.counted() != counts[written] {
			t.Errorf("%s: thought %d tokens, want %d", written, r.counted(), counts[written])
		}
	}
}
