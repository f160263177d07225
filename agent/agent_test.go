package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/agent/inspect"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// childVariable makes the test program play a whole agent, for a test that
// kills it; its value is the state folder.
const childVariable = "METALFLEET_TEST_AGENT"

// engineProgram is the real engine, built once for all tests.
var engineProgram string

func TestMain(m *testing.M) {
	for variable, play := range map[string]func(string) error{childVariable: playAgent, knockVariable: playKnock} {
		if what := os.Getenv(variable); what != "" {
			if err := play(what); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mf-agent-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	engineProgram = filepath.Join(dir, "engine")
	build := exec.Command("go", "build", "-trimpath", "-o", engineProgram, "metalfleet.dev/metalfleet/cmd/engine")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the engine: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// mac is one agent under test, with its links in memory.
type mac struct {
	t         *testing.T
	name      string // m1 where none is said
	state     string
	root      string
	authority *agentapitest.CA
	record    model.Record
	// hub and sources are where hf:// sources lie and how they are reached; log
	// takes what the agent says, that of the test without one.
	hub     string
	sources download.Policy
	log     logr.Logger

	// launched describes the agent's launcher; nil: it has none.
	launched *upgrade.Launched
	// cache on disk; nil: none.
	cache *cold.Options
	// offered is how many blocks the engines of this agent have offered to the cache.
	offered int64
	// asked are the prompts of granted: one that was asked before may be on the disk in part.
	asked int
	power func(context.Context, func(power.Notice)) error
	// logDebug changes the log level of the agent; may be nil.
	logDebug func(bool)
	byFlag   v1alpha1.AgentSettings

	agent   *Agent
	orders  *memoryOrders
	reports *memoryReports
	stop    context.CancelFunc
	ended   chan error
}

// memoryOrders are orders that a test gives.
type memoryOrders struct{ next chan journal.Desired }

func (o *memoryOrders) Run(ctx context.Context, deliver func(journal.Desired)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-o.next:
			deliver(next)
		}
	}
}

// memoryReports keeps the last status.
type memoryReports struct {
	mu   sync.Mutex
	last *v1alpha1.MacNodeStatus
	said *v1alpha1.MacNodeStatus // by Last
}

func (r *memoryReports) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (r *memoryReports) Again()                        {}
func (r *memoryReports) Offer(s *v1alpha1.MacNodeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = s
}
func (r *memoryReports) Last(_ context.Context, s *v1alpha1.MacNodeStatus) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = s
	return nil
}
func (r *memoryReports) status() v1alpha1.MacNodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return v1alpha1.MacNodeStatus{}
	}
	return *r.last
}

// still is a heartbeat or an identity that does nothing of its own.
type still struct{ *identity.Identity }

func (still) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (still) Await(context.Context) error { return nil }

func newMac(t *testing.T, size tinymodel.Config) *mac {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mf-mac-")
	if err != nil {
		t.Fatal(err)
	}
	m := &mac{t: t, state: filepath.Join(dir, "state"), root: filepath.Join(dir, "models")}
	t.Cleanup(func() {
		killEngines(m.state)
		_ = os.RemoveAll(dir)
	})
	for _, d := range []string{m.state, m.root} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := tinymodel.Write(filepath.Join(m.root, "tiny.gguf"), size); err != nil {
		t.Fatal(err)
	}
	m.record = inspected(t, m.root, "file://tiny.gguf")
	m.authority = agentapitest.NewCA(t)
	return m
}

