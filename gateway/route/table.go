// Package route holds the gateway's table: which names clients may use, whose
// they are, and which replicas answer for them on which Macs.
//
// It owns the reading of ModelDeployments, ModelReplicas and MacNodes and
// keeps the last table it knew while the API server is away. It refuses
// replicas that are not ready, are going, or whose Mac takes no requests. It
// chooses nothing and connects to nothing.
//
// A change touches what it concerns: a replica that becomes ready replaces one
// model's list of endpoints; the index of names is made again only when names
// change. Readers take no lock.
//
// Start reading at Table and endpointsOf; Watch feeds it.
package route

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Key names a deployment.
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
	Created int64 // seconds since 1970
	// Names that it owns by its status, NAMESPACE/NAME among them or not.
	Names string // joined by newlines
	// Start is what the last start of a replica took; 0 where nobody knows.
	Start time.Duration
	// Routing of requests for its bare names; nil where it answers them itself.
	Routing *Routing
	// Context is the maximum length of a request in tokens, as its spec sets it; 0
	// where it does not.
	Context int64
}

// servesAs reports whether two have the same names, endpoints, facts and routing.
func (d Deployment) servesAs(o Deployment) bool {
	return d.Key == o.Key && d.UID == o.UID && d.Created == o.Created && d.Names == o.Names && d.Context == o.Context && reflect.DeepEqual(d.Routing, o.Routing)
}

// same says that two say the same.
func (d Deployment) same(o Deployment) bool {
	return d.servesAs(o) && d.Start == o.Start
}

