package pool

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/api/v1alpha1"
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
	config.CacheDir, config.Sandbox = p.CacheDir, p.Sandbox
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
	if !p.record(func(s *journal.State) {
		s.PutEngine(g.record)
		s.Replica(e.key.UID, e.key.Epoch).Loads = g.load
	}) {
		return nil, fmt.Errorf("start engine: %w", p.life.Err())
	}
	p.Fault(FaultLoadRecorded)
	proc, err := p.Engines.Start(p.life, process.Spec{
		Path: p.Engine, Args: []string{"serve", "--socket", g.files.socket, "--config", g.files.config},
		Env: p.EngineEnv, LogPath: g.files.log,
	})
	if err != nil {
		return nil, err
	}
	p.Fault(FaultLoadStarted)
	g.record.PID, g.record.StartTime = proc.ID()
	p.record(func(s *journal.State) { s.PutEngine(g.record) })
	p.Fault(FaultLoadIdentified)
	return proc, nil
}

// neverStarted takes back an engine that has no process.
func (p *Pool) neverStarted(e *entry, g *engine, err error) {
	if p.life.Err() != nil {
		return
	}
	p.Log.Error(err, "Engine does not start", "ModelReplica", g.record.Namespace+"/"+g.record.Name)
	if g.client != nil {
		_ = g.client.Close()
	}
	g.files.remove()
	now := time.Now()
	p.change(func() { p.fail(e, journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: err.Error()}, now) })
	p.record(func(s *journal.State) {
		s.DropEngine(e.key.UID, e.key.Epoch)
		p.read(func() { e.persist(s) })
	})
	p.change(func() { p.vacate(e) })
	p.wake()
}

// fail counts a crash or failed load and decides on a restart; the caller
// holds mu, and no process is there.
func (p *Pool) fail(e *entry, why journal.Refusal, now time.Time) {
	defer func() { e.disappoint(e.failedLoad(why, now)) }()
	e.failure = &why
	recent, wait, again := afterCrash(e.crashes, now)
	e.crashes = recent
	e.restarts++
	e.lastFailure = &v1alpha1.EngineFailure{Reason: asReason(why.Reason), Message: bounded(why.Message), Time: metav1.NewTime(now.Truncate(time.Second))}
	if again && !hopeless(why.Reason) {
		e.restart, e.state = now.Add(wait), Reserved
		return
	}
	if again {
		e.refused = &why
	} else {
		e.refused = &journal.Refusal{Reason: why.Reason, Message: fmt.Sprintf("the engine ended %d times in %d minutes and will not be restarted; last error: %s", len(recent), int(crashWindow.Minutes()), why.Message)}
	}
	e.state, e.reserved = Failed, false
	p.Ledger.Release(e.key)
}

// pressurePause is how long an engine stays away that had to go for memory, or
// whose load was given up for it. It is no failure of the engine, so it does
// not count as one.
const pressurePause = 10 * time.Second

// setBack keeps an entry from being loaded for a while; the caller holds
// Pool.mu, and no process is there.
func (e *entry) setBack(why journal.Refusal, now time.Time) {
	e.failure, e.restart, e.state = &why, now.Add(pressurePause), Reserved
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
