package batch

import (
	"cmp"
	"slices"
	"time"
)

const (
	// turnShare is the part of its length that a request generates before it gives way to
	// another tenant: its length is what is computed again for it.
	turnShare = 16
	// onlyTurns is how many turns the only request of a tenant generates before it gives way. In as many
	// plans a tenant that gave way rests, and small requests are spared.
	onlyTurns = 16
	// sparedStep is how long a step takes at most that counts as one plan while small requests are spared. One
	// with prompts may take many times as long, and large requests wait meanwhile.
	sparedStep = 55 * time.Millisecond
)

// tenant counts the requests of one tenant.
type tenant struct {
	name             string
	running, waiting int
	// prefilled is what the prefill tokens cost that were planned for it, see
	// Scheduler.prefilled. counted is the last plan in which it had a prompt.
	prefilled, counted int64
	// since is when it came or last ran a request, in the order of all tenants: of those that run
	// none, the one that has waited for longest is next.
	since int64
	// passed is Scheduler.passes when a prompt of it last was the first that shared the head's step and what
	// that took in addition to half of the step, or when the tenant came.
	passed int64
	// rests is the plan before which it leaves one place to others, because a request of it gave way. Without
	// that, one that is admitted in between gives way to the next that comes, and most of what is computed
	// may be in vain.
	rests int64
	// ran is how long its requests ran until they stopped. waited is Scheduler.worked when it last began to wait,
	// and before kept it is not forgotten: see catchUp.
	ran, waited, kept time.Duration
}

// before reports whether the next request to admit is one of t rather than of o: the tenant that runs
// the fewest, and of those that run none the one that has waited for longest. By arrival, all that one
// has queued would be before any that another sends later.
func (t *tenant) before(o *tenant) bool {
	return t.running < o.running || t.running == 0 && o.running == 0 && t.since < o.since
}

// prefilled returns how much prefill a tenant has had. A tenant that had no
// prompt for a while is level with the one whose prompt was head last, as in
// start-time fair queueing (Goyal, Vin and Cheng, 1996), and with what each has had since then.
func (s *Scheduler) prefilled(t *tenant) int64 { return max(t.prefilled, s.headStart) }

// tenantOf returns the tenant of a new request.
func (s *Scheduler) tenantOf(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, passed: s.passes}
		s.tenants[name] = t
	}
	return t
}

// Others counts the requests for whose steps a tenant's work outside of them has to end: those that
// decode, and those of other tenants whose prompts are not computed, waiting ones as well, except held ones.
func (s *Scheduler) Others(tenant string, held ...ID) (n int) {
	for _, r := range s.all {
		if r.decodes() || r.prefills() && r.tenant.name != tenant && !slices.Contains(held, r.id) {
			n++
		}
	}
	return n
}

// enqueue adds a request to the queue.
func (s *Scheduler) enqueue(r *request) {
	if r.tenant.waiting == 0 {
		s.waits(r.tenant)
	}
	r.tenant.waiting++
	s.waiting = insert(s.waiting, r)
}

// waits notes that a tenant begins to wait for its turn, unless a request of it runs.
func (s *Scheduler) waits(t *tenant) {
	if t.running == 0 {
		s.turns++
		t.since, t.waited = s.turns, s.worked
	}
}

// rise raises what tenants have had at least by the part of each that has a prompt. If those that come for the first time
// began with less, they would always be next, and a tenant that had a prompt before would wait for all of them.
func (s *Scheduler) rise(planned int64) {
	prompts := int64(0)
	for _, r := range s.running {
		if r.prefills() && r.tenant.counted < s.plans {
			r.tenant.counted = s.plans
			prompts++
		}
	}
	if prompts > 0 {
		s.headStart += planned / prompts
		s.forgetTenants()
	}
}

// leave counts a request that ended. A tenant without one is forgotten once the others have had as
// much prefill: tenants that come and go would always have had the fewest.
func (s *Scheduler) leave(t *tenant) {
	if t.running+t.waiting == 0 && t.prefilled <= s.headStart && (s.limits.Sequences > 1 || s.worked >= t.kept) {
		delete(s.tenants, t.name)
	}
	if len(s.all) == 0 {
		clear(s.tenants)
	}
}

// forgetTenants is leave for those that the others have caught up with.
func (s *Scheduler) forgetTenants() {
	for _, t := range s.tenants {
		s.leave(t)
	}
}

// Yield preempts requests of tenants that run several, or the only one of a tenant after a
// longer turn, so that a tenant that waits and runs none is admitted. It returns them: their
// KV must be dropped before the next Admit. They keep their tokens and are computed again
// when a tenant with fewer running requests no longer waits.
func (s *Scheduler) Yield() []ID {
	var ids []ID
	victims, favored := s.victims()
	for _, r := range victims {
		had, since := r.computed > 0, r.tenant.since
		if s.preempt(r); !had {
			r.tenant.since = since // it ran without a turn
		}
		r.tenant.rests = s.plans + s.long()
		ids = append(ids, r.id)
	}
	if len(ids) > 0 {
		s.favored = favored
	}
	return ids
}

// long is the longer turn, in plans.
func (s *Scheduler) long() int64 { return int64(onlyTurns * s.limits.Turn) }

// spare begins a longer turn of small requests if a large one stops running that they waited for. Another
// one then passes before the next such turn: both have half of the time if large ones come again and again.
func (s *Scheduler) spare(r *request) {
	long := time.Duration(s.long()) * sparedStep
	if r.large && s.worked >= s.spared+long {
		s.spared = s.worked + long
	}
	r.large = false
}

