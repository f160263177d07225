// Package upgrade replaces the agent of a Mac with the version that its MacNode
// specifies, and rolls back if the new one does not pass its trial.
//
// It owns the folder "upgrade" in an agent's state folder: archives, the builds
// in them, and the state of both. Before it stops anything it refuses an archive
// whose digest, signature, machine or version is wrong, and an older version
// unless that is allowed; it does not retry a failed version.
//
// launchd always starts the same path: the installed program. It executes a build
// that passed its trial (Enter, by exec, so that launchd keeps watching the same
// process). For a trial the running agent, once drained, becomes a launcher in
// the same way, and the new agent is its child: a program that cannot start,
// ends, or hangs cannot roll itself back, so a version that is known to work must
// watch it, which is the previous one. The launcher stays until the next start,
// because it is the process that launchd watches. Engines have sessions of their
// own and are adopted by the next agent.
//
// Start reading at Upgrader.Run and todo; then start and Program.launch.
package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// defaultDrain is how long running requests may go on where the order does not say.
const defaultDrain = 600 * time.Second

// Config is what an Upgrader is made of.
type Config struct {
	Log    logr.Logger
	Folder Folder
	// Version of this program.
	Version string
	// Forbidden: the owner of this Mac wants no upgrades.
	Forbidden bool
	Client    *download.Client
	// Pause between two attempts to fetch an agent; 0 means fetchPause.
	Pause time.Duration
	// Keys that have to have signed an archive; empty: any.
	Keys Keys
	// Changed is called when there is something new to report; Drain when a
	// build is ready and requests are to end. Neither may block.
	Changed func()
	Drain   func(most time.Duration)
}

// Upgrader follows the order to run another agent. It is safe for concurrent use.
type Upgrader struct {
	Config
	wakes chan struct{}

	mu    sync.Mutex // guards what follows
	order *v1alpha1.AgentOrder
	last  *v1alpha1.AgentUpgrade
	ready *Trial // what to try once everything is drained
}

// New makes an upgrader; nothing happens before Set and Run.
func New(c Config) (*Upgrader, error) {
	u := &Upgrader{Config: c, wakes: make(chan struct{}, 1)}
	s, err := c.Folder.Load()
	if err != nil {
		return nil, err
	}
	u.last = s.Last
	if t := s.Trial; t != nil {
		u.last = t.report(v1alpha1.UpgradeTrial, "waiting for its status and heartbeat", time.Now())
	}
	return u, nil
}

// Set takes the order as it was positively read from the API: what a journal
// remembers is too old to replace a program for.
func (u *Upgrader) Set(o *v1alpha1.AgentOrder) {
	u.mu.Lock()
	same := equality.Semantic.DeepEqual(o, u.order)
	u.order = o.DeepCopy()
	u.mu.Unlock()
	if same {
		return
	}
	select {
	case u.wakes <- struct{}{}:
	default:
	}
}

// Status is the last upgrade, or nil.
func (u *Upgrader) Status() *v1alpha1.AgentUpgrade {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last.DeepCopy()
}

// Proved notes that this agent's trial went well.
func (u *Upgrader) Proved() {
	u.mu.Lock()
	if u.last != nil {
		u.last.Phase, u.last.Message = v1alpha1.UpgradeSucceeded, ""
	}
	u.mu.Unlock()
	u.Changed()
}

// Ready reports whether a build waits for this agent to end.
func (u *Upgrader) Ready() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready != nil
}

// todo says whether an order is to be followed by a program of a version that
// remembers last. What failed is not tried again under the same attempt.
func todo(o *v1alpha1.AgentOrder, own string, last *v1alpha1.AgentUpgrade) bool {
	return o != nil && o.Version != own && !(last.Is(o) && last.Failed())
}

