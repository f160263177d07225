package engine

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// tinyInput reads the requests of a tiny model.
func tinyInput(t *testing.T) *inputProcessor {
	t.Helper()
	return templatedInput(t, "")
}

// templatedInput is tinyInput with a chat template; empty means the model's own.
func templatedInput(t *testing.T, template string) *inputProcessor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &inputProcessor{context: 256, ends: map[int32]bool{}, task: model.Generate, long: share.NewTurns(1), received: share.NewBytes(receivedBytes), prompts: share.NewBytes(promptBytes), renders: share.NewTurns(renderPlaces)}
	if err := p.open(t.Context(), f, template); err != nil {
		t.Fatal(err)
	}
	return p
}

// A compiler without room for grammars keeps only those in use.
func TestRefusedEchoReleasesItsConstraint(t *testing.T) {
	p := tinyInput(t)
	p.constraints = constraint.NewCompiler(p.tok, p.text.Rows(), p.ends, 0)
	r := Request{
		Chat:       &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hello"}}},
		Constraint: &Constraint{Spec: grammar.Spec{Kind: grammar.Regex, Source: "[a-f]{4}"}, Param: "response_format"},
	}
	s, refusal := p.sequenceOf(t.Context(), r)
	if refusal != nil {
		t.Fatal(refusal)
	}
	used := p.constraints.Bytes()
	s.constraint.Release()
	unused := p.constraints.Bytes()
	if unused >= used {
		t.Fatalf("%d bytes with a grammar in use, %d without", used, unused)
	}
	r.Echo = true
	if _, refusal := p.sequenceOf(t.Context(), r); refusal == nil || refusal.Param != "echo" {
		t.Fatalf("the echo of a conversation: %v", refusal)
	}
	if n := p.constraints.Bytes(); n != unused {
		t.Errorf("%d bytes after an echo was refused, want %d", n, unused)
	}
}

// A panic releases a constraint too.
func TestAPanicReleasesAConstraint(t *testing.T) {
	p := tinyInput(t)
	p.constraints = constraint.NewCompiler(p.tok, p.text.Rows(), p.ends, 0)
	r := Request{Constraint: &Constraint{Spec: grammar.Spec{Kind: grammar.Regex, Source: "[a-f]{4}"}, Param: "regex"}}
	state, refusal := p.constrain(t.Context(), r, []int32{5})
	if refusal != nil {
		t.Fatal(refusal)
	}
	state.Release()
	unused := p.constraints.Bytes()
	p.tok = nil
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if n := p.constraints.Bytes(); n != unused {
			t.Errorf("%d bytes are in use after a panic, want %d", n, unused)
		}
	}()
	p.constrain(t.Context(), r, []int32{5})
}

func TestTokensThatEndAnAnswer(t *testing.T) {
	p := &inputProcessor{ends: map[int32]bool{2: true}}
	calls := map[int32]bool{9: true}
	for name, c := range map[string]struct {
		request Request
		calls   map[int32]bool
		want    map[int32]bool
	}{
		"a call":                {request: Request{}, calls: calls, want: map[int32]bool{2: true, 9: true}},
		"no tools":              {request: Request{}, want: map[int32]bool{2: true}},
		"stop tokens":           {request: Request{StopTokens: []int32{5, 2}}, calls: calls, want: map[int32]bool{2: true, 5: true, 9: true}},
		"ends that are ignored": {request: Request{IgnoreEnd: true, StopTokens: []int32{5}}, calls: calls, want: map[int32]bool{5: true}},
		"a form":                {request: Request{IgnoreEnd: true, Constraint: new(Constraint)}, want: map[int32]bool{2: true}},
	} {
		if d := cmp.Diff(c.want, p.endTokens(c.request, c.calls).tokens); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
