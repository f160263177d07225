// Package desired reads the desired state of the Mac from its MacNode and its
// MacAssignment.
//
// It owns the checks that both pass before the agent acts on them: the API
// server checked them too, but the agent runs programs and opens files by
// them. It refuses invalid assignments one by one, with a message. An error, a
// missing or deleted object, and a MacAssignment that the operator has not
// confirmed never mean that nothing is wanted: the last state stays in force.
//
// Start reading at Source.Run, then read.
package desired

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Source watches the Mac's own MacNode and MacAssignment.
type Source struct {
	client client.WithWatch
	name   string
	log    logr.Logger
}

// NewSource follows the two objects called name.
func NewSource(c client.WithWatch, name string, log logr.Logger) *Source {
	return &Source{client: c, name: name, log: log}
}

// Run delivers the desired state whenever it changes, until ctx ends.
func (s *Source) Run(ctx context.Context, deliver func(journal.Desired)) error {
	p := pair{log: s.log, deliver: deliver}
	key := types.NamespacedName{Name: s.name}
	var settings sync.WaitGroup
	settings.Go(func() {
		_ = register.Follow(ctx, s.client, &v1alpha1.MacNodeList{}, key, s.log, p.setMac) // it ends with ctx
	})
	err := register.Follow(ctx, s.client, &v1alpha1.MacAssignmentList{}, key, s.log, p.setAssignment)
	settings.Wait()
	p.end()
	return err
}

// pair is what was read of the two objects. Nothing is delivered before both
// were read: one alone would withdraw what the other holds.
type pair struct {
	log     logr.Logger
	deliver func(journal.Desired)

	mu              sync.Mutex // guards the fields after it, and deliver
	macs, confirmed gate
	mac             *v1alpha1.MacNode
	assignment      *v1alpha1.MacAssignment // the last one that the operator confirmed
	ignored         types.UID
}

func (p *pair) setMac(m *v1alpha1.MacNode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := p.mac != nil && equality.Semantic.DeepEqual(p.mac.Spec, m.Spec)
	p.take(&p.macs, m, same, func() { p.mac = m })
}

func (p *pair) setAssignment(a *v1alpha1.MacAssignment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !a.Confirmed() {
		if a.UID != p.confirmed.uid && a.UID != p.ignored {
			p.ignored = a.UID
			p.log.Info("The operator has not confirmed the MacAssignment; keeping the last known state", "uid", a.UID)
		}
		return
	}
	same := p.assignment != nil && equality.Semantic.DeepEqual(p.assignment.Spec, a.Spec)
	p.take(&p.confirmed, a, same, func() { p.assignment = a })
}

// restoredAfter is how long an object has to stay at older generations to count as restored
// from a backup: a server that lags catches up.
const restoredAfter = 30 * time.Second

// take uses an object that passes the gate, and after restoredAfter one that stays older.
// same is true if its spec equals that of the last object: another spec at the same
// generation means that the object was restored, after which its writers may reach any
// generation again. The caller holds mu.
func (p *pair) take(g *gate, o client.Object, same bool, use func()) {
	older := o.GetUID() == g.uid && (o.GetGeneration() < g.generation || o.GetGeneration() == g.generation && !same)
	switch {
	case older && g.older != nil && g.older.GetGeneration() == o.GetGeneration():
		return // only its status has changed
	case older && g.older != nil: // its writers work on it: the time that it has waited counts
		g.older, g.use = o, use
		return
	}
	g.wait(nil, nil)
	if g.passes(o) {
		use()
		p.changed()
	} else if older {
		g.use = use
		g.wait(o, func() { p.restored(g, o) })
	}
}

// restored uses the object that waits, unless the wait that began with first has ended.
func (p *pair) restored(g *gate, first client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.first != first {
		return
	}
	p.log.Info("The API server keeps another state, as after the restore of a backup; following it", "name", g.older.GetName(), "generation", g.older.GetGeneration(), "before", g.generation)
	g.generation = g.older.GetGeneration()
	g.older, g.first = nil, nil
	g.use()
	p.changed()
}

// end stops what waits.
func (p *pair) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.macs.wait(nil, nil)
	p.confirmed.wait(nil, nil)
}

func (p *pair) changed() {
	if p.mac != nil && p.assignment != nil {
		p.deliver(read(p.mac, &p.assignment.Spec))
	}
}

// gate lets each generation of an object through once, and none that is older
// than one that was read: a lagging server must not bring back an old state.
type gate struct {
	uid        types.UID
	generation int64
	older      client.Object // that waits
	first      client.Object // with which the wait began
	use        func()        // of older
	timer      *time.Timer
}

// wait has an older object wait, in place of another, or none.
func (g *gate) wait(o client.Object, then func()) {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.older, g.first, g.timer = o, o, nil; o != nil {
		g.timer = time.AfterFunc(restoredAfter, then)
	}
}

func (g *gate) passes(o client.Object) bool {
	if o.GetUID() == g.uid && o.GetGeneration() <= g.generation {
		return false
	}
	g.uid, g.generation = o.GetUID(), o.GetGeneration()
	return true
}

// safeID is what may become part of a file name.
var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// tokenRef names a key of the Mac's Secret, or none.
var tokenRef = regexp.MustCompile(`^([0-9a-f]{64})?$`)

