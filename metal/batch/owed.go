package batch

import "time"

// owedTurns is how many turns less than another a tenant has run at least that is owed time.
const owedTurns = 4

// With one sequence, a tenant that sends one request after another would wait for a whole longer turn of
// another tenant before each of them: that one's request runs in each pause. After such a wait it may catch up for
// as long as it has waited: it gets the sequence at once, while it has run for less than the other. Then the
// other has an undisturbed turn again: both have about half of the time.

// catchUp begins such a time when a request is admitted whose tenant runs none. No tenant is owed more than
// the wait, however long it sent nothing.
func (s *Scheduler) catchUp(t *tenant) {
	if s.limits.Sequences > 1 || s.worked < s.catching {
		return
	}
	s.forgetTenants()
	wait, most := s.worked-t.waited, time.Duration(0)
	for _, o := range s.tenants {
		most = max(most, o.ran)
	}
	if t.ran+s.leastOwed() >= most {
		return
	}
	for _, o := range s.tenants {
		o.ran = max(o.ran, most-wait)
	}
	s.catching = s.worked + wait
}

// stopped counts how long a request has run. Its tenant is not forgotten for as long: it may send the next one.
func (s *Scheduler) stopped(r *request) {
	run := s.worked - r.began
	r.tenant.ran += run
	r.tenant.kept = s.worked + run
}

// owed reports whether a tenant gets the only sequence at once, before another or in its place.
func (s *Scheduler) owed(t, o *tenant) bool {
	return s.limits.Sequences == 1 && s.worked < s.catching && s.ran(t)+s.leastOwed() < s.ran(o)
}

func (s *Scheduler) leastOwed() time.Duration {
	return time.Duration(owedTurns*s.limits.Turn) * sparedStep
}

// ran is how long requests of a tenant have run.
func (s *Scheduler) ran(t *tenant) time.Duration {
	sum := t.ran
	for _, r := range s.running {
		if r.tenant == t {
			sum += s.worked - r.began
		}
	}
	return sum
}

// overtaking returns the request that gives way to one of a tenant that is owed time.
func (s *Scheduler) overtaking(idle []*request) (victims []*request, favored *request) {
	for _, w := range idle {
		for _, r := range s.running {
			if r.priority <= w.priority && !r.done() && s.owed(w.tenant, r.tenant) {
				return []*request{r}, w
			}
		}
	}
	return nil, nil
}
