//go:build !race

package text

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/chat"
)

// Templates of the kinds that models have.
const (
	// plainTurns writes every turn where it stands, and knows no reasoning.
	plainTurns = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	// switched closes the model's reasoning before it begins.
	switched = plainTurns + `{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}`
	// opened begins reasoning only on demand.
	opened = plainTurns + `{% if thinking %}<think>{% else %}</think>{% endif %}`
	// graded prints what it is given.
	graded = `Reasoning: {{ reasoning_effort if reasoning_effort is defined else "medium" }}` + plainTurns
	// listed refuses efforts that it does not name.
	listed = `{% if reasoning_effort is defined and reasoning_effort not in ["none", "high"] %}{{ raise_exception("no") }}{% endif %}{{ reasoning_effort }}` + plainTurns
	// both grades reasoning and switches it.
	both = graded + `{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}`
	// mentioned names the variables and does nothing with them.
	mentioned = plainTurns + `{% set x = reasoning_effort or enable_thinking %}`
	// headed takes instructions at the head alone, and refuses others.
	headed = `{% for m in messages %}{% if m.role == "system" and not loop.first %}{{ raise_exception("system must come first") }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}`
	// deaf drops instructions that do not stand at the head.
	deaf = `{% for m in messages %}{% if m.role != "system" or loop.first %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}`
	// strict demands that roles alternate after an instruction at the head.
	strict = `{% if messages[0].role == "system" %}{{ messages[0].content }}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}` +
		`{% for m in rest %}{% if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}`
)

