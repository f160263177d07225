package history

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/test/race"
	"metalfleet.dev/metalfleet/test/seed"
)

var (
	stepsFlag = flag.Int("steps", 0, "steps of random histories; 0: as many as a test run may take")
	seedFlag  = flag.Uint64("seed", 0, "seed of the first random history; 0 takes that of package test/seed")
)

// length of one random history. Each begins with an empty Mac and ends with one.
const length = 400

func TestRandomHistories(t *testing.T) {
	steps, from := *stepsFlag, *seedFlag
	if steps == 0 {
		steps = 100_000
		if race.Enabled {
			steps = 2_400
		}
		if testing.Short() {
			steps /= 10
		}
	}
	if from == 0 {
		from = seed.Of(t)
	}
	began := time.Now()
	var next atomic.Int64 // history to play
	t.Run("workers", func(t *testing.T) {
		for i := range min(4, runtime.GOMAXPROCS(0)) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					i := next.Add(1) - 1
					if int(i)*length >= steps {
						return
					}
					random(t, from+uint64(i))
					if (i+1)%5000 == 0 { // a soak reports its progress
						fmt.Printf("%d steps in %v\n", (i+1)*length, time.Since(began).Round(time.Second))
					}
				}
			})
		}
	})
	t.Logf("seed %d: %d steps in %v, %.0f steps/s", from, steps, time.Since(began).Round(time.Millisecond), float64(steps)/time.Since(began).Seconds())
}

// random plays one random history, and shrinks it if it breaks an invariant.
func random(t *testing.T, seed uint64) {
	t.Helper()
	lines := generate(rand.New(rand.NewPCG(seed, 0)), seed%4 == 0, length)
	if err := run(t, lines); err != nil {
		t.Errorf("go test ./agent/history -run Random -steps %d -seed %d: %v\nshrunk, as a file of testdata:\n\n%s", length, seed, err, script(shrink(t, lines, kind(err))))
	}
}

// run plays lines in a world of its own and returns the first broken invariant.
func run(t *testing.T, lines []string) (broken error) {
	t.Helper()
	dir := folder(t)
	defer os.RemoveAll(dir)
	// A panic of the pool leaves this file.
	if err := os.WriteFile(filepath.Join(dir, "history.txt"), []byte(script(lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := New(dir)
		w.diary.quiet = true
		defer w.Close()
		for i, line := range lines {
			if _, err := w.Line(line); err != nil {
				if errors.Is(err, errNotThere) {
					continue
				}
				broken = fmt.Errorf("line %d, %q: %w", i+1, line, err)
				return
			}
			if err := w.Check(); err != nil {
				broken = fmt.Errorf("line %d, %q: %w", i+1, line, err)
				return
			}
		}
		broken = w.Finish()
	})
	return broken
}

// kind is the first word of a fault, which names the invariant: it stays the
// same while a history is shrunk.
func kind(err error) string {
	_, fault, broken := strings.Cut(err.Error(), errBroken.Error()+": ")
	if !broken {
		return err.Error()
	}
	name, _, _ := strings.Cut(fault, ":")
	return name
}

// shrink leaves out lines, ever fewer at a time, as long as the same invariant
// breaks without them.
func shrink(t *testing.T, lines []string, want string) []string {
	t.Helper()
	breaks := func(lines []string) bool {
		for range 3 { // what happens in one instant has no fixed order
			if err := run(t, lines); err != nil && kind(err) == want {
				return true
			}
		}
		return false
	}
	for part := len(lines) / 2; part > 0; {
		smaller := false
		for at := 1; at+part <= len(lines); { // the Mac stays
			if next := slices.Concat(lines[:at], lines[at+part:]); breaks(next) {
				lines, smaller = next, true
				continue
			}
			at += part
		}
		if !smaller || part > 1 {
			part /= 2
		}
	}
	return lines
}

// script writes lines as a file of testdata.
func script(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%s\n----\n\n", l)
	}
	return b.String()
}

// generate returns a random history: a Mac, models, assignments, and then random
// events.
func generate(r *rand.Rand, slow bool, n int) []string {
	g := &generator{Rand: r, clear: r.IntN(2) == 0, quiet: r.IntN(3) == 0, slow: slow, namespaces: map[string]string{}}
	lines := []string{g.mac()}
	for _, name := range names {
		lines = append(lines, g.model(name), g.order(name))
	}
	for len(lines) < n {
		lines = append(lines, g.step())
	}
	return lines
}

var names = []string{"a", "b", "c", "d", "e"}

type generator struct {
	*rand.Rand
	requests int
	// clear: what is wired shows what engines left, so that the checker knows
	// when nothing may be started. Other histories hide it in every way.
	clear bool
	// quiet: little happens but requests, so that waits last.
	quiet bool
	// slow: drains last, and engines grow slowly while they do.
	slow bool
	// namespaces of models: those of a replica never change.
	namespaces map[string]string
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) mac() string {
	hidden := pick(g, "", "", " unwired")
	if g.clear {
		hidden = ""
	}
	return fmt.Sprintf("mac memory=64GiB%s%s%s", pick(g, "", "", " active=2GiB inactive=4GiB"), hidden, pick(g, "", " returns=1700ms"))
}

