package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

// load starts an engine in a goroutine. The entry is marked with the engine at
// once, so that there is never a second one.
func (p *Pool) load(e *entry) {
	if !p.admitted(e) { // promised is not given: the Mac must have it now
		return
	}
	p.Fault(FaultLoadBegun)
	var g *engine
	p.change(func() {
		e.loads++
		e.state = Loading
		g = p.newEngine(e)
		e.engine = g
	})
	p.tasks.Go(func() {
		proc, err := p.start(e, g)
		if err != nil {
			p.neverStarted(e, g, err)
			return
		}
		p.change(func() { g.child(proc) })
		p.attend(e, g)
		p.wake() // it may be stopped from now on
		p.poke()
	})
}

// newEngine describes the next engine of an entry; the caller holds mu.
func (p *Pool) newEngine(e *entry) *engine {
	config := e.config(e.download.path)
	config.Sandbox = p.Sandbox
	if config.CacheQueueBytes > 0 && p.CacheDir != "" {
		config.CacheDir = cold.ModelFolder(p.CacheDir, config.ModelDigest)
	}
	f := p.files.engine(e.key, e.loads)
	return &engine{
		key: e.key, load: e.loads, config: config, files: f, loadBegan: time.Now(),
		progressAt: time.Now(), holds: map[*Hold]struct{}{},
		record: journal.Engine{
			ReplicaUID: e.key.UID, Epoch: e.key.Epoch, Load: e.loads,
			Namespace: e.order.Namespace, Name: e.order.Name, Config: config, Socket: f.socket,
			Reserved: e.order.ReservedBytes, DrainSeconds: e.order.DrainSeconds,
		},
	}
}

// start writes down what is about to be started, starts it, and writes down
// its process. A crash between the two is found again by the socket.
func (p *Pool) start(e *entry, g *engine) (process.Handle, error) {
	if err := g.files.writeConfig(g.config); err != nil {
		return nil, err
	}
	if err := g.connect(p.Engines); err != nil {
		return nil, err
	}
	if g.config.CacheDir != "" && p.PrepareCache != nil {
		if err := p.PrepareCache(g.config.ModelDigest); err != nil { // it computes all prompts then
			p.Log.Error(err, "Cannot make the model's folder in the disk cache", "ModelReplica", g.record.Namespace+"/"+g.record.Name)
		}
	}
	if err := p.save(func(s *journal.State) {
		s.PutEngine(g.record)
		s.Replica(e.key.UID, e.key.Epoch).Loads = g.load
	}); err != nil {
		return nil, &notSavedError{err} // a process that no journal knows could be lost
	}
	p.Fault(FaultLoadRecorded)
	allowed := false
	if p.read(func() { allowed = p.mayStart() }); !allowed { // another engine ended uncleanly while the disk wrote
		return nil, errUnsettled
	}
	proc, err := p.Engines.Start(p.life, process.Spec{
		Path: p.Engine, Args: []string{"serve", "--socket", g.files.socket, "--config", g.files.config},
		Env: p.EngineEnv, LogPath: g.files.log,
	})
	if err != nil {
		return nil, err
	}
	p.Fault(FaultLoadStarted)
	g.record.PID, g.record.StartTime = proc.ID()
	p.recordEngine(e, g)
	p.Fault(FaultLoadIdentified)
	return proc, nil
}

// errUnsettled: the Mac's memory is checked before anything is started.
var errUnsettled = errors.New("the memory of this Mac is being checked")

// putOff takes back an engine that was not started, because the Mac's memory is
// checked first. Requests keep waiting for the next one.
func (p *Pool) putOff(e *entry, g *engine) {
	p.Log.Info("Engine starts later", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "reason", errUnsettled.Error())
	_ = g.client.Close()
	g.files.remove()
	p.change(func() { e.state = Reserved })
	p.record(func(s *journal.State) { s.DropEngine(g.key.UID, g.key.Epoch, g.load) }, func() {
		p.change(func() { p.vacate(e) })
		p.wake()
	})
}

// recordEngine writes down the process of an engine, unless it has ended
// meanwhile.
func (p *Pool) recordEngine(e *entry, g *engine) {
	p.record(func(s *journal.State) {
		p.read(func() {
			if e.engine == g && !g.gone {
				s.PutEngine(g.record)
			}
		})
	}, nil)
}

// notSavedError: what is about to be done could not be written down.
type notSavedError struct{ err error }

func (e *notSavedError) Error() string {
	return "the agent's journal cannot be written: " + diskFault(e.err)
}
func (e *notSavedError) Unwrap() error { return e.err }

