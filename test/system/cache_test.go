package system

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/fleet"
)

// After an idle unload, a killed engine, and an engine killed together with its
// agent, the same prompt has the same answer and restores its tokens from disk.
func TestPromptIsComputedOnceAcrossEngineAndAgentRestarts(t *testing.T) {
	t.Parallel()
	s := remembering(t)
	s.model(t, fleet.Model{Name: "recalls", File: "light.gguf", OnDemand: true, IdleSeconds: 1, DrainSeconds: 1, Chips: []string{atticChip}, SSD: "64Mi"})
	first := s.recalled(t, "before anything was asked", "", 0)
	eventually(t, "what was computed lies on the disk", patience, func(context.Context) error {
		paths, err := filepath.Glob(filepath.Join(s.Dir(), attic, "kv", "*", "?", "*.kv"))
		if err == nil && len(paths) < 2 {
			err = fmt.Errorf("%d blocks", len(paths))
		}
		return err
	})
	s.asleep(t)
	s.recalled(t, "after it was unloaded", first, 128)

	s.killed(t)
	s.asleep(t)
	s.recalled(t, "after it was killed", first, 128)

	if err := s.KillAgent(attic); err != nil {
		t.Fatal(err)
	}
	s.killed(t)
	if err := s.StartAgent(attic); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitMacReady(t.Context(), attic); err != nil {
		t.Fatal(err)
	}
	s.asleep(t)
	s.recalled(t, "after its agent was killed, too", first, 128)
	eventually(t, "the Mac reports what it keeps", patience, func(ctx context.Context) error {
		node, err := s.Mac(ctx, attic)
		if err != nil {
			return err
		}
		if c := node.Status.Disk.Cache; c.Bytes == 0 || c.LimitBytes == 0 || c.Message != "" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// recalled asks the question of this test, and wants the answer that it had and so
// many tokens of it restored, or none.
func (s *memorySuite) recalled(t *testing.T, when, want string, least int) string {
	t.Helper()
	var a fleet.Answer
	eventually(t, "the question is answered "+when, patience, func(ctx context.Context) (err error) {
		a, err = fleet.Ask(ctx, s.URL, fleet.Question{Model: "default/recalls", Text: strings.Repeat("What was it that I asked before? ", 7), MaxTokens: 8})
		return err
	})
	cached := 0
	if d := a.Usage.PromptTokensDetails; d != nil {
		cached = d.CachedTokens
	}
	if cached < least || least == 0 && cached > 0 || want != "" && a.Text != want {
		t.Errorf("%s: %d of %d tokens were restored, want %d; %q, want %q", when, cached, a.Usage.PromptTokens, least, a.Text, want)
	}
	return a.Text
}

// killed ends the engine of the Mac as a crash would, unless it has gone by
// itself.
func (s *memorySuite) killed(t *testing.T) {
	t.Helper()
	all, err := s.MacEngines(attic)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if err := e.Kill(); err != nil {
			t.Error(err)
		}
	}
}

// asleep waits until no engine of the Mac is left.
func (s *memorySuite) asleep(t *testing.T) {
	t.Helper()
	eventually(t, "no engine is left on "+attic, patience, func(context.Context) error {
		all, err := s.MacEngines(attic)
		if err == nil && len(all) > 0 {
			err = errors.New(fmt.Sprint(all))
		}
		return err
	})
}