func (g *generator) model(name string) string {
	s := fmt.Sprintf("model %s holds=%dGiB load=%dms token=%dms", name, 1+g.IntN(24), 300+g.IntN(9000), 40+g.IntN(900))
	for _, odd := range []struct {
		in   int
		text string
	}{
		{4, " kv=700MiB"}, {6, " pools-kv"}, {6, " pooled=3GiB"}, {12 - 9*one(g.slow), " leak=" + g.leak()}, {10, " headroom=5GiB"}, {10, " shutdown=3100ms"},
		{25 - 19*one(g.clear), " strands=6GiB"}, {25, " fails=UnsupportedModel"}, {20, " dies=3"}, {20, " hangs"}, {30, " deaf"}, {12, " ignores=(shutdown)"},
		{6, " prefixes=3GiB"}, {10, " compressed=4GiB"}, {10, " acks=2300ms"}, {g.unclear(12), " wired=2GiB"},
		{25, " ignores=(shutdown, term)"}, {15, " ignores=(trim, abort)"}, {15, " ignores=(limits)"}, {12, " download=fails"}, {25, " download=hangs"}, {25, " download=refused"},
	} {
		if odd.in > 0 && g.IntN(odd.in) == 0 && !(strings.Contains(s, "ignores") && strings.Contains(odd.text, "ignores")) && !(strings.Contains(s, "download") && strings.Contains(odd.text, "download")) {
			s += odd.text
		}
	}
	return s
}

// one is 1 for true.
func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// leak of each second: one of less than 64 MiB is slow.
func (g *generator) leak() string {
	if g.slow {
		return pick(g, "10MiB", "40MiB", "60MiB")
	}
	return "300MiB"
}

// unclear is n, or 0 in a history that is clear.
func (g *generator) unclear(n int) int {
	if g.clear {
		return 0
	}
	return n
}

func (g *generator) order(name string) string {
	line := fmt.Sprintf("order %s %s reserve=%dGiB drain=%ds idle=%ds priority=%d", name, pick(g, "always", "on-demand", "on-demand", "on-demand"),
		2+g.IntN(28), g.IntN(40)+86400*one(g.slow), pick(g, 0, 0, 7, 60), g.IntN(3))
	namespace := pick(g, "team", "other")
	if g.namespaces[name] == "" {
		g.namespaces[name] = namespace
	}
	return line + " namespace=" + g.namespaces[name]
}

func (g *generator) fresh() string {
	g.requests++
	return fmt.Sprintf("r%d", g.requests)
}

func (g *generator) old() string { return fmt.Sprintf("r%d", max(1, g.requests-g.IntN(6))) }

// step is one line.
func (g *generator) step() string {
	name := pick(g, names...)
	switch k := g.IntN(100); {
	case k >= 60 && g.slow && g.IntN(8) > 0:
		return pick(g, "hold "+name+" "+g.fresh(), "order "+name+pick(g, " drained", " running"), fmt.Sprintf("wait %dms", g.IntN(90000)))
	case k >= 74 && g.quiet && g.IntN(8) > 0:
		return pick(g, "hold "+name+" "+g.fresh(), fmt.Sprintf("wait %dms", g.IntN(90000)))
	case k < 28:
		return "request " + name + " " + g.fresh() + fmt.Sprintf(" tokens=%d", 1+g.IntN(40)) + pick(g, "", "", "", "", "", "", " unread")
	case k < 34:
		return "hold " + name + " " + g.fresh()
	case k < 37:
		return "use " + g.old()
	case k < 41:
		return "release " + g.old()
	case k < 46:
		return "hang-up " + g.old()
	case k < 70:
		return fmt.Sprintf("wait %dms", pick(g, g.IntN(300), g.IntN(3000), g.IntN(3000), g.IntN(30000)))
	case k < 74:
		return g.order(name)
	case k < 76:
		return g.model(name)
	case k < 79:
		return "order " + name + pick(g, " running", " running", " downloaded", " drained", " next-epoch running", " context=128")
	case k < 81:
		return "withdraw " + name
	case k < 87:
		return g.weather()
	case k < 98:
		return g.engine(name)
	}
	return pick(g, "agent restart", "agent restart", "agent stop", "agent start", "agent start",
		fmt.Sprintf("journal %s reserved=%dGiB", name, 1+g.IntN(28)), "mac reboot")
}

// weather is what happens to the Mac.
func (g *generator) weather() string {
	k := g.IntN(10)
	if g.clear {
		k = pick(g, 0, 1, 2, 3, 4, 5, 6)
	}
	switch k {
	case 0:
		return fmt.Sprintf("mac foreign=%dGiB", g.IntN(40))
	case 1:
		return fmt.Sprintf("mac ceiling=%dGiB", pick(g, 0, 8+g.IntN(50)))
	case 2:
		return "mac pressure=" + pick(g, "Normal", "Warning", "Critical")
	case 3:
		return pick(g, "starts fail", "starts work", "starts work")
	case 4:
		return fmt.Sprintf("clock jump=%ds", g.IntN(7200)-3600)
	case 5:
		return fmt.Sprintf("sleep %ds", g.IntN(30000))
	case 7:
		return "mac " + pick(g, "stranded=0GiB", "stranded=0GiB", "stranded=3GiB", "stranded=9GiB", "wired=9GiB", "wired=1GiB")
	case 8:
		return pick(g, "probe fails host", "probe fails engines", "probe fails engine="+pick(g, names...), "probe works", "probe works", "probe works")
	case 9:
		return pick(g, "disk full", "disk slow=1400ms", "disk works", "disk works", "disk works")
	}
	return fmt.Sprintf("mac active=%dGiB inactive=%dGiB", g.IntN(8), g.IntN(8))
}

func (g *generator) engine(name string) string {
	return "engine " + name + " " + pick(g, fmt.Sprintf("extra=%dGiB", g.IntN(12)), fmt.Sprintf("pooled=%dGiB", g.IntN(6)), fmt.Sprintf("prefixes=%dGiB", g.IntN(5)), "exit=1", "kill", "stop", "continue", "continue", "extra=0GiB", "pooled=2GiB")
}
