package notice

import (
	"cmp"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/controllers/fleet"
)

// burst and interval bound the Events that one Mac can cause: a whole Mac may be drained at
// once, and a Mac may report what it likes.
const (
	burst    = 2 * fleet.MaxAssignments
	interval = 5 * time.Second
)

// limitsKept is how many Macs are remembered before those that have their whole burst are
// forgotten.
const limitsKept = 1024

// Limits bound what Macs cause, such as the Events about what they report: each Mac has a burst,
// then one per interval. The zero value has the limits of Events; it is safe for concurrent use.
type Limits struct {
	Burst int
	Every time.Duration

	mu sync.Mutex
	of map[string]*rate.Limiter // guarded by mu
}

// Allow reports whether a Mac may cause another one now.
func (l *Limits) Allow(mac string, now time.Time) bool { return l.AllowN(mac, now, 1) }

// AllowN reports whether a Mac may cause n now.
func (l *Limits) AllowN(mac string, now time.Time, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit, known := l.of[mac]
	if !known {
		l.makeRoom(now)
		limit = rate.NewLimiter(rate.Every(cmp.Or(l.Every, interval)), cmp.Or(l.Burst, burst))
		l.of[mac] = limit
	}
	return limit.AllowN(now, n)
}

// Within returns the notices that a Mac may cause now.
func (l *Limits) Within(mac string, now time.Time, notices []Notice) []Notice {
	var out []Notice
	for _, n := range notices {
		if l.Allow(mac, now) {
			out = append(out, n)
		}
	}
	return out
}

func (l *Limits) makeRoom(now time.Time) {
	if l.of == nil {
		l.of = map[string]*rate.Limiter{}
	}
	if len(l.of) < limitsKept {
		return
	}
	for mac, limit := range l.of {
		if limit.TokensAt(now) >= float64(limit.Burst()) {
			delete(l.of, mac)
		}
	}
}
