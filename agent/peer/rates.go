package peer

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Requests of one Mac: each costs a verification of its grant, so that requestRate a
// second are verified after requestBurst. A copy needs one for each file.
const (
	requestRate, requestBurst = 100, 500
	// maxRates is how many Macs are remembered before those that rest are not.
	maxRates = 1024
)

// rates bound the requests of each Mac. Its zero value is ready to use.
type rates struct {
	mu sync.Mutex
	by map[string]*rate.Limiter // guarded by mu
}

// allow reports whether a request of a Mac may be verified now.
func (r *rates) allow(mac string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.by[mac]
	if l == nil {
		if len(r.by) >= maxRates {
			maps.DeleteFunc(r.by, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= requestBurst })
		}
		if r.by == nil {
			r.by = map[string]*rate.Limiter{}
		}
		l = rate.NewLimiter(requestRate, requestBurst)
		r.by[mac] = l
	}
	return l.AllowN(now, 1)
}
