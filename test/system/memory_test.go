//go:build stories

package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// longAnswer is long enough for an answer of slow.gguf to outlive an eviction.
	longAnswer = 1500
	// longDrain is far more than any drain without a hold takes.
	longDrain = 300
)

// Words in the names of model files that make the engine do more than start.
const (
	// leakyWord: the engine leaks leakBytes with each step.
	leakyWord = "leaky"
	// doomedWord: the process stops itself before it loads anything.
	doomedWord = "doomed"
	leakBytes  = 1 << 20
)

// memoryEngine starts the engine, as the agent does, with what a model's name asks
// for. The process stays the same, so the agent sees the real one.
const memoryEngine = `#!/bin/bash
config=
for a; do [ "$last" = --config ] && config=$a; last=$a; done
case $(cat "$config") in
  *%[2]s*) exec "%[1]s" "$@" --test-leak=%[3]d ;;
  *%[4]s*) kill -STOP $$ ;;
esac
exec "%[1]s" "$@"
`

// memoryMac is a Mac for a story of memory. What an engine that does not answer is
// waited for takes minutes by default.
func memoryMac(t *testing.T, name string) fleet.Mac {
	t.Helper()
	script := filepath.Join(scratchFolder(t), "engine.sh")
	text := fmt.Sprintf(memoryEngine, absolute(t, "bin", "engine"), leakyWord, leakBytes, doomedWord)
	must(t, os.WriteFile(script, []byte(text), 0o755))
	return fleet.Mac{Name: name, Chip: "M1Max", Memory: "64Gi", Flags: []string{"--cache-free=0", "--engine=" + script},
		Env: []string{"METALFLEET_TEST=1", "METALFLEET_TEST_TIMING=stop=6s,term=2s,silence=12s"}}
}

// wantClean wants engines to have ended on request.
func wantClean(t *testing.T, all ...v1alpha1.Reclaim) {
	t.Helper()
	for _, r := range all {
		if r.Exit != v1alpha1.ExitClean {
			t.Errorf("reclaim %s: exit %s, want %s", r.ID, r.Exit, v1alpha1.ExitClean)
		}
	}
}

// gone wants an engine's end reported once, and returns it.
func (w *world) reclaimed(t *testing.T, r fleet.Resident) (last v1alpha1.Reclaim) {
	t.Helper()
	id := fmt.Sprintf("%s/%d/", r.Replica.UID, r.Replica.Spec.Epoch)
	w.waitMac(t, r.Replica.Spec.NodeName, fmt.Sprintf("the end of process %d is reported", r.Engine.PID), func(node *v1alpha1.MacNode) error {
		found := 0
		for _, c := range node.Status.Reclaims {
			if strings.HasPrefix(c.ID, id) {
				last = c
				found++
			}
		}
		if found != 1 {
			return fmt.Errorf("%d reclaims of %s", found, r.Replica.Name)
		}
		return nil
	})
	if r.Engine.Alive() {
		t.Errorf("process %d lives", r.Engine.PID)
	}
	return last
}

// settled wants a Mac to hold that many engines, with a ledger that matches them.
func (w *world) settled(t *testing.T, mac string, engines int) {
	t.Helper()
	eventually(t, fmt.Sprintf("Mac %s holds %d engines", mac, engines), func(ctx context.Context) error {
		all, err := w.Agent(mac).Engines()
		if err != nil {
			return err
		}
		if len(all) != engines {
			return fmt.Errorf("%d engines: %v", len(all), all)
		}
		if engines > 0 {
			return w.CheckLedger(ctx, mac)
		}
		return w.CheckEmpty(ctx, mac)
	})
}