// inspected makes a record as a Mac does.
func inspected(t *testing.T, root, source string) model.Record {
	t.Helper()
	r, err := store.OpenRoot(root, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	record, err := (&inspect.Resolver{Root: r}).Resolve(t.Context(), v1alpha1.Inspection{Source: source, SHA256: ""})
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// killEngines ends what a test left behind.
func killEngines(state string) {
	j, err := journal.Open(state, time.Now())
	if err != nil {
		return
	}
	for _, e := range j.Snapshot().Engines {
		if s, err := probe.NewSystem().StartTime(e.PID); err == nil && s == e.StartTime {
			_ = syscall.Kill(e.PID, syscall.SIGKILL)
		}
	}
}

// boot starts an agent in this process.
func (m *mac) boot() {
	m.t.Helper()
	id, err := identity.Open(m.state, m.called(), logr.Discard())
	if err != nil {
		m.t.Fatal(err)
	}
	m.orders, m.reports, m.offered = &memoryOrders{next: make(chan journal.Desired)}, &memoryReports{}, 0
	m.agent, err = New(m.config(testr.New(m.t), Links{Desired: m.orders, Reports: m.reports, Identity: still{id}, Heartbeat: still{}}))
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a, ended := m.agent, make(chan error, 1)
	m.stop, m.ended = stop, ended
	go func() { ended <- errors.Join(a.Run(ctx), a.Close()) }()
	m.t.Cleanup(func() { m.halt() })
}

func (m *mac) called() string { return cmp.Or(m.name, "m1") }

func (m *mac) config(log logr.Logger, links Links) Config {
	if !m.log.IsZero() {
		log = m.log
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	return Config{
		Log: log, Name: m.called(), Version: "test", BootID: NewBootID(), StateDir: m.state, ModelRoot: m.root,
		Engine: engineProgram, EngineEnv: os.Environ(), Listener: l, Links: links, HubEndpoint: m.hub, Sources: m.sources,
		Address: v1alpha1.MacAddress{Host: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port)},
		Probe:   probe.NewDeclared(probe.Declaration{Chip: "M2Ultra", Memory: 192 << 30}, probe.NewSystem()),
		Timing:  pool.Timing{Poll: 50 * time.Millisecond}, Launched: m.launched, Cache: m.cache, Power: m.power, LogDebug: m.logDebug, ByFlag: m.byFlag,
		GivesAtOnce: 1, PeerPace: peer.Pace{Look: 10 * time.Millisecond, Begin: time.Minute},
	}
}

// halt ends the agent as its supervisor would.
func (m *mac) halt() {
	m.stop()
	if err, first := <-m.ended; first {
		close(m.ended)
		if err != nil {
			m.t.Errorf("the agent ended with %v", err)
		}
	}
}

func (m *mac) assignment() v1alpha1.Assignment {
	return v1alpha1.Assignment{
		ReplicaUID: "u1", Epoch: 1, Namespace: "default", Name: "tiny-1", ServedNames: []string{"default/tiny", "tiny"}, Model: m.record,
		Context: v1alpha1.ContextLimits{MaxTokens: 256, MaxConcurrentRequests: 2, KVCacheTokens: 512}, ReservedBytes: 256 << 20, DrainSeconds: 30,
		Desired: v1alpha1.DesiredRunning,
	}
}

func ordersOf(generation int64, a ...v1alpha1.Assignment) journal.Desired {
	return journal.Desired{UID: "mac", Generation: generation, Assignments: a}
}

func condition(s v1alpha1.MacNodeStatus, kind string) string {
	if len(s.Assignments) == 1 {
		for _, c := range s.Assignments[0].Conditions {
			if c.Type == kind {
				return string(c.Status) + "/" + c.Reason
			}
		}
	}
	return ""
}

// waitFor polls the status that was reported last.
func (m *mac) waitFor(kind, want string) v1alpha1.MacNodeStatus {
	m.t.Helper()
	var s v1alpha1.MacNodeStatus
	poll(m.t, func() error {
		if s = m.reports.status(); condition(s, kind) != want {
			return fmt.Errorf("%s is %q, want %q: %+v", kind, condition(s, kind), want, s.Assignments)
		}
		return nil
	})
	return s
}

func poll(t *testing.T, ok func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience.Of(t)); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func alive(pid int64) bool {
	_, err := probe.NewSystem().StartTime(int(pid))
	return err == nil
}

// procFootprint reads what a person would read.
func procFootprint(t *testing.T, pid int64) (sum int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		for _, name := range []string{"Pss_Anon:", "Pss_Shmem:", "SwapPss:"} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				var kib int64
				if _, err := fmt.Sscan(rest, &kib); err != nil {
					t.Fatal(err)
				}
				sum += kib << 10
			}
		}
	}
	return sum
}

