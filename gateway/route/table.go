// Package route holds the gateway's routing table: the names that clients may use, the
// deployments that serve each name, and the replicas and Macs that serve them.
//
// It owns reading ModelDeployments, ModelReplicas and MacNodes, and keeps the last known
// table while the API server is away. It leaves out replicas that are not ready or are
// being deleted, and those on Macs that take no requests. It chooses no replica and
// connects to none.
//
// Changes are local: a replica that becomes ready replaces one model's list of endpoints; a
// deployment changes its own names in the index. Looking a name up takes no lock.
//
// Start reading at Table and endpointsOf; Watch feeds it.
package route

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Key identifies a deployment.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Deployment is what the table needs of a ModelDeployment.
type Deployment struct {
	Key
	UID     string
	Created int64 // Unix seconds
	// Names that its status claims, with or without NAMESPACE/NAME.
	Names string // joined by newlines
	// Adapters of its model, by name: names that end in :ADAPTER select one.
	Adapters string // joined by newlines
	// Start is how long the last start of a replica took; 0 if unknown.
	Start time.Duration
	// Routing of requests for its bare names; nil if it serves them itself.
	Routing *Routing
	// Context is the maximum length of a request in tokens from the spec; 0 if not set.
	Context int64
	// Suspended: nothing starts a replica until a person changes the deployment.
	Suspended bool
}

// servesAs reports whether two deployments have the same names, endpoints, facts and
// routing.
func (d Deployment) servesAs(o Deployment) bool {
	return d.Key == o.Key && d.namedAs(o) && d.Context == o.Context && d.Suspended == o.Suspended && reflect.DeepEqual(d.Routing, o.Routing)
}

// namedAs reports whether two have the same place in the index of names.
func (d Deployment) namedAs(o Deployment) bool {
	return d.UID == o.UID && d.Created == o.Created && d.Names == o.Names && d.Adapters == o.Adapters
}

// same reports whether two are equal.
func (d Deployment) same(o Deployment) bool {
	return d.servesAs(o) && d.Start == o.Start
}

// adapterOf returns the adapter that one of its names selects; empty for the model alone.
func (d Deployment) adapterOf(name string) string {
	for adapter := range strings.SplitSeq(d.Adapters, "\n") {
		if adapter != "" && strings.HasSuffix(name, ":"+adapter) {
			return adapter
		}
	}
	return ""
}

// displayName is the model name in responses: the first of its names, or NAMESPACE/NAME.
func (d Deployment) displayName() string {
	for name := range strings.SplitSeq(d.Names, "\n") {
		if name != "" && name != d.Key.String() && d.adapterOf(name) == "" {
			return name
		}
	}
	return d.Key.String()
}

// Replica is what the table needs of a ModelReplica.
type Replica struct {
	UID           string
	Epoch         int64
	Deployment    Key
	DeploymentUID string
	Mac           string
	Ready         bool
	Cold          bool // an OnDemand replica whose model is not in memory
	Retiring      bool // others are preferred, so that it becomes idle
	Sequences     int64
	Adapters      string // names, joined by newlines
	Facts         Facts
}

// Mac is what the table needs of a MacNode.
type Mac struct {
	Name    string
	UID     string            // of its MacNode
	Address string            // host:port; empty when unknown
	Open    bool              // accepts requests
	Reach   v1alpha1.MacReach // empty means directly
}

// Table is the routing table. It is safe for concurrent use.
type Table struct {
	names  *names
	synced atomic.Bool

	mu          sync.Mutex // guards the fields after it, and names; Find does not need it
	deployments map[Key]*entry
	replicas    map[string]Replica
	members     map[Key]map[string]Replica // replicas by their deployment
	macs        map[string]Mac
	onMac       map[string]map[string]Replica // replicas by their Mac
	gone        func(mac string)
}

type entry struct {
	Deployment
	model *Model
}

// NewTable returns an empty table that is not synced.
func NewTable() *Table {
	return &Table{names: newNames(), deployments: map[Key]*entry{}, replicas: map[string]Replica{}, members: map[Key]map[string]Replica{},
		macs: map[string]Mac{}, onMac: map[string]map[string]Replica{}}
}

// Synced reports whether the table was filled once; before that, an unknown name may exist.
func (t *Table) Synced() bool { return t.synced.Load() }

// MarkSynced records that it was.
func (t *Table) MarkSynced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names.publishAll()
	t.synced.Store(true)
}

// Lookup returns the model that a name refers to, whether it selects an adapter or not.
func (t *Table) Lookup(name string) (*Model, bool) {
	n, ok := t.Find(name)
	return n.Model, ok
}

// Find returns what a name refers to.
func (t *Table) Find(name string) (Name, bool) { return t.names.find(name) }

// Names yields the names to list for clients, sorted: the names of each model and of its
// adapters, or NAMESPACE/NAME if it has no other. Changes of a long list show within a second.
func (t *Table) Names() iter.Seq[Name] { return t.names.all(&t.mu) }

