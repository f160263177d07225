package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

// start starts an engine in a goroutine. The entry is marked with the engine at
// once, so that there is never a second one.
func (lc *lifecycle) start(e *entry) {
	var g *engine
	lc.change(func() {
		e.loads++
		e.state = Loading
		g = lc.newEngine(e)
		e.engine = g
	})
	lc.tasks.Go(func() {
		proc, err := lc.startProcess(e, g)
		if err != nil {
			lc.neverStarted(e, g, err)
			return
		}
		lc.change(func() { g.child(proc) })
		lc.supervise(e, g)
		lc.replan() // it may be stopped from now on
		lc.pollNow()
	})
}

// newEngine describes the next engine of an entry; the caller holds mu.
func (lc *lifecycle) newEngine(e *entry) *engine {
	config := e.config(e.download.path)
	config.Sandbox = lc.Sandbox
	if config.CacheQueueBytes > 0 && lc.CacheDir != "" {
		if dir := cold.ModelFolder(lc.CacheDir, config.CacheModel()); !time.Now().Before(lc.cacheless[dir]) {
			config.CacheDir = dir
		}
	}
	f := lc.files.engine(e.key, e.loads)
	return &engine{
		key: e.key, load: e.loads, state: Starting, config: config, files: f, loadBegan: time.Now(),
		progressAt: time.Now(), holds: map[*Hold]struct{}{},
		record: journal.Engine{
			ReplicaUID: e.key.UID, Epoch: e.key.Epoch, Load: e.loads,
			Namespace: e.assignment.Namespace, Name: e.assignment.Name, Config: config, Socket: f.socket,
			Reserved: e.assignment.ReservedBytes, DrainSeconds: e.assignment.DrainSeconds,
		},
	}
}

// startProcess writes to the journal what is about to be started, starts it, and
// writes its process. After a crash between the two the process is found by its
// socket.
func (lc *lifecycle) startProcess(e *entry, g *engine) (process.Handle, error) {
	if err := errors.Join(lc.files.restore(), g.files.writeConfig(g.config)); err != nil {
		return nil, err
	}
	if err := g.connect(lc.Engines, lc.unsent); err != nil {
		return nil, err
	}
	lc.boundLog(g) // what an earlier engine of the replica wrote is not its own
	if g.config.CacheDir != "" && lc.PrepareCache != nil {
		if err := lc.PrepareCache(g.config.CacheModel()); err != nil { // then it runs without a disk cache
			lc.Log.Error(err, "Cannot make the model's folder in the disk cache", "ModelReplica", g.record.Namespace+"/"+g.record.Name)
		}
	}
	if err := lc.recorder.save(func(s *journal.State) {
		s.PutEngine(g.record)
		r := s.Replica(e.key.UID, e.key.Epoch)
		r.Loads, r.Refused = g.load, nil // it may have failed an hour ago
	}); err != nil {
		return nil, &notSavedError{err} // a process that no journal knows could be lost
	}
	allowed := false
	if lc.read(func() { allowed = lc.gate.mayStart() }); !allowed { // another engine ended uncleanly while the disk wrote
		return nil, errUnsettled
	}
	proc, err := lc.Engines.Start(lc.life, process.Spec{
		Path: lc.Engine, Args: lc.files.arguments(g.files),
		Env: lc.EngineEnv, LogPath: g.files.log,
	})
	if err != nil {
		return nil, err
	}
	g.record.PID, g.record.StartTime = proc.ID()
	lc.recordEngine(e, g)
	return proc, nil
}

// errUnsettled: the Mac's memory is checked before anything is started.
var errUnsettled = errors.New("the memory of this Mac is being checked")

// putOff takes back an engine that was not started, because the Mac's memory is
// checked first. Requests keep waiting for the next one.
func (lc *lifecycle) putOff(e *entry, g *engine) {
	lc.Log.Info("Engine starts later", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "reason", errUnsettled.Error())
	_ = g.client.Close()
	g.files.remove()
	lc.change(func() { e.state = Reserved })
	now := time.Now()
	lc.recorder.record(func(s *journal.State) { s.DropEngine(g.key.UID, g.key.Epoch, g.load) }, func() {
		lc.change(func() { lc.owner.vacated(e, now) })
		lc.replan()
	})
}

// recordEngine writes the process of an engine to the journal, unless it has
// ended.
func (lc *lifecycle) recordEngine(e *entry, g *engine) {
	lc.recorder.record(func(s *journal.State) {
		lc.read(func() {
			if e.engine == g && g.state != Exited {
				s.PutEngine(g.record)
			}
		})
	}, nil)
}

// neverStarted takes back an engine that has no process.
func (lc *lifecycle) neverStarted(e *entry, g *engine, err error) {
	if lc.life.Err() != nil {
		return
	}
	if errors.Is(err, errUnsettled) {
		lc.putOff(e, g)
		return
	}
	refused := systemRefused(err)
	err = excerpt.Error(err)
	lc.Log.Error(err, "Engine does not start", "ModelReplica", g.record.Namespace+"/"+g.record.Name)
	if g.client != nil {
		_ = g.client.Close()
	}
	g.files.remove()
	now := time.Now()
	vacate := func() {
		lc.change(func() { lc.owner.vacated(e, now) })
		lc.replan()
	}
	if unsaved := (*notSavedError)(nil); errors.As(err, &unsaved) { // no fault of the engine, and the journal does not know it
		lc.change(func() { lc.owner.putOff(e, journal.Refusal{Reason: reasonStateNotSaved, Message: err.Error()}, now) })
		vacate()
		return
	}
	lc.change(func() {
		why := journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: err.Error()}
		if refused {
			lc.owner.putOff(e, why, now)
		} else {
			lc.owner.failed(e, why, now)
		}
	})
	lc.recorder.record(func(s *journal.State) {
		s.DropEngine(e.key.UID, e.key.Epoch, g.load)
		lc.read(func() { e.persist(s) })
	}, vacate)
}

// systemRefused reports whether this Mac could not start a process: its disk is full, it has
// no more processes or files, or the program is not what it was. That is no fault of the
// engine, and may end.
func systemRefused(err error) bool {
	var errno syscall.Errno
	var changed *integrity.ChangedError
	return errors.As(err, &errno) || errors.As(err, &changed)
}

// writeConfig writes the configuration file that an engine is started with.
func (f engineFiles) writeConfig(c wire.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode engine configuration: %w", err)
	}
	if err := os.WriteFile(f.config, b, 0o600); err != nil {
		return fmt.Errorf("write engine configuration: %w", err)
	}
	return nil
}
