//go:build !race

package engine_test

import (
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Blanks that may precede a call are held back until the answer ends. A stop string in them ends
// it, also where its last token is that of the limit.
func TestAStopStringInTheLastTextEndsTheAnswer(t *testing.T) {
	const blanks = " \n \n "
	c := tinymodel.Default()
	c.Name, c.Untied, c.Type, c.Vocabulary = "blanks", true, weights.F32, 480
	c.Script = &tinymodel.Script{Template: brief(hermes) + "<|cue|>", Lines: []tinymodel.Line{{Cue: "<|cue|>", Says: []string{"Soup", blanks, "Bread"}}}}
	path := filepath.Join(t.TempDir(), "blanks.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	e := ready(t, engine.Options{ModelPath: path}, ref.Options{})
	tools := []byte(`[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`)
	for stop, want := range map[string]engine.Finished{blanks: {Reason: engine.Stop, Stop: blanks}, "none": {Reason: engine.Length}} {
		got := ask(t, e, engine.Request{Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "Hi"}}, Tools: tools}, Calls: &engine.Calls{}, Stop: []string{stop}, MaxTokens: 2})
		if f := got.finished; f.Err != nil || f.Reason != want.Reason || f.Stop != want.Stop {
			t.Errorf("with %q, %q ended with %+v", stop, got.text, f)
		}
	}
}