// templated is the text side of a model with a template and no tokenizer.
func templated(t *testing.T, template string) *Text {
	t.Helper()
	templates, err := chat.NewTemplates(map[string]string{"default": template})
	if err != nil {
		t.Fatal(err)
	}
	out := &Text{templates: templates}
	if out.can, err = out.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAbilitiesOfATemplateAreFoundByWhatItWrites(t *testing.T) {
	all := []string{"low", "medium", "high"}
	for name, tc := range map[string]struct {
		template string
		want     abilities
	}{
		"plain":     {template: plainTurns, want: abilities{systemAnywhere: true}},
		"switched":  {template: switched, want: abilities{toggle: "enable_thinking", systemAnywhere: true}},
		"opened":    {template: opened, want: abilities{toggle: "thinking", systemAnywhere: true}},
		"graded":    {template: graded, want: abilities{efforts: all, systemAnywhere: true}},
		"listed":    {template: listed, want: abilities{efforts: []string{"none", "high"}, systemAnywhere: true}},
		"both":      {template: both, want: abilities{toggle: "enable_thinking", efforts: all, systemAnywhere: true}},
		"mentioned": {template: mentioned, want: abilities{systemAnywhere: true}},
		"headed":    {template: headed, want: abilities{}},
		"deaf":      {template: deaf, want: abilities{}},
		"strict":    {template: strict, want: abilities{}},
	} {
		if d := cmp.Diff(tc.want, templated(t, tc.template).can, cmp.AllowUnexported(abilities{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestEveryEffortIsTakenByEveryTemplate(t *testing.T) {
	for name, tc := range map[string]struct {
		template, arguments string
		want                map[string]string // what follows of each effort
	}{
		"plain":    {template: plainTurns, want: map[string]string{"none": `{}`, "low": `{}`, "max": `{}`}},
		"switched": {template: switched, want: map[string]string{"none": `{"enable_thinking":false}`, "minimal": `{"enable_thinking":true}`, "high": `{"enable_thinking":true}`}},
		"opened":   {template: opened, want: map[string]string{"none": `{"thinking":false}`, "low": `{"thinking":true}`}},
		"graded": {template: graded, want: map[string]string{"none": `{"reasoning_effort":"low"}`, "minimal": `{"reasoning_effort":"low"}`, "medium": `{"reasoning_effort":"medium"}`,
			"xhigh": `{"reasoning_effort":"high"}`, "max": `{"reasoning_effort":"high"}`}},
		"listed": {template: listed, want: map[string]string{"none": `{"reasoning_effort":"none"}`, "minimal": `{"reasoning_effort":"high"}`, "max": `{"reasoning_effort":"high"}`}},
		"both":   {template: both, want: map[string]string{"none": `{"enable_thinking":false}`, "low": `{"enable_thinking":true,"reasoning_effort":"low"}`}},
		"the client's own arguments": {template: both, arguments: `{"enable_thinking":false,"reasoning_effort":"odd","x":1}`,
			want: map[string]string{"high": `{"enable_thinking":false,"reasoning_effort":"odd","x":1}`}},
	} {
		text := templated(t, tc.template)
		for effort, want := range tc.want {
			got, err := text.can.withEffort([]byte(tc.arguments), effort)
			if err != nil || string(got) != want {
				t.Errorf("%s, %s: %s, %v, want %s", name, effort, got, err, want)
			}
		}
		if tc.arguments != "" {
			continue
		}
		for _, effort := range ranks {
			if _, err := text.Render(context.Background(), Chat{Messages: []chat.Message{{Role: "user", Content: "a"}}, Effort: effort}); err != nil {
				t.Errorf("%s refuses %s: %v", name, effort, err)
			}
		}
	}
}

func TestLateInstructionsStandWhereTheTemplateAllows(t *testing.T) {
	turn := func(role, content string) chat.Message { return chat.Message{Role: role, Content: content} }
	late := []chat.Message{turn("system", "a"), turn("user", "b"), turn("system", "c"), turn("user", "d"), turn("assistant", "e"), turn("developer", "f"), turn("user", "g")}
	for name, tc := range map[string]struct {
		template string
		messages []chat.Message
		want     string
	}{
		"anywhere":                  {template: plainTurns, messages: late, want: "<system>a<user>b<system>c<user>d<assistant>e<system>f<user>g<assistant>"},
		"refused elsewhere":         {template: headed, messages: late, want: "<system>a<user>b\n\nc\n\nd<assistant>e<user>f\n\ng"},
		"dropped elsewhere":         {template: deaf, messages: late, want: "<system>a<user>b\n\nc\n\nd<assistant>e<user>f\n\ng"},
		"alternating":               {template: strict, messages: late, want: "a<user>b\n\nc\n\nd<assistant>e<user>f\n\ng"},
		"none at the head":          {template: headed, messages: late[1:4], want: "<user>b\n\nc\n\nd"},
		"two at the head":           {template: headed, messages: []chat.Message{turn("developer", "a"), turn("system", "b"), turn("user", "c")}, want: "<system>a\n\nb<user>c"},
		"the last turn":             {template: headed, messages: late[:3], want: "<system>a<user>b\n\nc"},
		"users' own double turns":   {template: headed, messages: []chat.Message{turn("system", "a"), turn("user", "b"), turn("user", "c"), turn("system", "d")}, want: "<system>a<user>b<user>c\n\nd"},
		"after a tool":              {template: headed, messages: []chat.Message{turn("user", "a"), turn("tool", "b"), turn("system", "c"), turn("assistant", "d")}, want: "<user>a<tool>b<user>c<assistant>d"},
		"another user's turn":       {template: headed, messages: []chat.Message{{Role: "user", Name: "x", Content: "a"}, turn("system", "b")}, want: "<user>a<user>b"},
		"nothing late is as it was": {template: headed, messages: late[:2], want: "<system>a<user>b"},
	} {
		got, err := templated(t, tc.template).Render(context.Background(), Chat{Messages: tc.messages})
		if err != nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
}

// A coding agent adds instructions during its session. Each prompt begins with the
// one before, so that it is found in the prefix cache.
func TestLateInstructionsKeepWhatWasBeforeThem(t *testing.T) {
	for name, template := range map[string]string{"anywhere": plainTurns, "refused elsewhere": headed, "dropped elsewhere": deaf, "alternating": strict} {
		text, before := templated(t, template), ""
		var session []chat.Message
		for i, role := range []string{"system", "user", "system", "assistant", "user", "system", "assistant"} {
			session = append(session, chat.Message{Role: role, Content: content(i)})
			got, err := text.Render(t.Context(), Chat{Messages: session})
			got = strings.TrimSuffix(got, "<assistant>")
			if err != nil || !strings.HasPrefix(got, before) {
				t.Errorf("%s: turn %d: %q does not begin with %q, %v", name, i, got, before, err)
			}
			before = got
		}
	}
}

// TestAttackManyInstructions: the turns of a long conversation are joined once.
func TestAttackManyInstructions(t *testing.T) {
	var messages []chat.Message
	for range 10_000 {
		messages = append(messages, chat.Message{Role: "user", Content: strings.Repeat("u", 30)}, chat.Message{Role: "system", Content: strings.Repeat("s", 30)})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := (&Text{}).arranged(messages)
	runtime.ReadMemStats(&after)
	if len(out) != 1 || len(out[0].Content) != len(messages)*32-2 || !strings.HasSuffix(out[0].Content, "u\n\n"+strings.Repeat("s", 30)) {
		t.Errorf("%d turns, the first of %d bytes", len(out), len(out[0].Content))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("%d MiB were allocated for a conversation of 1 MiB", n>>20)
	}
}
