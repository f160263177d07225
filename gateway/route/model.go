package route

import (
	"strings"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Endpoint is one ready replica and its address.
type Endpoint struct {
	Replica string // UID of the ModelReplica
	Epoch   int64
	Mac     string
	MacUID  string // of its MacNode
	Address string
	// Reach is how to connect; empty means directly.
	Reach v1alpha1.MacReach
	// Cold: its model is not in memory; the next request loads it.
	Cold bool
	// Retiring: others are preferred, so that it becomes idle.
	Retiring bool
	// Sequences is how many requests it runs concurrently; 0 if unknown.
	Sequences int64
	// Adapters of its model, by name, joined by newlines.
	Adapters string
}

// HasAdapter reports whether the replica can answer with an adapter; every one can answer
// with none. Those of another revision may have other adapters.
func (e Endpoint) HasAdapter(name string) bool {
	return name == "" || has(e.Adapters, name)
}

// Model is one deployment as clients see it.
type Model struct {
	Key
	Created     int64
	endpoints   atomic.Pointer[[]Endpoint]
	changed     atomic.Pointer[chan struct{}]
	gone        atomic.Bool
	suspended   atomic.Bool
	start       atomic.Int64 // a time.Duration
	routing     atomic.Pointer[Routing]
	displayName atomic.Pointer[string]
	adapters    atomic.Pointer[string]
	facts       atomic.Pointer[Facts]
}

// Facts returns what is known of the model.
func (m *Model) Facts() Facts { return *m.facts.Load() }

// DisplayName is the model name in responses to requests that used another name.
func (m *Model) DisplayName() string { return *m.displayName.Load() }

func newModel(d Deployment) *Model {
	m := &Model{Key: d.Key, Created: d.Created}
	first := make(chan struct{})
	m.changed.Store(&first)
	return m
}

// Changed is closed when the endpoints change or the deployment is deleted. To wait for a
// change without missing one, call it before looking at the endpoints.
func (m *Model) Changed() <-chan struct{} { return *m.changed.Load() }

// StartTime is how long the last start of a replica took; 0 if unknown.
func (m *Model) StartTime() time.Duration { return time.Duration(m.start.Load()) }

// Gone reports whether the deployment was deleted: it gets no endpoint any more.
func (m *Model) Gone() bool { return m.gone.Load() }

// Suspended reports whether the deployment is suspended: it gets no endpoint until a person
// resumes it.
func (m *Model) Suspended() bool { return m.suspended.Load() }

// end marks the deployment as deleted.
func (m *Model) end() {
	m.gone.Store(true)
	m.notify()
}

// notify wakes everyone who waits for a change.
func (m *Model) notify() {
	next := make(chan struct{})
	close(*m.changed.Swap(&next))
}

// Endpoints returns the ready replicas in the order of their UIDs. The caller must not
// change them.
func (m *Model) Endpoints() []Endpoint { return *m.endpoints.Load() }

// HasAdapter reports whether the deployment has an adapter of a name.
func (m *Model) HasAdapter(name string) bool {
	return has(*m.adapters.Load(), name)
}

// has reports whether a name is in a list that is joined by newlines.
func has(list, name string) bool {
	for one := range strings.SplitSeq(list, "\n") {
		if one == name {
			return true
		}
	}
	return false
}
