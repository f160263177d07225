package route

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// listEvery is the shortest time between two versions of a long list of names. Others, of
	// at most shortList names, are always current: they take less than a millisecond.
	listEvery = time.Second
	shortList = 4 << 10
)

// listing is the list of names, sorted. Changes are merged into a new version when the list
// is read; who changes names never waits for that.
type listing struct {
	newest  atomic.Pointer[version]
	changed atomic.Int64 // counts changes
	merging sync.Mutex   // one at a time

	// changes since the newest version, by name. Guarded by the table's mu.
	changes map[string]change
}

// version is a version of the list, which is not changed any more.
type version struct {
	sorted []*claim
	of     int64 // the count of changes that it includes
	made   time.Time
}

// change is whether the newest version lists a name, and what the next one lists; nil is nothing.
type change struct {
	listed bool
	to     *claim
}

// set lists a name in place of another claim on it, or removes it. The table's mu is held.
func (l *listing) set(name string, before, to *claim) {
	if before == to {
		return
	}
	if l.changes == nil {
		l.changes = map[string]change{}
	}
	listed := before != nil
	if earlier, ok := l.changes[name]; ok {
		listed = earlier.listed
	}
	if listed || to != nil {
		l.changes[name] = change{listed, to}
	} else {
		delete(l.changes, name) // so that names that come and go take no memory
	}
	l.changed.Add(1)
}

// after appends the next names after one, as many as fit.
func (l *listing) after(last string, to []Name, mu *sync.Mutex) []Name {
	sorted := l.current(mu).sorted
	at, found := slices.BinarySearchFunc(sorted, last, compareName)
	if found {
		at++
	}
	for ; at < len(sorted) && len(to) < cap(to); at++ {
		to = append(to, sorted[at].Name)
	}
	return to
}

func compareName(c *claim, name string) int { return strings.Compare(c.Name.Name, name) }

// current returns the newest version, which it makes if it is time.
func (l *listing) current(mu *sync.Mutex) *version {
	if v := l.newest.Load(); l.serves(v) {
		return v
	}
	l.merging.Lock()
	defer l.merging.Unlock()
	before := l.newest.Load()
	if l.serves(before) {
		return before
	}
	if before == nil {
		before = &version{}
	}
	mu.Lock()
	changes, of := l.changes, l.changed.Load()
	l.changes = nil
	mu.Unlock()
	v := &version{merge(before.sorted, changes), of, time.Now()}
	l.newest.Store(v)
	return v
}

// serves reports whether a version is current, or as new as that of a long list has to be.
func (l *listing) serves(v *version) bool {
	return v != nil && (v.of == l.changed.Load() || len(v.sorted) > shortList && time.Since(v.made) < listEvery)
}

// merge returns a sorted list with changes.
func merge(sorted []*claim, changes map[string]change) []*claim {
	out := make([]*claim, 0, len(sorted)+len(changes))
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		at, found := slices.BinarySearchFunc(sorted, name, compareName)
		out = append(out, sorted[:at]...)
		if found {
			at++
		}
		sorted = sorted[at:]
		if to := changes[name].to; to != nil {
			out = append(out, to)
		}
	}
	return append(out, sorted...)
}
