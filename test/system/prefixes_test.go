//go:build stories

package system

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// TestPrefixesOnDiskOutliveTheirEngine: after its engine was unloaded because it
// was idle, after one that was killed, and after an agent that was killed with it,
// the same question has the same answer and begins with a prefix from the Mac's
// disk.
func TestPrefixesOnDiskOutliveTheirEngine(t *testing.T) {
	w := attic{world: together(t, memoryMac(t, "attic"))}
	w.model(t, fleet.Model{Name: "recalls", File: "tiny.gguf", OnDemand: true, IdleSeconds: 1, DrainSeconds: 1, Mac: "attic", DiskLimit: "64Mi"})
	first := w.recalled(t, "before anything was asked", "", 0)
	eventually(t, "the prefix is on the disk", func(context.Context) error {
		paths, err := filepath.Glob(filepath.Join(w.Dir(), "attic", "kv", "*", "*", "?", "*.kv"))
		if err == nil && len(paths) < 2 {
			err = fmt.Errorf("%d blocks", len(paths))
		}
		return err
	})
	w.asleep(t)
	w.recalled(t, "after it was unloaded", first, 128)

	w.kill(t)
	w.asleep(t)
	w.recalled(t, "after it was killed", first, 128)

	must(t, w.Agent("attic").Kill())
	w.kill(t)
	must(t, w.Agent("attic").Start())
	must(t, w.WaitMacReady(t.Context(), "attic"))
	w.asleep(t)
	w.recalled(t, "after its agent was killed, too", first, 128)
	w.waitMac(t, "attic", "the Mac reports its cache", func(node *v1alpha1.MacNode) error {
		if c := node.Status.Disk.Cache; c.Bytes == 0 || c.LimitBytes == 0 || c.Message != "" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// attic is the world of prefixes.
type attic struct{ *world }

// recalled asks the question of this test, and wants the answer that it had and
// at least that many tokens of it from the cache, or none.
func (w attic) recalled(t *testing.T, when, want string, least int) string {
	t.Helper()
	var a fleet.Answer
	eventually(t, "the question is answered "+when, func(ctx context.Context) (err error) {
		a, err = fleet.Ask(ctx, w.URL, fleet.Question{Model: "default/recalls", Text: strings.Repeat("What was it that I asked before? ", 7), MaxTokens: 8})
		return err
	})
	cached := 0
	if d := a.Usage.PromptTokensDetails; d != nil {
		cached = d.CachedTokens
	}
	if cached < least || least == 0 && cached > 0 || want != "" && a.Text != want {
		t.Errorf("%s: %d of %d tokens were cached, want %d; %q, want %q", when, cached, a.Usage.PromptTokens, least, a.Text, want)
	}
	return a.Text
}

// kill ends the engine of the Mac as a crash would, unless it has ended by itself.
func (w attic) kill(t *testing.T) {
	t.Helper()
	all, err := w.Agent("attic").Engines()
	must(t, err)
	for _, e := range all {
		if err := e.Kill(); err != nil {
			t.Error(err)
		}
	}
}

// asleep waits until no engine of the Mac is left.
func (w attic) asleep(t *testing.T) {
	t.Helper()
	eventually(t, "no engine is left", func(context.Context) error {
		if pids := w.pids(t, "attic"); len(pids) > 0 {
			return fmt.Errorf("engines %v", pids)
		}
		return nil
	})
}