// unassigned wants a Mac of which every model was deleted to have no assignment
// left, and to report none.
func (w *world) unassigned(t *testing.T, mac string) {
	t.Helper()
	w.waitMac(t, mac, mac+" has no assignment", func(node *v1alpha1.MacNode) error {
		var assigned v1alpha1.MacAssignment
		if err := w.Client.Get(t.Context(), client.ObjectKey{Name: mac}, &assigned); err != nil {
			return err
		}
		if len(assigned.Spec.Assignments)+len(node.Status.Assignments) > 0 {
			return fmt.Errorf("assignments %+v; it reports %+v", assigned.Spec.Assignments, node.Status.Assignments)
		}
		return nil
	})
}

// noHold deletes a model that may drain for longDrain and wants it gone long
// before: a drain waits for holds, and there must be none.
func (w *world) noHold(t *testing.T, name string) v1alpha1.Reclaim {
	t.Helper()
	r, err := w.Resident(t.Context(), name)
	must(t, err)
	began := time.Now()
	must(t, w.Undeploy(t.Context(), name))
	if took := time.Since(began); took > longDrain*time.Second/2 {
		t.Errorf("the drain of %s took %s: a hold was left", name, took)
	}
	last := w.reclaimed(t, r)
	wantClean(t, last)
	return last
}

// wantComplete wants a stream to end undisturbed, with the same text as another.
func wantComplete(t *testing.T, s *fleet.Stream, text string) string {
	t.Helper()
	answer, err := end(t, s)
	if err != nil || answer.Finish != "length" {
		t.Fatalf("the undisturbed stream ended with %q: %v", answer.Finish, err)
	}
	if text != "" && answer.Text != text {
		t.Error("the undisturbed stream has another text than without a disturbance")
	}
	return answer.Text
}

// TestMemoryPressureEvictsTheRightEngine: of three idle engines and one that
// answers, pressure evicts the least recently used that alone covers the shortage.
func TestMemoryPressureEvictsTheRightEngine(t *testing.T) {
	w := together(t, memoryMac(t, "shelf"))
	takeTurn(t)
	w.model(t, fleet.Model{Name: "speaks", File: "slow.gguf", MaxTokens: slowContext, Mac: "shelf"})
	reference := wantComplete(t, w.stream(t, "speaks", longAnswer), "")
	engines := map[string]fleet.Resident{}
	for _, m := range []fleet.Model{{Name: "oldest-but-light", File: "tiny.gguf"}, {Name: "older", File: "heavier.gguf"}, {Name: "newest", File: "heavier.gguf"}} {
		m.OnDemand, m.DrainSeconds, m.Mac = true, longDrain, "shelf"
		w.model(t, m)
		engines[m.Name] = w.rouse(t, m.Name)
	}
	story := w.stream(t, "speaks", longAnswer)
	all, err := w.Agent("shelf").Engines()
	must(t, err)
	var use int64
	for _, e := range all {
		use += footprint(t, e)
	}
	light, heavy := footprint(t, engines["oldest-but-light"].Engine), footprint(t, engines["older"].Engine)
	// The ceiling is 2 % above the use, which is over the hard mark of 0.95: a tenth
	// of the use has to be freed, which is more than the light one holds.
	if use/10 < light {
		t.Fatalf("the light engine holds %d of %d bytes and would do", light, use)
	}
	must(t, w.SetCeiling(t.Context(), "shelf", use+use/50))
	last := w.reclaimed(t, engines["older"])
	wantClean(t, last)
	if last.FreedBytes == nil || !fleet.Near(*last.FreedBytes, heavy) {
		t.Errorf("it freed %s bytes, /proc showed %d: %+v", fleet.Bytes(last.FreedBytes), heavy, last)
	}
	wantComplete(t, story, reference)
	for _, name := range []string{"oldest-but-light", "newest"} {
		if !engines[name].Engine.Alive() {
			t.Errorf("%s was evicted, too", name)
		}
	}
	w.settled(t, "shelf", 3)
	eventually(t, "older reports that it does not fit", func(ctx context.Context) error {
		r, err := w.Replica(ctx, "older")
		if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionServing); err == nil && (c == nil || c.Reason != v1alpha1.ReasonInsufficientRoom) {
			err = errors.New(sentences(r.Status.Conditions))
		}
		return err
	})
	must(t, w.SetCeiling(t.Context(), "shelf", 0))
	w.rouse(t, "older") // it returns with the next request
	w.settled(t, "shelf", 4)
}