// shown is what answers call it: the first of its names, or NAMESPACE/NAME.
func (d Deployment) shown() string {
	for name := range strings.SplitSeq(d.Names, "\n") {
		if name != "" && name != d.Key.String() {
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
	Retiring      bool // others are preferred, so that it may go
	Sequences     int64
	Facts         Facts
}

// Mac is what the table needs of a MacNode.
type Mac struct {
	Name    string
	UID     string            // of its MacNode
	Address string            // host:port; empty when unknown
	Open    bool              // takes requests
	Reach   v1alpha1.MacReach // empty is directly
}

// Endpoint is one ready replica and where to reach it.
type Endpoint struct {
	Replica string // UID
	Epoch   int64
	Mac     string
	MacUID  string // of its MacNode
	Address string
	// Reach is how: directly where it is empty.
	Reach v1alpha1.MacReach
	// Cold: its model is not in memory; the next request there loads it.
	Cold bool
	// Retiring: others are preferred, so that it may go.
	Retiring bool
	// Sequences is how many requests run there at once; 0 where nobody said.
	Sequences int64
}

// Model is one deployment as clients see it.
type Model struct {
	Key
	Created   int64
	endpoints atomic.Pointer[[]Endpoint]
	changed   atomic.Pointer[chan struct{}]
	gone      atomic.Bool
	start     atomic.Int64 // a time.Duration
	routing   atomic.Pointer[Routing]
	shown     atomic.Pointer[string]
	facts     atomic.Pointer[Facts]
}

// Facts returns what is known of the model.
func (m *Model) Facts() Facts { return *m.facts.Load() }

// Shown is what answers call it that were asked of another name.
func (m *Model) Shown() string { return *m.shown.Load() }

func newModel(d Deployment) *Model {
	m := &Model{Key: d.Key, Created: d.Created}
	first := make(chan struct{})
	m.changed.Store(&first)
	return m
}

// Changed is closed when the endpoints change, or the deployment goes. Who
// waits takes it before looking.
func (m *Model) Changed() <-chan struct{} { return *m.changed.Load() }

// StartTime is what the last start of a replica took; 0 where nobody knows.
func (m *Model) StartTime() time.Duration { return time.Duration(m.start.Load()) }

// Gone says that the deployment was deleted: it gets no endpoint any more.
func (m *Model) Gone() bool { return m.gone.Load() }

// end says that the deployment was deleted.
func (m *Model) end() {
	m.gone.Store(true)
	m.tell()
}

// tell wakes those who wait for a change.
func (m *Model) tell() {
	next := make(chan struct{})
	close(*m.changed.Swap(&next))
}

// Endpoints are the ready replicas, in the order of their UIDs. The caller
// must not change them.
func (m *Model) Endpoints() []Endpoint { return *m.endpoints.Load() }

// Name is a name that clients may use.
type Name struct {
	Name  string
	Model *Model
}

// index is a finished table of names.
type index struct {
	byName map[string]*Model
	listed []Name
}

// Table is safe for use by many goroutines.
type Table struct {
	names  atomic.Pointer[index]
	synced atomic.Bool

	mu          sync.Mutex // guards what follows; readers do not need it
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

// NewTable makes an empty table that has not been filled yet.
func NewTable() *Table {
	t := &Table{deployments: map[Key]*entry{}, replicas: map[string]Replica{}, members: map[Key]map[string]Replica{},
		macs: map[string]Mac{}, onMac: map[string]map[string]Replica{}}
	t.names.Store(&index{})
	return t
}

// Synced says whether the table was filled once; before that, an unknown name
// means nothing.
func (t *Table) Synced() bool { return t.synced.Load() }

// MarkSynced says that it was.
func (t *Table) MarkSynced() { t.synced.Store(true) }

// Lookup finds the model behind a name.
func (t *Table) Lookup(name string) (*Model, bool) {
	m, ok := t.names.Load().byName[name]
	return m, ok
}

// Names are those to show to clients, sorted: the names of each model, and
// NAMESPACE/NAME of a model that owns no other.
func (t *Table) Names() []Name { return t.names.Load().listed }

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
	shown := d.shown()
	e.model.routing.Store(d.Routing)
	e.model.shown.Store(&shown)
	t.deployments[d.Key] = e
	if known && old.Deployment.servesAs(d) {
		return // names and endpoints are as they were
	}
	t.refresh(d.Key)
	t.rename()
}

// DeleteDeployment forgets one, unless its name was taken by a newer one.
func (t *Table) DeleteDeployment(key Key, uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, known := t.deployments[key]
	if !known || e.UID != uid {
		return
	}
	delete(t.deployments, key)
	e.model.end()
	t.rename()
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

// DeleteReplica forgets one.
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

// OnGone has a function called for each Mac whose MacNode was deleted, or
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

// Mac finds one that can be reached, whether it takes new requests or not.
func (t *Table) Mac(name string) (Mac, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.macs[name]
	return m, ok && m.Address != ""
}

// Macs are those that can be reached, in the order of their names.
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

// DeleteMac forgets one.
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

// refreshMac makes again what has a replica on that Mac.
func (t *Table) refreshMac(name string) {
	touched := map[Key]bool{}
	for _, r := range t.onMac[name] {
		touched[r.Deployment] = true
	}
	for key := range touched {
		t.refresh(key)
	}
}

// refresh makes one model's endpoints and facts again.
func (t *Table) refresh(key Key) {
	e, known := t.deployments[key]
	if !known {
		return
	}
	facts := factsOf(e.Deployment, t.members[key])
	e.model.facts.Store(&facts)
	endpoints := endpointsOf(e.UID, t.members[key], t.macs)
	if old := e.model.endpoints.Swap(&endpoints); old == nil || !slices.Equal(*old, endpoints) {
		e.model.tell()
	}
}

// endpointsOf are the replicas of a deployment that may be picked: ready, of
// this deployment and not of a predecessor of the same name, on a Mac that
// takes requests at a known address.
func endpointsOf(deploymentUID string, replicas map[string]Replica, macs map[string]Mac) []Endpoint {
	var out []Endpoint
	for _, r := range replicas {
		mac := macs[r.Mac]
		if r.Ready && r.DeploymentUID == deploymentUID && mac.Open && mac.Address != "" {
			out = append(out, Endpoint{Replica: r.UID, Epoch: r.Epoch, Mac: r.Mac, MacUID: mac.UID, Address: mac.Address, Reach: mac.Reach, Cold: r.Cold, Retiring: r.Retiring, Sequences: r.Sequences})
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return strings.Compare(a.Replica, b.Replica) })
	return out
}

// rename makes the index of names again.
func (t *Table) rename() {
	t.names.Store(indexOf(slices.Collect(maps.Values(t.deployments))))
}

// indexOf gives every NAMESPACE/NAME to its own deployment, and each other name to
// the oldest one whose status claims it.
func indexOf(entries []*entry) *index {
	slices.SortFunc(entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Key.String(), b.Key.String()))
	})
	out := &index{byName: make(map[string]*Model, 2*len(entries))}
	for _, e := range entries {
		out.byName[e.Key.String()] = e.model
	}
	for _, e := range entries {
		named := false
		for name := range strings.SplitSeq(e.Names, "\n") {
			if _, taken := out.byName[name]; name != "" && !taken {
				named = true
				out.byName[name] = e.model
				out.listed = append(out.listed, Name{name, e.model})
			}
		}
		if !named {
			out.listed = append(out.listed, Name{e.Key.String(), e.model})
		}
	}
	slices.SortFunc(out.listed, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	return out
}