// neverStarted takes back an engine that has no process.
func (p *Pool) neverStarted(e *entry, g *engine, err error) {
	if p.life.Err() != nil {
		return
	}
	if errors.Is(err, errUnsettled) {
		p.putOff(e, g)
		return
	}
	p.Log.Error(err, "Engine does not start", "ModelReplica", g.record.Namespace+"/"+g.record.Name)
	if g.client != nil {
		_ = g.client.Close()
	}
	g.files.remove()
	now := time.Now()
	vacate := func() {
		p.change(func() { p.vacate(e) })
		p.wake()
	}
	if unsaved := (*notSavedError)(nil); errors.As(err, &unsaved) { // no fault of the engine, and the journal does not know it
		p.change(func() { e.setBack(journal.Refusal{Reason: ReasonStateNotSaved, Message: err.Error()}, now) })
		vacate()
		return
	}
	p.change(func() { p.fail(e, journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: err.Error()}, now) })
	p.record(func(s *journal.State) {
		s.DropEngine(e.key.UID, e.key.Epoch, g.load)
		p.read(func() { e.persist(s) })
	}, vacate)
}

// failure of an engine, as it is counted.
type failure struct {
	crashes []time.Time // still in the window
	last    *v1alpha1.EngineFailure
	wait    time.Duration    // before the next start
	refused *journal.Refusal // there is no next start
}

// failed counts a crash or failed load; the caller holds Pool.mu.
func (e *entry) failed(why journal.Refusal, now time.Time) failure {
	recent, wait, again := afterCrash(e.crashes, now)
	f := failure{crashes: recent, wait: wait, last: &v1alpha1.EngineFailure{
		Reason: asReason(why.Reason), Message: bounded(why.Message), Time: metav1.NewTime(now.Truncate(time.Second))}}
	switch {
	case !again:
		f.refused = &journal.Refusal{Reason: why.Reason, Message: fmt.Sprintf("the engine ended %d times in %d minutes and will not be restarted; last error: %s", len(recent), int(crashWindow.Minutes()), why.Message)}
	case hopeless(why.Reason):
		f.refused = &why
	}
	return f
}

// fail counts a crash or failed load and decides on a restart; the caller
// holds mu, and no process is there.
func (p *Pool) fail(e *entry, why journal.Refusal, now time.Time) {
	defer func() { e.disappoint(e.failedLoad(why, now)) }()
	f := e.failed(why, now)
	e.failure, e.crashes, e.lastFailure = &why, f.crashes, f.last
	e.restarts++
	if f.refused == nil {
		e.restart, e.state = now.Add(f.wait), Reserved
		return
	}
	e.refused, e.state, e.reserved = f.refused, Failed, false
	p.Ledger.Release(e.key)
}

// An engine that was ended for memory, or whose load was given up for it, stays
// away for pressurePause, and twice as long each time that it happens again
// within pressureWindow, at most for maxPressurePause. It is no failure of the
// engine, so it does not count as one.
const (
	pressurePause    = 10 * time.Second
	maxPressurePause = 5 * time.Minute
	pressureWindow   = 30 * time.Minute
)

// setBack keeps an entry from being loaded for a while; the caller holds
// Pool.mu, and no process is there.
func (e *entry) setBack(why journal.Refusal, now time.Time) {
	recent := slices.DeleteFunc(e.setBacks, func(t time.Time) bool { return now.Sub(t) >= pressureWindow })
	e.setBacks = append(recent, now)
	e.restart = now.Add(min(maxPressurePause, pressurePause<<min(len(recent), 10)))
	e.failure, e.state = &why, Reserved
	e.disappoint(e.failedLoad(why, now))
}

// setBackNow reports whether a failure or pressure keeps an entry from being
// loaded; the caller holds Pool.mu.
func (e *entry) setBackNow(now time.Time) bool { return e.failure != nil && now.Before(e.restart) }

// hopeless reasons do not go away with another attempt.
func hopeless(reason string) bool {
	return reason == v1alpha1.ReasonUnsupportedModel || reason == v1alpha1.ReasonInvalidModel
}

// persist writes what is remembered of the entry; the caller holds mu.
func (e *entry) persist(s *journal.State) {
	r := s.Replica(e.key.UID, e.key.Epoch)
	r.Loads, r.Restarts, r.LastFailure, r.Crashes, r.Refused, r.Freed = e.loads, e.restarts, e.lastFailure, e.crashes, e.refused, e.freed
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