// TestMemoryLeakStopsTheEngineAlone: the Mac has memory enough, and the engine is
// over its own limit.
func TestMemoryLeakStopsTheEngineAlone(t *testing.T) {
	w := together(t, memoryMac(t, "pond"))
	takeTurn(t)
	w.model(t, fleet.Model{Name: "calm", File: "slow.gguf", MaxTokens: slowContext, Mac: "pond"})
	w.model(t, fleet.Model{Name: "leaks", File: leakyWord + ".gguf", OnDemand: true, MaxTokens: slowContext, DrainSeconds: longDrain, Mac: "pond"})
	leaks := w.rouse(t, "leaks")
	undisturbed := w.stream(t, "calm", longAnswer)
	refusal := broken(t, w.stream(t, "leaks", slowContext-200))
	t.Logf("its client got %s: %s", refusal.Code, refusal.Message)
	last := w.reclaimed(t, leaks)
	if last.Reason != v1alpha1.ReclaimOverLimit {
		t.Errorf("its end: %+v", last)
	}
	if limit := leaks.Report.Memory.LimitBytes; last.FreedBytes == nil || *last.FreedBytes < limit {
		t.Errorf("it freed %s bytes, its limit was %d: it was stopped before it", fleet.Bytes(last.FreedBytes), limit)
	}
	wantComplete(t, undisturbed, "")
	w.settled(t, "pond", 1)
	eventually(t, "its replica reports why it ended", func(ctx context.Context) error {
		r, err := w.Replica(ctx, "leaks")
		if err == nil && r.Status.Freed.Reason != v1alpha1.ReclaimOverLimit {
			err = fmt.Errorf("freed: %+v; %s", r.Status.Freed, sentences(r.Status.Conditions))
		}
		return err
	})
	if c := w.node(t, "pond").Status.Conditions; meta.IsStatusConditionTrue(c, v1alpha1.ConditionMemoryPressure) {
		t.Errorf("the Mac reports memory pressure: %s", sentences(c))
	}
}

// TestMemoryOfEnginesThatEndBadlyIsFreed has engines end in every bad way, one
// after the other on one Mac.
func TestMemoryOfEnginesThatEndBadlyIsFreed(t *testing.T) {
	w := ward{world: together(t, memoryMac(t, "ward"))}
	takeTurn(t)
	sequence(t, step{name: "killed while it answers", do: w.killed}, step{name: "stopped while it answers", do: w.stopped},
		step{name: "deaf to Shutdown", do: w.deaf}, step{name: "dies while loading", do: w.diesLoading})
	w.unassigned(t, "ward")
}

// ward is the world of engines that end badly.
type ward struct{ *world }

// loaded deploys a model and loads it.
func (w ward) loaded(t *testing.T, name string) fleet.Resident {
	t.Helper()
	w.model(t, fleet.Model{Name: name, File: "slow.gguf", OnDemand: true, MaxTokens: slowContext, DrainSeconds: 1, Mac: "ward"})
	return w.rouse(t, name)
}

func (w ward) killed(t *testing.T) {
	r := w.loaded(t, "killed")
	story := w.stream(t, "killed", slowContext-200)
	must(t, syscall.Kill(r.Engine.PID, syscall.SIGKILL))
	broken(t, story)
	last := w.reclaimed(t, r)
	if last.Reason != v1alpha1.ReclaimCrashed || last.Exit != v1alpha1.ExitCrashed || last.FreedBytes == nil || *last.FreedBytes <= 0 {
		t.Errorf("its end: %+v", last)
	}
	w.settled(t, "ward", 0)
}

