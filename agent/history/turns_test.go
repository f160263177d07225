//go:build !race

package history

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// longestTurns is how long a model waits for the room of on-demand models of other
// namespaces: until room is kept for it, until those in use have served for long enough,
// and for their drains.
const longestTurns = 2*busyTenure + 2*time.Minute

// turns are two slots of a Mac, which two models each take in turn. A model serves for a
// while, then nothing of its slot does for the pause.
type turns struct {
	namespaces   [2]string
	serve, pause time.Duration
	shield       bool // a model that may end none of the others waits for longer
}

// slot is one of them.
type slot struct {
	models [2]string
	hold   string // of the first model
	next   time.Time
}

// TestModelsThatTakeTurnsInTwoSlotsYield to one that needs the room of both: it is never
// without an engine for long.
func TestModelsThatTakeTurnsInTwoSlotsYield(t *testing.T) {
	for name, tc := range map[string]turns{
		"one namespace, with pauses": {[2]string{"x", "x"}, 4 * time.Minute, 65 * time.Second, false},
		"one namespace, long":        {[2]string{"x", "x"}, 285 * time.Second, 65 * time.Second, false},
		"two namespaces":             {[2]string{"x", "y"}, 4 * time.Minute, 0, false},
		"two namespaces, short":      {[2]string{"x", "y"}, 150 * time.Second, 0, false},
		"a model waits for longer":   {[2]string{"x", "x"}, 4 * time.Minute, 65 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			synctest.Test(t, func(t *testing.T) {
				p := &turnsPlayer{turns: tc, t: t, world: New(dir)}
				p.world.diary.quiet = true
				defer p.world.Close()
				may := longestTurns
				if tc.shield { // it serves first
					may += busyTenure
				}
				if longest := p.play(30 * time.Minute); longest > may {
					t.Errorf("it had no engine for %v, of %v that it may wait", longest, may)
				}
			})
		})
	}
}

// turnsPlayer plays turns.
type turnsPlayer struct {
	turns
	t        *testing.T
	world    *World
	requests int
}

// do executes a line.
func (p *turnsPlayer) do(format string, args ...any) {
	if _, err := p.world.Line(fmt.Sprintf(format, args...)); err != nil && !errors.Is(err, errNotThere) {
		p.t.Fatal(err)
	}
}

// fresh is the id of a new request.
func (p *turnsPlayer) fresh() string {
	p.requests++
	return fmt.Sprintf("r%d", p.requests)
}

// play returns for how long at most the large model had no engine.
func (p *turnsPlayer) play(length time.Duration) (longest time.Duration) {
	p.do("mac memory=64GiB")
	for i, name := range []string{"a1", "b1", "a2", "b2"} {
		p.do("model %s holds=18GiB load=3s", name)
		p.do("order %s on-demand reserve=21GiB drain=30s idle=2s priority=1 namespace=%s", name, p.namespaces[i%2])
	}
	p.do("model low holds=40GiB load=5s")
	p.do("order low on-demand reserve=44GiB namespace=z")
	p.do("model large holds=40GiB load=5s")
	p.do("order large on-demand reserve=44GiB idle=60s priority=1 namespace=other")
	began := time.Now()
	slots := []*slot{{models: [2]string{"a1", "b1"}}, {models: [2]string{"b2", "a2"}, next: began.Add((p.serve + p.pause) / 2)}}
	for last := began; time.Since(began) < length; longest = max(longest, time.Since(last)) {
		for _, s := range slots {
			p.turn(s)
		}
		if p.shield {
			p.do("request low %s tokens=2", p.fresh())
			p.do("wait 1ms")
		}
		p.do("request large %s tokens=2", p.fresh())
		p.do("wait 5s")
		if err := p.world.Check(); err != nil {
			p.t.Fatal(err)
		}
		if p.world.twin.Engine("large") != nil {
			last = time.Now()
		}
	}
	return longest
}

// turn continues a slot: its model asks until it is served, and then the other one.
func (p *turnsPlayer) turn(s *slot) {
	now := time.Now()
	if now.Before(s.next) && (s.hold == "" || p.world.twin.Engine(s.models[0]) != nil) {
		return
	}
	over := s.hold != "" && !now.Before(s.next)
	if s.hold != "" {
		p.do("hang-up %s", s.hold)
		s.hold = ""
	}
	if over {
		s.models[0], s.models[1], s.next = s.models[1], s.models[0], now.Add(p.pause)
		if p.pause > 0 {
			return
		}
	}
	if !now.Before(s.next) {
		s.next = now.Add(p.serve)
	}
	s.hold = p.fresh()
	p.do("hold %s %s", s.models[0], s.hold)
}
