//go:build !race

package tinymodel_test

import (
	"math"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestADictationFitsItsModel(t *testing.T) {
	dictated := func() tinymodel.Config { return tinymodel.Dictated("d", "{{ dictate('a') }}") }
	if err := tinymodel.WriteTo(new(counter), dictated()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*tinymodel.Config){
		"two layers":             func(c *tinymodel.Config) { c.Layers = 2 },
		"two heads":              func(c *tinymodel.Config) { c.QueryHeads = 2 },
		"a tied head":            func(c *tinymodel.Config) { c.Untied = false },
		"a rounded type":         func(c *tinymodel.Config) { c.Type = weights.Q4_1 },
		"stretched positions":    func(c *tinymodel.Config) { c.Scaling = tinymodel.Scaling{Kind: "linear", Factor: 2} },
		"a script":               func(c *tinymodel.Config) { c.Script = tinymodel.Caller().Script },
		"no template":            func(c *tinymodel.Config) { c.Dictation.Template = "" },
		"no length":              func(c *tinymodel.Config) { c.Dictation.Length = 0 },
		"a small head":           func(c *tinymodel.Config) { c.Hidden, c.HeadSize = 64, 8 },
		"too small a vocabulary": func(c *tinymodel.Config) { c.Vocabulary = 512 },
	} {
		c := dictated()
		change(&c)
		if err := tinymodel.WriteTo(new(counter), c); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := tinymodel.WriteFolder(filepath.Join(t.TempDir(), "m"), dictated(), tinymodel.Layout{}); err == nil {
		t.Error("a folder was written")
	}
}

// No other distance in the context may score nearly as high as that of the
// dictation: the query would see a second position.
func TestADictationSeesOnePositionAlone(t *testing.T) {
	c := tinymodel.Dictated("d", "")
	closest := math.Inf(-1)
	for distance := 1; distance < c.Context; distance++ {
		score := 0.0
		for pair := range c.HeadSize / 2 {
			score += math.Cos(float64(distance) * math.Pow(c.Theta, -2*float64(pair)/float64(c.HeadSize)))
		}
		closest = max(closest, score)
	}
	if gap := float64(c.HeadSize/2) - closest; gap < 1 {
		t.Errorf("the second best position scores only %.2f less", gap)
	}
}