// stopped: the process lives and does not answer.
func (w ward) stopped(t *testing.T) {
	r := w.loaded(t, "stopped")
	story := w.stream(t, "stopped", slowContext-200)
	must(t, syscall.Kill(r.Engine.PID, syscall.SIGSTOP))
	broken(t, story)
	if last := w.reclaimed(t, r); last.Exit != v1alpha1.ExitKilled || last.Reason != v1alpha1.ReclaimCrashed {
		t.Errorf("its end: %+v", last)
	}
	w.settled(t, "ward", 0)
}

// deaf: an idle engine has to end, and neither Shutdown nor SIGTERM reaches it,
// only SIGKILL.
func (w ward) deaf(t *testing.T) {
	r := w.loaded(t, "deaf")
	held := footprint(t, r.Engine)
	must(t, syscall.Kill(r.Engine.PID, syscall.SIGSTOP))
	must(t, w.Undeploy(t.Context(), "deaf"))
	last := w.reclaimed(t, r)
	if last.Exit != v1alpha1.ExitKilled || last.Reason != v1alpha1.ReclaimDrained && last.Reason != v1alpha1.ReclaimUnassigned {
		t.Errorf("its end: %+v", last)
	}
	if last.FreedBytes == nil || !fleet.Near(*last.FreedBytes, held) {
		t.Errorf("it freed %s bytes, /proc showed %d", fleet.Bytes(last.FreedBytes), held)
	}
	w.settled(t, "ward", 0)
}

// diesLoading: the process started and is killed before it answers.
func (w ward) diesLoading(t *testing.T) {
	w.model(t, fleet.Model{Name: "doomed", File: doomedWord + ".gguf", OnDemand: true, DrainSeconds: 1, Mac: "ward"})
	refused := make(chan error, 1)
	go func() {
		_, err := fleet.Ask(t.Context(), w.URL, fleet.Question{Model: "doomed", Text: "Hello", MaxTokens: 8, Patience: 20 * time.Second})
		refused <- err
	}()
	var pid int
	eventually(t, "its process has started and stopped itself", func(ctx context.Context) error {
		replica, err := w.Replica(ctx, "doomed")
		if err != nil {
			return err
		}
		for _, a := range w.node(t, "ward").Status.Assignments {
			if a.ReplicaUID == string(replica.UID) {
				pid = int(a.PID)
			}
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, state, _ := strings.Cut(string(stat), ") "); pid == 0 || err == nil && !strings.HasPrefix(state, "T") {
			err = fmt.Errorf("process %d: %q", pid, stat)
		}
		return err
	})
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	if err := <-refused; err == nil {
		t.Error("the request was answered")
	} else {
		t.Log("its client got:", err)
	}
	w.waitMac(t, "ward", "the Mac reports the load that failed", func(node *v1alpha1.MacNode) error {
		for _, c := range node.Status.Reclaims {
			if c.Reason == v1alpha1.ReclaimLoadFailed && strings.HasPrefix(c.Name, "doomed") {
				return nil
			}
		}
		return fmt.Errorf("it reports %+v", node.Status.Reclaims)
	})
	w.settled(t, "ward", 0)
}

// TestMemoryHoldsOfBadClientsEnd: after each client no hold is left, which a drain
// that may take long shows by being short.
func TestMemoryHoldsOfBadClientsEnd(t *testing.T) {
	w := street{world: together(t, memoryMac(t, "street"))}
	takeTurn(t)
	t.Run("at once", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"one never reads": w.neverReads, "one hangs up": w.hangsUp, "one cancels a download": w.cancelsADownload,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	w.settled(t, "street", 0)
	w.unassigned(t, "street")
}

// street is the world of bad clients.
type street struct{ *world }

// hangsUp: a client leaves in the middle of an answer.
func (w street) hangsUp(t *testing.T) {
	w.model(t, fleet.Model{Name: "deserted", File: "slow.gguf", MaxTokens: slowContext, DrainSeconds: longDrain, Mac: "street"})
	for range 3 { // one after the other
		story := w.stream(t, "deserted", slowContext-200)
		story.Leave()
		<-story.Ended
	}
	if last := w.noHold(t, "deserted"); last.Reason != v1alpha1.ReclaimDrained {
		t.Errorf("its end: %+v", last)
	}
}

// longName is in every event of a stream, with probabilities of other tokens, so that
// sockets are full sooner.
var longName = "unheard-" + strings.Repeat("and-unheard-", 10)[:119]

// neverReads: a client opens a stream and reads nothing of it. The gateway gives
// the stream up, and with it the hold.
func (w street) neverReads(t *testing.T) {
	w.model(t, fleet.Model{Name: "unheard", File: "nimble.gguf", Served: longName, MaxTokens: nimbleContext, MaxConcurrentRequests: 1, DrainSeconds: longDrain, Mac: "street"})
	conn := w.openAndNeverRead(t, longName, nimbleContext-300)
	defer conn.Close()
	r, err := w.Resident(t.Context(), "unheard")
	must(t, err)
	// With one sequence at a time, another request is answered only once the first
	// one has ended.
	_, err = w.Rouse(t.Context(), "unheard", 2*patience)
	must(t, err)
	if !r.Engine.Alive() {
		t.Error("the engine ended")
	}
	w.noHold(t, "unheard")
}

// openAndNeverRead sends a request for a long stream over a connection whose
// buffer is as small as the system allows, and reads nothing of the answer.
func (w street) openAndNeverRead(t *testing.T, model string, tokens int) net.Conn {
	t.Helper()
	gateway, err := url.Parse(w.URL)
	must(t, err)
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
		return errors.Join(err, failed)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", gateway.Host)
	must(t, err)
	body := fmt.Sprintf(`{"model":%q,"stream":true,"temperature":0,"max_tokens":%d,"logprobs":true,"top_logprobs":20,"messages":[{"role":"user","content":"Go on"}]}`, model, tokens)
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", gateway.Host, len(body), body)
	must(t, err)
	must(t, readable(conn))
	return conn
}

// readable waits until there is something to read, and leaves it there.
func readable(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		if err == syscall.EAGAIN {
			return false
		}
		if failed = err; err == nil && n == 0 {
			failed = io.ErrUnexpectedEOF
		}
		return true
	})
	return errors.Join(err, failed)
}