// read checks a MacNode and what is assigned to it.
func read(m *v1alpha1.MacNode, assigned *v1alpha1.MacAssignmentSpec) journal.Desired {
	o := journal.Desired{UID: string(m.UID), Generation: m.Generation, Memory: m.Spec.Memory, PinnedWeights: m.Spec.PinnedWeights}
	seen := map[string]bool{}
	for _, a := range assigned.Assignments {
		err := check(&a)
		if err == nil && seen[a.ReplicaUID] {
			err = fmt.Errorf("replica %s is assigned twice", a.ReplicaUID)
		}
		if err != nil {
			o.Invalid = append(o.Invalid, journal.InvalidAssignment{ReplicaUID: a.ReplicaUID, Epoch: max(1, a.Epoch), Message: err.Error()})
			continue
		}
		seen[a.ReplicaUID] = true
		o.Assignments = append(o.Assignments, a)
	}
	o.Settings, o.SettingsRefused = checkSettings(m.Spec.Settings)
	if c := assigned.Class; c != nil {
		good, refused := checkSettings(c.Settings)
		o.Class = &v1alpha1.AssignedClass{Name: c.Name, Generation: c.Generation, Settings: good}
		o.SettingsRefused = strings.TrimPrefix(o.SettingsRefused+"; "+refused, "; ")
		o.SettingsRefused = strings.TrimSuffix(o.SettingsRefused, "; ")
	}
	if c := m.Spec.ClearCache; c != nil && checkClear(c) {
		o.ClearCache = c.DeepCopy()
	}
	if a := assigned.Agent; a != nil && checkAgent(a) {
		o.Agent = a.DeepCopy()
	}
	for _, i := range assigned.Inspections {
		if safeID.MatchString(i.ID) && i.Source != "" && tokenRef.MatchString(i.TokenRef) {
			o.Inspections = append(o.Inspections, i)
		}
	}
	return o
}

// What an order of an agent may hold: its version is part of no path and no
// command line, but is compared with what a program prints.
var (
	agentVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	agentDigest  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// clearRequest is what an order to clear caches may be called.
var clearRequest = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// checkClear refuses an order to clear caches whose tier is not known: all would
// be more than was meant.
func checkClear(c *v1alpha1.CacheClear) bool {
	switch c.Tier {
	case "", v1alpha1.CacheTierAll, v1alpha1.CacheTierMemory, v1alpha1.CacheTierDisk:
		return clearRequest.MatchString(c.Request)
	}
	return false
}

// checkAgent refuses an order of an agent that cannot be followed.
func checkAgent(a *v1alpha1.AgentOrder) bool {
	return agentVersion.MatchString(a.Version) && agentDigest.MatchString(a.SHA256) && strings.HasPrefix(a.Source, "https://") &&
		a.Attempt >= 1 && (a.DrainSeconds == nil || *a.DrainSeconds >= 0)
}

// check refuses an assignment that cannot be followed.
func check(a *v1alpha1.Assignment) error {
	switch {
	case !safeID.MatchString(a.ReplicaUID):
		return fmt.Errorf("replica UID %q is not a valid UID", a.ReplicaUID)
	case a.Epoch < 1:
		return fmt.Errorf("epoch is %d, want at least 1", a.Epoch)
	case a.ReservedBytes < 1:
		return fmt.Errorf("reservation is %d bytes, want more than zero", a.ReservedBytes)
	case a.Context.MaxTokens < 1 || a.Context.MaxConcurrentRequests < 1 || a.Context.KVCacheTokens < a.Context.MaxTokens:
		return fmt.Errorf("cannot serve a context of %d tokens for %d sequences with %d cache tokens", a.Context.MaxTokens, a.Context.MaxConcurrentRequests, a.Context.KVCacheTokens)
	case a.PrefixCache.DiskBytes < 0 || a.PrefixCache.QueueBytes < 0 || a.PrefixCache.DiskBytes > 0 && a.PrefixCache.QueueBytes == 0:
		return fmt.Errorf("cannot keep a disk cache of %d bytes with a write queue of %d", a.PrefixCache.DiskBytes, a.PrefixCache.QueueBytes)
	case a.DrainSeconds < 0 || a.DrainSeconds > 86400:
		return fmt.Errorf("drainSeconds is %d, want 0 to 86400", a.DrainSeconds)
	}
	switch a.Desired {
	case v1alpha1.DesiredDrained:
		return nil // an assignment to drain is always valid
	case v1alpha1.DesiredRunning, v1alpha1.DesiredDownloaded:
	default:
		return fmt.Errorf("this agent does not support the desired state %q", a.Desired)
	}
	if err := checkResidency(a.Residency); err != nil {
		return err
	}
	if !tokenRef.MatchString(a.TokenRef) {
		return fmt.Errorf("tokenRef %q is not a valid reference", a.TokenRef)
	}
	if err := a.Model.Validate(); err != nil {
		return err
	}
	return a.Model.Facts.Validate()
}

// maxIdleSeconds is the bound of the schema: 30 days.
const maxIdleSeconds = 2592000

// checkResidency takes no word for Always: that is what operators meant before
// they could say it.
func checkResidency(r v1alpha1.Residency) error {
	switch r.Policy {
	case "", v1alpha1.ResidencyAlways, v1alpha1.ResidencyOnDemand:
	default:
		return fmt.Errorf("unknown residency policy %q: this agent supports %s and %s", r.Policy, v1alpha1.ResidencyAlways, v1alpha1.ResidencyOnDemand)
	}
	if r.IdleSeconds < 0 || r.IdleSeconds > maxIdleSeconds {
		return fmt.Errorf("residency idleSeconds is %d, want 0 to %d", r.IdleSeconds, maxIdleSeconds)
	}
	return nil
}
