package pool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// adopt takes over the engines that outlived an earlier agent and reclaims those
// that did not.
func (lc *lifecycle) adopt(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lc.Timing.Adopt)
	defer cancel()
	records := lc.Journal.Snapshot().Engines
	records = append(records, lc.strays(records)...)
	var known []engineFiles
	for _, r := range records {
		known = append(known, lc.files.named(strings.TrimSuffix(filepath.Base(r.Socket), ".sock")))
	}
	if err := lc.files.keepOnly(known); err != nil {
		lc.Log.Error(err, "Failed to remove what engines left in the folder of their sockets")
	}
	var wg sync.WaitGroup
	for _, r := range records {
		wg.Go(func() { lc.adoptOne(ctx, r) })
	}
	wg.Wait()
}

// adoptOne takes over one engine, or records that it is gone.
func (lc *lifecycle) adoptOne(ctx context.Context, r journal.Engine) {
	if r.PID == 0 && !lc.identify(ctx, &r) {
		lc.Log.Info("An engine was about to start but is not running", "ModelReplica", r.Namespace+"/"+r.Name, "load", r.Load)
		lc.files.engine(memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}, r.Load).remove()
		lc.recorder.record(func(s *journal.State) { s.DropEngine(r.ReplicaUID, r.Epoch, r.Load) }, nil)
		return
	}
	proc, err := lc.Engines.Adopt(lc.life, r.PID, r.StartTime)
	if err != nil {
		lc.missed(r)
		return
	}
	k := memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}
	firstStatus := make(chan struct{})
	g := &engine{
		key: k, load: r.Load, record: r, config: r.Config, files: lc.files.engine(k, r.Load),
		holds: map[*Hold]struct{}{}, firstStatus: firstStatus, loadBegan: time.Now(), progressAt: time.Now(),
	}
	g.child(proc)
	if r.LastUse != nil {
		g.lastUse = earlier(*r.LastUse, time.Now())
		g.lastUseKept = g.lastUse
	}
	if err := g.connect(lc.Engines, lc.unsent); err != nil {
		panic("pool: the address of a Unix socket is always valid: " + err.Error())
	}
	lc.ledger.Restore(k, r.Reserved)
	var e *entry
	lc.change(func() {
		e = lc.entry(k)
		e.engine, e.reserved, e.state, e.loads = g, true, Loading, max(e.loads, r.Load)
		e.released, e.refused = false, nil
	})
	lc.recordEngine(e, g)
	lc.Log.Info("Engine adopted", "ModelReplica", r.Namespace+"/"+r.Name, "load", r.Load, "pid", r.PID)
	if r.Stop != nil { // an agent before us began to end it: it is not ready again in between
		lc.unload(e, r.Stop.Reason, nil)
	}
	lc.supervise(e, g)
	select {
	case <-firstStatus:
	case <-proc.Done():
	case <-ctx.Done():
		lc.Log.Info("Adopted engine does not answer yet", "ModelReplica", r.Namespace+"/"+r.Name, "load", r.Load, "pid", r.PID)
	}
}

// missed reclaims an engine that ended while no agent ran. Its memory is known
// only if an agent measured it for a stop.
func (lc *lifecycle) missed(r journal.Engine) {
	now := time.Now()
	k := memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}
	g := &engine{key: k, load: r.Load, record: r}
	end := ending{reason: v1alpha1.ReclaimCrashed, exit: v1alpha1.ExitUnknown, since: now}
	if r.Stop != nil {
		end.reason, end.since, end.freed = r.Stop.Reason, earlier(r.Stop.Since, now), r.Stop.Footprint
	}
	reclaim := end.reclaim(g, v1alpha1.HostCheckIndeterminate, now)
	lc.files.engine(k, r.Load).remove()
	var e *entry
	lc.change(func() {
		e = lc.entry(k)
		e.loads = max(e.loads, r.Load)
		lc.gate.unclean() // its exit status is unknown
		e.reserved, e.recording = false, true
	})
	var why *journal.Refusal
	if end.reason == v1alpha1.ReclaimCrashed {
		why = &journal.Refusal{Reason: v1alpha1.ReasonEngineCrashed, Message: "the engine ended while no agent was running"}
	}
	lc.recordReclaim(e, reclaim, why, now, func() {
		e.recording = false
		if why != nil {
			lc.owner.failed(e, *why, now)
		}
	}, func() {
		lc.Log.Info("Engine ended while no agent was running", "ModelReplica", r.Namespace+"/"+r.Name, "load", r.Load, "pid", r.PID)
	})
}

