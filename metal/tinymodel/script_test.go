//go:build !race

package tinymodel_test

import (
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestAScriptIsAChainOfItsOwnTokens(t *testing.T) {
	if err := tinymodel.WriteTo(new(counter), tinymodel.Caller()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*tinymodel.Config){
		"a piece twice":         func(c *tinymodel.Config) { c.Script.Lines[0].Says[1] = c.Script.Lines[0].Says[0] },
		"a letter":              func(c *tinymodel.Config) { c.Script.Lines[0].Says[0] = "a" },
		"nothing":               func(c *tinymodel.Config) { c.Script.Lines[0].Says[0] = "" },
		"a line without pieces": func(c *tinymodel.Config) { c.Script.Lines[0].Says = nil },
		"no lines":              func(c *tinymodel.Config) { c.Script.Lines = nil },
		"no template":           func(c *tinymodel.Config) { c.Script.Template = "" },
		"a tied head":           func(c *tinymodel.Config) { c.Untied = false },
		"a rounded type":        func(c *tinymodel.Config) { c.Type = weights.Q4_1 },
		"too few columns": func(c *tinymodel.Config) {
			c.Hidden, c.QueryHeads, c.KVHeads, c.Script.Lines = 32, 2, 2, append(c.Script.Lines, long())
		},
		"too small a vocabulary": func(c *tinymodel.Config) { c.Vocabulary = 420 },
	} {
		c := tinymodel.Caller()
		change(&c)
		if err := tinymodel.WriteTo(new(counter), c); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := tinymodel.WriteFolder(filepath.Join(t.TempDir(), "m"), tinymodel.Caller(), tinymodel.Layout{}); err == nil {
		t.Error("a folder was written")
	}
}

// long is a line of more pieces than a narrow model has columns.
func long() tinymodel.Line {
	l := tinymodel.Line{Cue: "<|long|>"}
	for i := range 40 {
		l.Says = append(l.Says, string(rune('A'+i))+"??")
	}
	return l
}