func TestOneOrderIsServedMeasuredAndFreed(t *testing.T) {
	m := newMac(t, tinymodel.Config{Hidden: 512, FeedForward: 2048, Layers: 8, Vocabulary: 4096})
	m.giveIdentity()
	m.boot()
	a := m.assignment()
	m.orders.next <- ordersOf(1, a)
	s := m.waitFor(v1alpha1.ConditionServing, "True/Serving")
	one := s.Assignments[0]
	if one.Memory.FootprintBytes < m.record.Facts.WeightBytes || !s.Simulated || s.Chip != "M2Ultra" || s.Backend != "ref" || s.ObservedGeneration != 1 || s.Address.Port == 0 {
		t.Errorf("%+v", s)
	}
	if answer := m.ask(t, "tiny", nil); !strings.Contains(answer, `"finish_reason"`) {
		t.Errorf("answer %s", answer)
	}
	held := procFootprint(t, one.PID)
	a.Desired = v1alpha1.DesiredDrained
	m.orders.next <- ordersOf(2, a)
	s = m.waitFor(v1alpha1.ConditionReleased, "True/Released")
	freed := s.Assignments[0].Freed
	if freed.Bytes == nil || *freed.Bytes < held*95/100 || *freed.Bytes > held*105/100 || *freed.Bytes < m.record.Facts.WeightBytes || alive(one.PID) {
		t.Errorf("freed %+v, /proc said %d, weights %d, alive %v", freed, held, m.record.Facts.WeightBytes, alive(one.PID))
	}
	if len(s.Reclaims) != 1 || s.Reclaims[0].Exit != v1alpha1.ExitClean || s.Reclaims[0].HostCheck != v1alpha1.HostCheckVerified || s.Memory.FreedBytesTotal != *freed.Bytes || s.Memory.ReservedBytes != 0 || s.Summary.Freed == "0" {
		t.Errorf("%+v", s)
	}
}

func (m *mac) giveIdentity() {
	m.t.Helper()
	pem := m.authority.Mac(m.called())
	b, err := json.Marshal(map[string][]byte{"certificate": pem.Certificate, "key": pem.Key, "authority": pem.CA})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.state, "identity.json"), b, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// ask sends a question as a gateway does.
func (m *mac) ask(t *testing.T, name string, header http.Header) string {
	t.Helper()
	return m.say(t, name, "hello", header)
}

// say sends words.
func (m *mac) say(t *testing.T, name, words string, header http.Header) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{
		TLSClientConfig: agentapi.ClientTLS(m.authority.Gateway().Pair(t), m.authority.Roots(), "m1"), ForceAttemptHTTP2: true,
	}}
	defer c.CloseIdleConnections()
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":8,"temperature":0}`, name, words)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+m.agent.Listener.Addr().String()+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s (%v)", resp.Status, b, err)
	}
	return string(b)
}

func TestThePoolPassesThePortsSuite(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	good, bad := m.assignment(), m.assignment()
	bad.ReplicaUID, bad.ServedNames, bad.ReservedBytes = "u2", []string{"huge"}, 1<<50
	m.orders.next <- ordersOf(1, good, bad)
	e := engines{m.agent.pool}
	poll(t, func() error {
		h, err := e.Acquire(t.Context(), serve.Target{ReplicaUID: "u1", Epoch: 1})
		if err == nil {
			h.Release()
		}
		return err
	})
	servetest.Run(t, servetest.Subject{
		Engines: e, Model: "default/tiny", Ready: serve.Target{ReplicaUID: "u1", Epoch: 1}, NotReady: serve.Target{ReplicaUID: "u2", Epoch: 1},
		Request: func() *wire.GenerateRequest {
			return &wire.GenerateRequest{Id: "r", Input: &wire.GenerateRequest_Prompt{Prompt: "hello there"}, MaxTokens: 100}
		},
	})
}

func TestTwoAgentsNeverShareAStateFolder(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	c := m.config(logr.Discard(), Links{})
	defer c.Listener.Close()
	if _, err := New(c); !errors.Is(err, ErrRunning) {
		t.Errorf("got %v, want ErrRunning", err)
	}
}