// SetDeployment adds or changes a deployment.
func (t *Table) SetDeployment(d Deployment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.deployments[d.Key]
	if known && old.Deployment.same(d) {
		return
	}
	e := &entry{Deployment: d, model: newModel(d)}
	switch {
	case known && old.UID == d.UID:
		e.model = old.model
	case known:
		old.model.end()
	}
	e.model.start.Store(int64(d.Start))
	if e.model.suspended.Swap(d.Suspended) != d.Suspended {
		e.model.notify()
	}
	displayName := d.displayName()
	e.model.routing.Store(d.Routing)
	e.model.displayName.Store(&displayName)
	e.model.adapters.Store(&d.Adapters)
	t.deployments[d.Key] = e
	if known && old.Deployment.servesAs(d) {
		return // names and endpoints are unchanged
	}
	t.refresh(d.Key)
	if !known || !old.Deployment.namedAs(d) {
		t.names.set(d, e.model)
	}
}

// DeleteDeployment removes a deployment, unless a newer one has its name.
func (t *Table) DeleteDeployment(key Key, uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, known := t.deployments[key]
	if !known || e.UID != uid {
		return
	}
	delete(t.deployments, key)
	e.model.end()
	t.names.delete(key)
}

// SetReplica adds or changes a replica.
func (t *Table) SetReplica(r Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.replicas[r.UID]
	if known && old == r {
		return
	}
	if known {
		t.unlink(old)
	}
	t.replicas[r.UID] = r
	link(t.members, r.Deployment, r)
	link(t.onMac, r.Mac, r)
	t.refresh(r.Deployment)
	if known && old.Deployment != r.Deployment {
		t.refresh(old.Deployment)
	}
}

// DeleteReplica removes a replica.
func (t *Table) DeleteReplica(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, known := t.replicas[uid]
	if !known {
		return
	}
	delete(t.replicas, uid)
	t.unlink(r)
	t.refresh(r.Deployment)
}

// SetMac adds or changes a Mac.
func (t *Table) SetMac(m Mac) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.macs[m.Name]
	if known && old == m {
		return
	}
	t.macs[m.Name] = m
	t.refreshMac(m.Name)
	if known && old.UID != m.UID && t.gone != nil {
		t.gone(m.Name)
	}
}

// OnGone registers a function that is called for each Mac whose MacNode was deleted, or
// replaced by another one of its name. The function must not use the table.
func (t *Table) OnGone(gone func(mac string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = gone
}

// UID returns the UID of a MacNode; ok is false if there is none of that name.
func (t *Table) UID(mac string) (uid string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.macs[mac]
	return m.UID, ok
}

// Mac returns a Mac with a known address, whether it accepts new requests or not.
func (t *Table) Mac(name string) (Mac, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.macs[name]
	return m, ok && m.Address != ""
}

// Macs returns the Macs with known addresses, in the order of their names.
func (t *Table) Macs() []Mac {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Mac
	for _, name := range slices.Sorted(maps.Keys(t.macs)) {
		if m := t.macs[name]; m.Address != "" {
			out = append(out, m)
		}
	}
	return out
}

// DeleteMac removes a Mac.
func (t *Table) DeleteMac(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.macs, name)
	t.refreshMac(name)
	if t.gone != nil {
		t.gone(name)
	}
}

func link[K comparable](to map[K]map[string]Replica, at K, r Replica) {
	if to[at] == nil {
		to[at] = map[string]Replica{}
	}
	to[at][r.UID] = r
}

func unlink[K comparable](from map[K]map[string]Replica, at K, uid string) {
	delete(from[at], uid)
	if len(from[at]) == 0 {
		delete(from, at)
	}
}

func (t *Table) unlink(r Replica) {
	unlink(t.members, r.Deployment, r.UID)
	unlink(t.onMac, r.Mac, r.UID)
}

// refreshMac rebuilds the models that have a replica on a Mac.
func (t *Table) refreshMac(name string) {
	touched := map[Key]bool{}
	for _, r := range t.onMac[name] {
		touched[r.Deployment] = true
	}
	for key := range touched {
		t.refresh(key)
	}
}

// refresh rebuilds one model's endpoints and facts.
func (t *Table) refresh(key Key) {
	e, known := t.deployments[key]
	if !known {
		return
	}
	facts := factsOf(e.Deployment, t.members[key])
	e.model.facts.Store(&facts)
	endpoints := endpointsOf(e.UID, t.members[key], t.macs)
	if old := e.model.endpoints.Swap(&endpoints); old == nil || !slices.Equal(*old, endpoints) {
		e.model.notify()
	}
}

// endpointsOf returns the replicas of a deployment that may be picked: ready, of this
// deployment and not of a predecessor with the same name, on a Mac that accepts requests at
// a known address.
func endpointsOf(deploymentUID string, replicas map[string]Replica, macs map[string]Mac) []Endpoint {
	var out []Endpoint
	for _, r := range replicas {
		mac := macs[r.Mac]
		if r.Ready && r.DeploymentUID == deploymentUID && mac.Open && mac.Address != "" {
			out = append(out, Endpoint{Replica: r.UID, Epoch: r.Epoch, Mac: r.Mac, MacUID: mac.UID, Address: mac.Address, Reach: mac.Reach, Cold: r.Cold, Retiring: r.Retiring, Sequences: r.Sequences, Adapters: r.Adapters})
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return strings.Compare(a.Replica, b.Replica) })
	return out
}