// Run follows orders until ctx ends. Once a build is ready nothing else is
// done: the program is about to end.
func (u *Upgrader) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		u.mu.Lock()
		o, last := u.order, u.last
		u.mu.Unlock()
		if todo(o, u.Version, last) && u.follow(ctx, o) {
			break
		}
		select {
		case <-ctx.Done():
		case <-u.wakes:
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// follow fetches what is ordered and has the agent drained. It returns false
// where that came to nothing; another order ends it.
func (u *Upgrader) follow(ctx context.Context, o *v1alpha1.AgentOrder) bool {
	t := &Trial{Build: Build{Version: o.Version, SHA256: o.SHA256}, Attempt: o.Attempt, From: u.Version}
	if u.Forbidden {
		u.refuse(t, errors.New("this agent was started with --upgrades=false; upgrade it on the Mac itself"))
		return false
	}
	u.say(t.report(v1alpha1.UpgradeFetching, "", time.Now()))
	fetching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	superseded := make(chan struct{})
	go func() {
		defer close(superseded)
		select {
		case <-u.wakes:
			cancel(errSuperseded)
		case <-fetching.Done():
		}
	}()
	err := u.fetchInTime(fetching, o, t)
	if err == nil {
		t.Files, err = integrity.Of(u.Folder.of(o.SHA256), "agent", "engine")
	}
	if err == nil { // an agent that cannot record the trial would drain in vain, again after each start
		err = u.Folder.Update(func(s State) State { return s })
	}
	cancelled := context.Cause(fetching)
	cancel(nil)
	<-superseded
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(cancelled, errSuperseded):
		u.wake()
		return false
	case err != nil:
		u.refuse(t, err)
		return false
	}
	most := defaultDrain
	if o.DrainSeconds != nil {
		most = time.Duration(*o.DrainSeconds) * time.Second
	}
	u.mu.Lock()
	u.ready = t
	u.mu.Unlock()
	u.say(t.report(v1alpha1.UpgradeDraining, fmt.Sprintf("running requests have %s to finish", most), time.Now()))
	u.Log.Info("A new agent is ready; draining running requests first", "version", t.Version, "most", most.String())
	u.Drain(most)
	return true
}

// A server or a network that fails is asked again after fetchPause, for fetchTime: a refusal
// halts the upgrade of the whole class.
const (
	fetchPause = 10 * time.Second
	fetchTime  = 10 * time.Minute
)

// fetchInTime is fetch, repeated while another attempt may succeed.
func (u *Upgrader) fetchInTime(ctx context.Context, o *v1alpha1.AgentOrder, t *Trial) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for until := time.Now().Add(fetchTime); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pause.C:
		}
		err := u.fetch(ctx, o)
		if !download.IsTransient(err) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		u.say(t.report(v1alpha1.UpgradeFetching, err.Error(), time.Now()))
		pause.Reset(cmp.Or(u.Pause, fetchPause))
	}
}

var errSuperseded = errors.New("superseded by another version")

func (u *Upgrader) wake() {
	select {
	case u.wakes <- struct{}{}:
	default:
	}
}

func (u *Upgrader) say(r *v1alpha1.AgentUpgrade) {
	u.mu.Lock()
	u.last = r
	u.mu.Unlock()
	u.Changed()
}

// refuse notes why an order is not followed. It is remembered, so that the next
// start does not fetch the same again.
func (u *Upgrader) refuse(t *Trial, why error) {
	u.Log.Info("Not installing the requested agent", "version", t.Version, "reason", why.Error())
	r := t.report(v1alpha1.UpgradeRefused, why.Error(), time.Now())
	if err := u.Folder.Update(func(s State) State { s.Last = r; return s }); err != nil {
		u.Log.Error(err, "Failed to store the result")
	}
	u.say(r)
}

// Restart makes way for the build that is ready: this process becomes the
// launcher of its trial, or ends with exit where a launcher is there already. It
// is called at the program's very end; if it returns an error, the supervisor
// starts this agent again as after any end.
func (u *Upgrader) Restart(l *Launched, p Program) (exit int, err error) {
	u.mu.Lock()
	t := u.ready
	u.mu.Unlock()
	err = u.Folder.Update(func(s State) State {
		if s.Base == "" { // this is the installed program
			s.Base, s.BasePath = p.Version, p.Path
		}
		s.Trial = t
		return s
	})
	if err != nil {
		return 1, err
	}
	if l != nil {
		return exitUpgrade, nil
	}
	return 1, p.exec(p.Path, roleLauncher)
}

// Prune removes builds that neither run nor are about to.
func (u *Upgrader) Prune() error {
	s, err := u.Folder.Load()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	if s.Current != nil {
		keep[u.Folder.of(s.Current.SHA256)] = true
	}
	if s.Trial != nil {
		keep[u.Folder.of(s.Trial.SHA256)] = true
	}
	return removeOthers(u.Folder.versions(), keep)
}

func removeOthers(dir string, keep map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list builds: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if path := dir + string(os.PathSeparator) + e.Name(); !keep[path] {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}