// cancelsADownload: a partial download is removed with the deployment that wanted
// it.
func (w street) cancelsADownload(t *testing.T) {
	c := tinymodel.Large(heavyBytes)
	c.Seed = 11 // content that no model root has
	server := newWebModel(t, c)
	closed := make(chan struct{})
	t.Cleanup(func() { close(closed) }) // before the server's own
	server.interrupt = func(r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-closed:
		}
		panic(http.ErrAbortHandler)
	}
	md := fleet.Model{Name: "unfinished", OnDemand: true, Mac: "street"}.Deployment()
	md.Spec.Model = v1alpha1.ModelSource{Source: server.url, SHA256: server.sha256}
	must(t, w.Client.Create(t.Context(), md))
	store := filepath.Join(w.Dir(), "street", "weights")
	eventually(t, "a part of it is on the disk", func(ctx context.Context) error {
		now, err := w.read(ctx, md)
		if err != nil {
			return err
		}
		n, err := bytesIn(store)
		if err == nil && n < server.breakAt/2 {
			err = fmt.Errorf("%d bytes; %s", n, sentences(now.Status.Conditions))
		}
		return err
	})
	if r := w.replicas(t, md, 1)[0]; meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionDownloaded) {
		t.Error("the replica counts as downloaded")
	}
	must(t, w.Undeploy(t.Context(), "unfinished"))
	eventually(t, "nothing of it is left on the disk", func(context.Context) error {
		n, err := bytesIn(store)
		if err == nil && n > server.breakAt/10 {
			err = fmt.Errorf("%d bytes are left", n)
		}
		return err
	})
}

// bytesIn adds up the files in a folder.
func bytesIn(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum, err
}