// Took records how long a step took. Without that, each counts as a short one.
func (s *Scheduler) Took(step time.Duration) { s.worked += max(0, step-sparedStep) }

// victims returns the requests that Yield preempts, and the one that they give way to.
func (s *Scheduler) victims() (victims []*request, favored *request) {
	if s.paused || len(s.tenants) < 2 || len(s.waiting) == 0 || s.next() >= 0 {
		return nil, nil
	}
	patient := s.patient()
	if patient != nil && patient.tenant.running == 0 {
		if victims := s.yielding(patient.priority, true).to(patient); victims != nil {
			return victims, patient
		}
	}
	idle := s.idle(patient)
	if len(idle) == 0 {
		return nil, nil
	}
	yielding := s.yielding(idle[0].priority, false)
	for _, w := range idle {
		if victims := yielding.to(w); victims != nil {
			return victims, w
		}
	}
	if victims, favored := s.overtaking(idle); victims != nil {
		return victims, favored
	}
	return s.unbegun(idle)
}

// unbegun returns a large request of which nothing is computed, and never will be before the prompt of another
// large one is. It holds blocks for nothing, and gives way to a small one at once.
func (s *Scheduler) unbegun(idle []*request) (victims []*request, favored *request) {
	for _, w := range idle {
		for i, r := range s.running {
			if r.computed > 0 || r == s.head || s.head == nil || r.priority > w.priority || !s.large(r, w) || !s.large(s.head, w) {
				continue
			}
			if others := slices.Delete(slices.Clone(s.running), i, i+1); s.blocksFor(w.known) <= s.freeBlocks+r.blocks-s.reserve(others) {
				return []*request{r}, w
			}
		}
	}
	return nil, nil
}

// idle returns the waiting requests of tenants that run none, those of the tenant that has waited for
// longest first. By arrival, those that gave way would be next again before any that came later.
func (s *Scheduler) idle(patient *request) (all []*request) {
	for _, w := range s.waiting {
		if w.priority < s.waiting[0].priority {
			break
		}
		if w.tenant.running == 0 && !s.mustFollow(w, patient) {
			all = append(all, w)
		}
	}
	slices.SortStableFunc(all, func(a, b *request) int { return cmp.Compare(a.tenant.since, b.tenant.since) })
	return all
}

// yielding has the running requests that may give way to waiting ones of a priority, the first one
// first. They are the same for all of these, and found once for a step: a tenant may queue many that
// do not fit even without them.
type yielding struct {
	s        *Scheduler
	priority int
	// patient is true for a request that holds up all others: turns end earlier for it, and
	// priorities do not count.
	patient bool
	// victims were found, running are the others, and count is how many of these each tenant has.
	victims, running []*request
	count            map[*tenant]int
	// room[n] is how many blocks are free without the first n victims, and free those without all.
	room []int
	free int
	// complete is true if there are no more victims.
	complete bool
}

func (s *Scheduler) yielding(priority int, patient bool) *yielding {
	g := &yielding{s: s, priority: priority, patient: patient, running: slices.Clone(s.running), count: map[*tenant]int{}, free: s.freeBlocks}
	for _, r := range g.running {
		g.count[r.tenant]++
	}
	g.room = append(g.room, g.free-s.reserve(g.running))
	return g
}

// to returns the requests that have to give way to a waiting one, nil if not even all that may would
// suffice.
func (g *yielding) to(w *request) []*request {
	blocks := g.s.blocksFor(w.known)
	for n := 0; n < len(g.room) || g.find(); n++ {
		if len(g.s.running)-n < g.s.limits.Sequences && blocks <= g.room[n] {
			if n == 0 { // it waits for something else
				return nil
			}
			return g.victims[:n]
		}
	}
	return nil
}

// find finds the next victim, and reports false if there is none.
func (g *yielding) find() bool {
	at := -1
	if !g.complete {
		at = g.victim()
	}
	if g.complete = at < 0; g.complete {
		return false
	}
	r := g.running[at]
	g.count[r.tenant]--
	g.running = slices.Delete(g.running, at, at+1)
	g.free += r.blocks
	g.victims, g.room = append(g.victims, r), append(g.room, g.free-g.s.reserve(g.running))
	return true
}

// victim is the index of the request that gives way first: one of the tenant that runs the
// most, of those the one of the lowest priority, and then the one that has computed the
// least. It is -1 if none has had its turn, or if these are spared.
func (g *yielding) victim() int {
	best, spared := -1, g.s.worked < g.s.spared
	for i, r := range g.running {
		if r.priority > g.priority && !g.patient || spared && g.count[r.tenant] < r.tenant.running || r.done() || r.turn < g.s.turn(r, g.count[r.tenant] < 2, g.patient) {
			continue
		}
		if best < 0 || givesWayBefore(r, g.running[best], g.count) {
			best = i
		}
	}
	return best
}

// turn is how many tokens a request generates before it gives way, once it runs: more if it
// is the only one of its tenant, and else none before its prompt is computed, which may take minutes.
func (s *Scheduler) turn(r *request, only, patient bool) int {
	long := onlyTurns * s.limits.Turn
	turn := max(s.limits.Turn, r.known/turnShare)
	switch {
	case !only && r.prefills():
		return 0
	case only:
		turn = max(turn, long)
	}
	if patient || !only {
		turn = min(turn, long)
	}
	return turn
}

func givesWayBefore(a, b *request, count map[*tenant]int) bool {
	switch {
	case count[a.tenant] != count[b.tenant]:
		return count[a.tenant] > count[b.tenant]
	case a.priority != b.priority:
		return a.priority < b.priority
	}
	return a.computed < b.computed
}
