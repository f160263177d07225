package constraint

import (
	"maps"
	"sync"
	"time"
)

const (
	// MaxWait is how long the other rows of a step wait for the masks of a tenant's requests. If a
	// mask takes longer, only its own row waits.
	MaxWait = 20 * time.Millisecond
	// refill is how long after a wait of MaxWait the others wait as long for that tenant again: in all
	// they wait for a tenth of the time.
	refill = 10 * MaxWait
	// leastSweep is how many tenants are not worth a sweep.
	leastSweep = 64
)

// patience is how long the other rows of a step still wait for the masks of each tenant. Requests
// have none by themselves: short ones would each come with all of it.
type patience struct {
	mu sync.Mutex
	// The fields after it are guarded by mu. full is when a tenant has MaxWait again, if it has less,
	// and sweep how many tenants there are when those that have it are next removed.
	full  map[string]time.Time
	sweep int
}

// left returns how long others wait for a tenant now.
func (p *patience) left(tenant string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	owed := min(refill, max(0, time.Until(p.full[tenant])))
	return MaxWait - owed*MaxWait/refill
}

// spend counts a wait for a tenant, which may be longer than what was left.
func (p *patience) spend(tenant string, waited time.Duration) {
	if waited <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.full) >= max(leastSweep, p.sweep) {
		maps.DeleteFunc(p.full, func(_ string, full time.Time) bool { return !full.After(now) })
		p.sweep = 2 * len(p.full)
	}
	if p.full == nil {
		p.full = map[string]time.Time{}
	}
	owed := max(0, p.full[tenant].Sub(now)) + min(waited, MaxWait)*refill/MaxWait
	p.full[tenant] = now.Add(owed)
}