// strays finds engines that a damaged journal does not know, by their files.
// Files of engines that do not answer are removed.
func (lc *lifecycle) strays(known []journal.Engine) (found []journal.Engine) {
	configs, err := filepath.Glob(filepath.Join(lc.files.run, "*.json"))
	if err != nil {
		panic("pool: a constant glob pattern is always valid: " + err.Error())
	}
	for _, path := range configs {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		f := lc.files.named(name)
		if slices.ContainsFunc(known, func(r journal.Engine) bool { return r.Socket == f.socket }) {
			continue
		}
		r, err := readStray(f, name)
		if err != nil {
			lc.Log.Error(err, "Removed an invalid engine file", "file", path)
			f.remove()
			continue
		}
		found = append(found, r)
	}
	return found
}

func readStray(f engineFiles, name string) (journal.Engine, error) {
	file, err := os.Open(f.config)
	if err != nil {
		return journal.Engine{}, fmt.Errorf("open engine configuration: %w", err)
	}
	defer file.Close()
	c, err := wire.ReadConfig(file)
	if err != nil {
		return journal.Engine{}, err
	}
	_, number, _ := strings.Cut(name, "-")
	load, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return journal.Engine{}, fmt.Errorf("read the name of the engine configuration: %w", err)
	}
	return journal.Engine{
		ReplicaUID: c.ReplicaUID, Epoch: c.Epoch, Load: load, Config: c, Socket: f.socket,
		Reserved: c.LimitBytes, // at least its reservation
	}, nil
}

// identify finds the process of the engine that listens on a socket, in a folder
// that only this user may write. It asks the engine whether it is the one. One that
// does not listen yet ends when it finds its configuration gone.
func (lc *lifecycle) identify(ctx context.Context, r *journal.Engine) bool {
	if lc.another(ctx, r) {
		return false
	}
	if lc.listens(ctx, r) {
		return true
	}
	_ = os.Remove(lc.files.engine(memory.Key{UID: r.ReplicaUID, Epoch: r.Epoch}, r.Load).config)
	return lc.listens(ctx, r) // it may have begun before that
}

// listens finds the process that listens on the socket of an engine. Which
// process it is the kernel knows, also if it is stopped or hangs, and holds its memory
// all the same: an engine that was taken over would name another one, to be killed.
func (lc *lifecycle) listens(ctx context.Context, r *journal.Engine) bool {
	ctx, cancel := context.WithTimeout(ctx, lc.Timing.Stray)
	defer cancel()
	pid, err := lc.Engines.Listener(ctx, r.Socket)
	if err != nil || pid <= 1 {
		return false
	}
	start, err := lc.Probe.StartTime(pid)
	if err != nil {
		return false
	}
	r.PID, r.StartTime = pid, start
	return true
}

// another reports whether the engine on a socket answers that it is not r.
func (lc *lifecycle) another(ctx context.Context, r *journal.Engine) bool {
	ctx, cancel := context.WithTimeout(ctx, lc.Timing.Stray)
	defer cancel()
	conn, err := lc.Engines.Dial(r.Socket, nil) // the answer is compared with the configuration
	if err != nil {
		return false
	}
	defer conn.Close()
	h, err := conn.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}, grpc.WaitForReady(true))
	return err == nil && h.GetConfigHash() != r.Config.Hash()
}