func TestAStoppedAgentSaysSoAndItsEnginesLive(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	m.orders.next <- ordersOf(1, m.assignment())
	pid := m.waitFor(v1alpha1.ConditionServing, "True/Serving").Assignments[0].PID
	said := m.reports
	m.halt()
	if said.said == nil || !meta.IsStatusConditionFalse(said.said.Conditions, v1alpha1.ConditionAccepting) {
		t.Errorf("last words %+v", said.said)
	}
	if !alive(pid) {
		t.Fatal("the engine ended with its agent")
	}
	m.boot() // no order is read: the remembered ones hold
	if again := m.waitFor(v1alpha1.ConditionServing, "True/Serving").Assignments[0].PID; again != pid {
		t.Errorf("pid %d, was %d", again, pid)
	}
}

// playAgent is an agent in a process of its own: orders come from a file that
// is there before it starts, the status goes to a file.
func playAgent(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "orders"))
	if err != nil {
		return err
	}
	var o journal.Desired
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	engineProgram = os.Getenv("METALFLEET_TEST_ENGINE")
	id, err := identity.Open(dir, "m1", logr.Discard())
	if err != nil {
		return err
	}
	orders := &memoryOrders{next: make(chan journal.Desired, 1)}
	orders.next <- o
	m := &mac{state: dir, root: os.Getenv("METALFLEET_TEST_ROOT")}
	a, err := New(m.config(logr.Discard(), Links{Desired: orders, Reports: &fileReports{path: filepath.Join(dir, "status")}, Identity: still{id}, Heartbeat: still{}}))
	if err != nil {
		return err
	}
	return a.Run(context.Background())
}

// fileReports writes each status to a file.
type fileReports struct {
	memoryReports
	path string
}

func (r *fileReports) Offer(s *v1alpha1.MacNodeStatus) {
	b, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(r.path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(r.path+".new", r.path)
	}
	if err != nil {
		panic(err)
	}
}

// TestAKilledAgentsEnginesAreAdopted: SIGKILL to the agent's process, and the
// next one serves with the same engine.
func TestAKilledAgentsEnginesAreAdopted(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	b, err := json.Marshal(ordersOf(1, m.assignment()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.state, "orders"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	first := m.spawnAgent()
	before := m.waitFile(first.boot)
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	pid := before.Assignments[0].PID
	if !alive(pid) {
		t.Fatal("the engine died with its agent")
	}
	began := time.Now()
	second := m.spawnAgent()
	after := m.waitFile(before.BootID)
	if after.Assignments[0].PID != pid || len(after.Reclaims) != 0 || after.Assignments[0].Restarts != 0 {
		t.Errorf("adopted pid %d (was %d): %+v", after.Assignments[0].PID, pid, after.Assignments[0])
	}
	t.Logf("it serves again after %v", time.Since(began))
	if err := second.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = second.cmd.Wait()
	// And one that ended while no agent looked is reclaimed, once.
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		if alive(pid) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
	m.spawnAgent()
	again := m.waitFile(after.BootID)
	if again.Assignments[0].PID == pid || len(again.Reclaims) != 1 || again.Reclaims[0].Exit != v1alpha1.ExitUnknown {
		t.Errorf("%+v", again)
	}
}

// spawned is an agent in a process of its own.
type spawned struct {
	cmd  *exec.Cmd
	boot string
}

func (m *mac) spawnAgent() spawned {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+m.state, "METALFLEET_TEST_ENGINE="+engineProgram, "METALFLEET_TEST_ROOT="+m.root)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return spawned{cmd: cmd}
}

// waitFile waits until an agent other than the one that booted as before
// reports that the replica is served.
func (m *mac) waitFile(before string) (s v1alpha1.MacNodeStatus) {
	m.t.Helper()
	poll(m.t, func() error {
		b, err := os.ReadFile(filepath.Join(m.state, "status"))
		if err != nil {
			return err
		}
		s = v1alpha1.MacNodeStatus{}
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if s.BootID == before || condition(s, v1alpha1.ConditionServing) != "True/Serving" {
			return fmt.Errorf("boot %s: %+v", s.BootID, s.Assignments)
		}
		return nil
	})
	return s
}
