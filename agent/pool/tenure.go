package pool

import "time"

// tenureLapse is how long after the end of an engine the next one of its namespace
// follows it. A load of another namespace finds the room free in that time.
const tenureLapse = time.Minute

// tenures are the on-demand engines of each namespace that ended lately. An engine in
// use is ended for another namespace once it has served for some minutes: a namespace
// that starts another model each time would never have served that long. Its zero value
// is ready to use; registry.mu guards it.
type tenures struct{ by map[string]tenure }

// tenure of engines that followed one another, until the last one ended.
type tenure struct{ since, until time.Time }

// left notes the end of an entry's engine.
func (t *tenures) left(e *entry, g *engine, now time.Time) {
	if !e.assignment.Residency.OnDemand() {
		return
	}
	since := g.loadBegan
	if !g.readySince.IsZero() {
		since = g.readySince
	}
	if !e.tenure.IsZero() && e.tenure.Before(since) {
		since = e.tenure
	}
	if t.by == nil {
		t.by = map[string]tenure{}
	}
	if before, ok := t.by[g.record.Namespace]; ok && now.Sub(before.until) <= tenureLapse && before.since.Before(since) {
		since = before.since
	}
	t.by[g.record.Namespace] = tenure{since, now}
}

// follow notes the start of an engine, and returns the beginning of the tenure that it
// continues; zero: of none. The engines of all other namespaces are followed by this one.
func (t *tenures) follow(namespace string, now time.Time) (since time.Time) {
	if before, ok := t.by[namespace]; ok && now.Sub(before.until) <= tenureLapse {
		since = before.since
	}
	clear(t.by)
	return since
}
