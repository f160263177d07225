package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// newCachingMac returns a Mac with a disk cache of limit bytes.
func newCachingMac(t *testing.T, limit int64) *mac {
	m := newMac(t, tinymodel.Default())
	m.giveIdentity()
	m.cache = &cold.Options{FS: disk.OS{}, Dir: filepath.Join(m.state, "kv")}
	m.cache.Budget.LimitBytes = limit
	return m
}

// caching is an assignment with a cache on disk.
func (m *mac) caching() v1alpha1.Assignment {
	a := m.assignment()
	a.PrefixCache = v1alpha1.PrefixCacheLimits{DiskBytes: 64 << 20, QueueBytes: 8 << 20}
	return a
}

// words are a prompt of some blocks that begins like no other.
func words(of string) string { return strings.Repeat(of+" is what I want to know. ", 8) }

// told is what a person sees of an answer.
type completion struct {
	Choices []struct {
		Message struct{ Content string }
	}
	Usage struct {
		PromptTokens int64 `json:"prompt_tokens"`
		Details      struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func (m *mac) generate(t *testing.T, of string) (text string, cached int64) {
	t.Helper()
	var a completion
	if err := json.Unmarshal([]byte(m.say(t, "tiny", words(of), nil)), &a); err != nil || len(a.Choices) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if a.Usage.PromptTokens < 140 {
		t.Fatalf("a prompt of %d tokens fills too few blocks", a.Usage.PromptTokens)
	}
	if a.Usage.Details.Cached == 0 {
		m.offered += a.Usage.PromptTokens / 64
	}
	return a.Choices[0].Message.Content, a.Usage.Details.Cached
}

// computed asks something new, and waits until as many blocks as it fills are on
// the disk.
func (m *mac) computed(t *testing.T, of string) string {
	t.Helper()
	m.granted(t)
	before, offered := m.books(t).Blocks.Persisted, m.offered
	text, cached := m.generate(t, of)
	if cached != 0 {
		t.Errorf("%s: %d tokens of a new prompt were restored", of, cached)
	}
	poll(t, func() error {
		if s := m.books(t); s.Blocks.Accepted < m.offered || s.Blocks.Queued > 0 || s.Blocks.Persisted < before+m.offered-offered {
			return fmt.Errorf("of %d blocks not all are on the disk: %+v", m.offered, s)
		}
		return nil
	})
	return text
}

// granted waits until the engine may write, and all blocks that it was asked for
// until then are counted. It is granted bytes once it has a first block, which is
// dropped if the grant is late.
func (m *mac) granted(t *testing.T) {
	t.Helper()
	poll(t, func() error {
		s := m.books(t)
		if s.GrantedBytes == 0 {
			m.asked++
			m.generate(t, fmt.Sprintf("Number %d", m.asked))
		}
		if s.GrantedBytes == 0 || s.Blocks.Accepted < m.offered || s.Blocks.Queued > 0 {
			return fmt.Errorf("the engine may not write, or has not reported all of %d blocks: %+v", m.offered, s)
		}
		return nil
	})
}

// restored asks again and wants the same answer, begun with restored tokens.
func (m *mac) restored(t *testing.T, when, of, want string) {
	t.Helper()
	if text, cached := m.generate(t, of); text != want || cached < 128 {
		t.Errorf("%s: %d tokens were restored and %q is the answer, which was %q", when, cached, text, want)
	}
}

// books are the owner's, once the folder is open.
func (m *mac) books(t *testing.T) *cold.Snapshot {
	t.Helper()
	var s *cold.Snapshot
	poll(t, func() error {
		w := m.agent.cache.owner.Load()
		if w == nil {
			return errNoCache
		}
		s = w.Snapshot()
		return nil
	})
	return s
}

// another waits until the replica is served by another process.
func (m *mac) another(t *testing.T, than int64) int64 {
	t.Helper()
	var pid int64
	poll(t, func() error {
		s := m.reports.status()
		if condition(s, v1alpha1.ConditionServing) != "True/Serving" || s.Assignments[0].PID == than || s.Assignments[0].PID == 0 {
			return fmt.Errorf("no other process serves: %+v", s.Assignments)
		}
		pid = s.Assignments[0].PID
		return nil
	})
	return pid
}

// unload takes the engine away and brings it back.
func (m *mac) unload(t *testing.T, generation int64, a v1alpha1.Assignment, pid int64) int64 {
	t.Helper()
	a.Desired = v1alpha1.DesiredDownloaded
	m.orders.next <- ordersOf(generation, a)
	poll(t, func() error {
		if alive(pid) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
	a.Desired = v1alpha1.DesiredRunning
	m.orders.next <- ordersOf(generation+1, a)
	return m.another(t, pid)
}

// Asked again, the engine restores tokens from disk and gives the same answer.
func TestCachedPromptSurvivesUnloadCrashAndAgentRestart(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	m.boot()
	a := m.caching()
	m.orders.next <- ordersOf(1, a)
	pid := m.another(t, 0)
	first := m.computed(t, "The first")
	pid = m.unload(t, 2, a, pid)
	m.restored(t, "after an unload", "The first", first)

	second := m.computed(t, "Another")
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pid = m.another(t, pid)
	m.restored(t, "after the engine was killed", "The first", first)
	m.restored(t, "after the engine was killed", "Another", second)

	m.halt()
	m.boot()
	m.orders.next <- ordersOf(4, a)
	if now := m.another(t, 0); now != pid {
		t.Errorf("process %d was not adopted, %d serves", pid, now)
	}
	third := m.computed(t, "What comes")
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pid = m.another(t, pid)
	m.restored(t, "after the agent ended and its engine was killed", "Another", second)
	m.restored(t, "after the agent ended and its engine was killed", "What comes", third)

	for _, at := range m.blocks(t) {
		flip(t, at)
	}
	m.unload(t, 5, a, pid)
	if text, cached := m.generate(t, "Another"); cached != 0 || text != second {
		t.Errorf("of damaged blocks %d tokens were restored and %q is the answer, which was %q", cached, text, second)
	}
	poll(t, func() error {
		if s := m.books(t); s.Blocks.Damaged == 0 || s.Blocks.Accepted != s.Blocks.Persisted+s.Blocks.Queued+s.Blocks.DroppedTotal()+s.Blocks.Failed {
			return fmt.Errorf("%+v", s.Blocks)
		}
		return nil
	})
	poll(t, func() error {
		if c := m.reports.status().Disk.Cache; c.Bytes == 0 || c.LimitBytes == 0 || c.WrittenBytes == 0 || c.Hits == 0 || c.Message != "" {
			return fmt.Errorf("reported is %+v", c)
		}
		return nil
	})
}

// blocks are the paths of all files of the cache.
func (m *mac) blocks(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.state, "kv", "*", "*", "?", "*.kv"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%v, %v", paths, err)
	}
	return paths
}

// flip damages the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAFailingDiskMakesPromptsSlowerAndNothingWrong: a folder that cannot be
// opened, and a disk with no room.
func TestAFailingDiskMakesPromptsSlowerAndNothingWrong(t *testing.T) {
	answers := map[string]string{}
	for name, prepare := range map[string]func(*mac){
		"a disk with room": func(*mac) {},
		"no room":          func(m *mac) { m.cache.Budget.LimitBytes = 1 },
		"a folder that is a file": func(m *mac) {
			if err := os.WriteFile(m.cache.Dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newCachingMac(t, 64<<20)
			prepare(m)
			m.boot()
			m.orders.next <- ordersOf(1, m.caching())
			pid := m.another(t, 0)
			answers[name], _ = m.generate(t, "The first")
			m.unload(t, 2, m.caching(), pid)
			text, cached := m.generate(t, "The first")
			if text != answers[name] || name != "a disk with room" && cached != 0 {
				t.Errorf("%d tokens were restored and %q is the answer, which was %q", cached, text, answers[name])
			}
			if name == "a folder that is a file" {
				poll(t, func() error {
					if c := m.agent.cache.status(); !strings.Contains(c.Message, m.cache.Dir) {
						return fmt.Errorf("reported is %+v", c)
					}
					return nil
				})
			}
		})
	}
	for name, text := range answers {
		if text != answers["no room"] {
			t.Errorf("%s: %q, want %q", name, text, answers["no room"])
		}
	}
}

// TestAMacWithoutACacheReportsNone, and gives no lease.
func TestAMacWithoutACacheReportsNone(t *testing.T) {
	var c *diskCache
	if s := c.status(); s != (v1alpha1.MacCache{}) {
		t.Errorf("%+v", s)
	}
	c = &diskCache{options: cold.Options{FS: disk.OS{}, Dir: t.TempDir()}, log: logr.Discard(), metrics: prometheus.NewRegistry()}
	if l, err := c.lease(kv.Origin{Model: "m"}, nil); err != errNoCache || l != nil {
		t.Errorf("%v, %v", l, err)
	}
}

// Blocks also stay for a grace period, and while an assignment that cannot be
// parsed might need them.
func TestCacheBlocksAreKeptWhileTheirModelIsAssigned(t *testing.T) {
	of := func(digests ...string) *journal.Desired {
		o := &journal.Desired{}
		for _, d := range digests {
			o.Assignments = append(o.Assignments, v1alpha1.Assignment{Namespace: "team", Model: model.Record{Digest: d}})
		}
		return o
	}
	key := func(digest string) string { return wire.Config{Namespace: "team", ModelDigest: digest}.CacheModel() }
	now := time.Now()
	ordered := found(&cold.Snapshot{Namespaces: []cold.Namespace{{Model: key("b")}, {}}}, now.Add(time.Minute-keptFor))
	for _, step := range []struct {
		after  time.Duration
		orders *journal.Desired
		want   []string
		known  bool
	}{
		{after: 0, orders: of("a", "b"), want: []string{"a", "b"}, known: true},
		{after: time.Minute, orders: of("a", "c"), want: []string{"a", "b", "c"}, known: true},
		{after: time.Minute, orders: of("a"), want: []string{"a", "b", "c"}, known: true},
		{after: keptFor - time.Second, orders: of("a"), want: []string{"a", "b", "c"}, known: true},
		{after: keptFor, orders: of("a"), want: []string{"a", "c"}, known: true},
		{after: keptFor + time.Minute, orders: of("a"), want: []string{"a"}, known: true},
		{after: 3 * keptFor, orders: &journal.Desired{Invalid: []journal.InvalidAssignment{{}}}, want: nil, known: false},
	} {
		models, known := wanted(ordered, step.orders, now.Add(step.after))
		want := map[string]bool{}
		for _, d := range step.want {
			want[key(d)] = true
		}
		if known != step.known || !reflect.DeepEqual(models, want) {
			t.Errorf("after %s: %v, %v, want %v", step.after, models, known, want)
		}
	}
	adapted := of("a")
	adapted.Assignments[0].Model.Adapters, adapted.Assignments[0].ChatTemplate = []model.Adapter{{Digest: "y"}, {Digest: "x"}}, "t"
	want := wire.Config{Namespace: "team", ModelDigest: "a", ChatTemplate: "t", Adapters: []wire.Adapter{{Digest: "x"}, {Digest: "y"}}}.CacheModel()
	if models, _ := wanted(map[string]time.Time{}, adapted, now); len(models) != 1 || !models[want] {
		t.Errorf("with adapters and a chat template: %v", models)
	}
}
