package history

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// namespace of replicas without another one; their UIDs are their names.
const namespace = "team"

// defaultDrain of an order that says nothing.
const defaultDrain = 30 * time.Second

// desired is the desired state that the operator would write: assignments, and
// the policy of the Mac's memory. Safe for concurrent use, except policy.
type desired struct {
	generation int64
	policy     v1alpha1.MacMemoryPolicy

	mu     sync.Mutex // guards what follows
	orders map[string]v1alpha1.Assignment
	epochs map[string]int64     // the newest of each replica
	drains map[string]int32     // the longest that each replica was ordered with, in seconds
	since  map[string]time.Time // of the newest epoch
}

func newDesired() *desired {
	return &desired{orders: map[string]v1alpha1.Assignment{}, epochs: map[string]int64{}, drains: map[string]int32{}, since: map[string]time.Time{}}
}

// next is a generation with all assignments as they are now.
func (d *desired) next() journal.Desired {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation++
	return journal.Desired{
		Generation: d.generation, Memory: d.policy,
		Assignments: slices.SortedFunc(maps.Values(d.orders), func(a, b v1alpha1.Assignment) int { return strings.Compare(a.ReplicaUID, b.ReplicaUID) }),
	}
}

func (d *desired) setCeiling(bytes int64) {
	d.policy.Ceiling = nil
	if bytes > 0 {
		d.policy.Ceiling = resource.NewQuantity(bytes, resource.BinarySI)
	}
}

// order of a replica, and how long its drain may take at most.
func (d *desired) order(uid string) (order v1alpha1.Assignment, ordered bool, drain time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	order, ordered = d.orders[uid]
	return order, ordered, time.Duration(d.drains[uid]) * time.Second
}

// all orders, and since when each replica has its epoch.
func (d *desired) all() (orders map[string]v1alpha1.Assignment, since map[string]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.orders), maps.Clone(d.since)
}

// epoch that clients ask for: the newest.
func (d *desired) epoch(replica string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(1, d.epochs[replica])
}

// newest is the newest epoch that a replica was ordered with.
func (d *desired) newest(replica string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.epochs[replica]
}

// withdraw removes assignments.
func (d *desired) withdraw(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.orders, name)
	}
}

// withdrawAll removes all of them.
func (d *desired) withdrawAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.orders)
}

// place changes one order.
func (d *desired) place(a *arguments) error {
	name := a.word()
	d.mu.Lock()
	o, ok := d.orders[name]
	d.mu.Unlock()
	if !ok {
		o = newOrder(name)
		o.Epoch = d.epochs[name] + 1 // one that was withdrawn does not come back
	}
	for flag, to := range map[string]v1alpha1.DesiredState{
		"running": v1alpha1.DesiredRunning, "downloaded": v1alpha1.DesiredDownloaded, "drained": v1alpha1.DesiredDrained,
	} {
		if a.flag(flag) {
			o.Desired = to
		}
	}
	if a.flag("always") {
		o.Residency.Policy = ""
	}
	if a.flag("on-demand") {
		o.Residency.Policy = v1alpha1.ResidencyOnDemand
	}
	idle, drain := time.Duration(o.Residency.IdleSeconds)*time.Second, time.Duration(o.DrainSeconds)*time.Second
	a.duration("idle", &idle)
	a.duration("drain", &drain)
	o.Residency.IdleSeconds, o.DrainSeconds = int32(idle/time.Second), int32(drain/time.Second)
	o.Residency.EvictionPriority = int32(a.number("priority", int64(o.Residency.EvictionPriority)))
	if a.flag("next-epoch") {
		o.Epoch++
	}
	o.Context.MaxTokens = a.number("context", o.Context.MaxTokens)
	a.bytes("reserve", &o.ReservedBytes)
	if of, ok := a.text("namespace"); ok {
		o.Namespace = of
	}
	if source, ok := a.text("model"); ok {
		o.Model = record(source)
	}
	if err := a.done(); err != nil {
		return err
	}
	d.mu.Lock()
	if d.epochs[name] != o.Epoch {
		d.since[name] = time.Now()
	}
	d.orders[name], d.epochs[name] = o, o.Epoch
	d.drains[name] = max(d.drains[name], o.DrainSeconds)
	d.mu.Unlock()
	return nil
}

func (w *World) order(a *arguments) (string, error) {
	if err := w.desired.place(a); err != nil {
		return "", err
	}
	w.apply()
	return "", nil
}

// orderAll gives several orders at once.
func (w *World) orderAll(a *arguments) (string, error) {
	for _, line := range strings.Split(strings.TrimSpace(a.input), "\n") {
		_, args, err := datadriven.ParseLine("order " + line)
		if err := errors.Join(err, a.done()); err != nil {
			return "", err
		}
		if err := w.desired.place(&arguments{args: args}); err != nil {
			return "", err
		}
	}
	w.apply()
	return "", nil
}

func newOrder(name string) v1alpha1.Assignment {
	return v1alpha1.Assignment{
		ReplicaUID: name, Epoch: 1, Namespace: namespace, Name: name, ServedNames: []string{name}, Model: record(name),
		Context: v1alpha1.ContextLimits{MaxTokens: 64, MaxConcurrentRequests: 2, KVCacheTokens: 1 << 20}, ReservedBytes: 1 << 30,
		DrainSeconds: int32(defaultDrain / time.Second), Desired: v1alpha1.DesiredRunning,
	}
}

func record(source string) model.Record {
	files := []model.File{{Path: filepath.Base(source) + ".gguf", Bytes: 1000, SHA256: strings.Repeat("ab", 32)}}
	return model.Record{Source: source, Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files}
}

func (w *World) withdraw(a *arguments) (string, error) {
	names := []string{a.word()}
	for len(a.args) > 0 && len(a.args[0].Vals) == 0 {
		names = append(names, a.word())
	}
	if err := a.done(); err != nil {
		return "", err
	}
	w.desired.withdraw(names)
	w.apply()
	return "", nil
}
