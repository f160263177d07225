package history

import (
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// World is a Mac with an agent's pool on it, and clients. It lives inside one
// bubble of testing/synctest; Do is not for concurrent use.
type World struct {
	diary   diary
	mac     *mac
	twin    *enginetest.Twin
	models  *models
	desired *desired
	agent   *agent
	clients *clients
	judge   *judge
	watched *watched
}

// New makes a world without a Mac; dir is an empty folder of a short path.
func New(dir string) *World {
	w := &World{models: newModels(dir), desired: newDesired(), agent: &agent{dir: dir}}
	w.diary.begun = time.Now()
	scripted := probe.NewScripted(probe.Host{})
	w.twin = enginetest.NewTwin(scripted)
	w.twin.SetApart()
	w.mac = newMac(scripted, w.twin)
	w.judge = newJudge(w.mac, w.twin, w.agent, w.desired)
	w.clients = newClients(&w.diary, w.agent, w.judge)
	w.judge.clients = w.clients
	w.watched = &watched{Twin: w.twin, mac: w.mac, models: w.models, judge: w.judge, diary: &w.diary}
	return w
}

// Close ends everything that the bubble holds.
func (w *World) Close() {
	w.clients.hangUpAll()
	w.agent.halt()
	w.twin.KillAll()
	synctest.Wait()
}

// boot starts an agent's pool over what lies on disk and on the Mac.
func (w *World) boot() error {
	return w.agent.boot(pool.Config{
		Log: logr.New(&logs{diary: &w.diary, judge: w.judge}), Probe: w.mac, Weights: w.models, Engines: w.watched, Reclaimed: w.reclaimed,
	}, w.judge.newAgent)
}

// reclaimed notes the report of an end.
func (w *World) reclaimed(r v1alpha1.Reclaim) {
	freed := "unknown"
	if r.FreedBytes != nil {
		freed = v1alpha1.FormatBytes(*r.FreedBytes)
	}
	w.diary.write(r.Name, "reclaimed: %s, exit %s, freed %s, host check %s, after %.1fs", r.Reason, r.Exit, freed, r.HostCheck, float64(r.DurationMilliseconds)/1000)
	w.judge.reclaimed(r)
}

// apply gives the agent the desired state as it is now.
func (w *World) apply() { w.agent.apply(w.desired.next()) }

// settle waits until all events of this instant have happened.
func (w *World) settle() { synctest.Wait() }

// pass lets time pass.
func (w *World) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Check compares the pool with the model, where nothing is due at this instant.
func (w *World) Check() error { return w.judge.check() }

// Finish removes all assignments and waits until the Mac must be empty, then
// checks that it is, and that every request ended once.
func (w *World) Finish() error {
	w.clients.hangUpAll()
	w.mac.fail(nil, nil)
	w.agent.disk.set(false, 0)
	w.twin.RefuseStarts(nil)
	w.settle()
	if !w.agent.running() && w.agent.pool != nil {
		if err := w.boot(); err != nil {
			return err
		}
	}
	if w.agent.pool == nil {
		return nil
	}
	w.desired.withdrawAll()
	w.apply()
	w.settle()
	for range 5 { // drains and ladders, one after another
		w.pass(time.Minute)
	}
	if err := w.Check(); err != nil {
		return err
	}
	return w.judge.finished()
}
