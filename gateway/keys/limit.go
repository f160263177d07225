package keys

import (
	"maps"
	"math"
	"sync"
	"time"
)

// maxDebt is how many minutes of a limit may be owed. No answer, however long a Mac says it
// was, locks a key out for longer.
const maxDebt = 5

// bucket is a token bucket: what may still be used of a limit. It fills evenly, from empty
// to full within a minute. Its level may be negative after a response that was longer than
// what was left.
type bucket struct {
	perMinute float64 // 0 means no limit
	level     float64
	at        time.Time // when level was computed
}

func newBucket(perMinute int64, now time.Time) bucket {
	return bucket{perMinute: float64(perMinute), level: float64(perMinute), at: now}
}

func (b *bucket) fill(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.level = min(b.perMinute, b.level+b.perMinute*passed.Minutes())
		b.at = now
	}
}

// take uses n, or takes nothing and returns how long to wait. More than the limit itself
// never fits.
func (b *bucket) take(n float64, now time.Time) (wait time.Duration, ok bool) {
	if b.perMinute == 0 {
		return 0, true
	}
	b.fill(now)
	if n > b.level {
		return b.until(n), false
	}
	b.level -= n
	return 0, true
}

// add uses n even if less is left, down to the maximum debt, or returns tokens if n is
// negative.
func (b *bucket) add(n float64, now time.Time) {
	if b.perMinute > 0 {
		b.fill(now)
		b.level = min(b.perMinute, max(b.level-n, min(b.level, -maxDebt*b.perMinute)))
	}
}

// until returns how long it takes to fill up to a level.
func (b *bucket) until(level float64) time.Duration {
	minutes := max(0, level-b.level) / b.perMinute
	return time.Duration(math.Ceil(minutes * float64(time.Minute)))
}

// Left is the remainder of one limit of a key.
type Left struct {
	// Limit per minute; 0 means none, and the other fields are unset.
	Limit int64
	// Remaining is what may be used now.
	Remaining int64
	// Reset is how long it takes until the whole limit is available again.
	Reset time.Duration
}

func (b *bucket) left() Left {
	if b.perMinute == 0 {
		return Left{}
	}
	return Left{Limit: int64(b.perMinute), Remaining: int64(max(0, b.level)), Reset: b.until(b.perMinute)}
}

// budget is the usage of one key at this gateway.
type budget struct {
	mu               sync.Mutex // guards the fields after it
	requests, tokens bucket
	// unseen are the tokens that this gateway cannot see, by the Mac that reported them. Each Mac has
	// the whole limit for them, so that a stolen one uses up nothing of the others'.
	unseen map[string]*bucket
}

func newBudget(g *Grant, now time.Time) *budget {
	return &budget{requests: newBucket(g.RequestsPerMinute, now), tokens: newBucket(g.TokensPerMinute, now)}
}

// Verdict is the result of a claim on a limit.
type Verdict struct {
	Left
	OK bool
	// Wait is how long to wait before the same claim would fit.
	Wait time.Duration
	// Never is true if the claim exceeds the limit itself: waiting does not help.
	Never bool
}

// TakeRequest claims one request.
func (k *Key) TakeRequest(now time.Time) Verdict { return k.budget.claim(&k.budget.requests, 1, now) }

// TakeTokens claims the estimated tokens of a request.
func (k *Key) TakeTokens(n int64, now time.Time) Verdict {
	return k.budget.claim(&k.budget.tokens, n, now)
}

// AddTokens corrects a claim: n more tokens were used, or fewer if n is negative.
func (k *Key) AddTokens(n int64, now time.Time) {
	k.budget.mu.Lock()
	defer k.budget.mu.Unlock()
	k.budget.tokens.add(float64(n), now)
}

// AddUnseen counts tokens that only the report of a Mac names.
func (k *Key) AddUnseen(mac string, n int64, now time.Time) {
	b := k.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if n <= 0 || b.tokens.perMinute == 0 {
		return
	}
	of := b.unseen[mac]
	if of == nil {
		maps.DeleteFunc(b.unseen, func(_ string, other *bucket) bool { other.fill(now); return other.level == other.perMinute })
		if b.unseen == nil {
			b.unseen = map[string]*bucket{}
		}
		fresh := newBucket(k.TokensPerMinute, now)
		of = &fresh
		b.unseen[mac] = of
	}
	of.add(float64(n), now)
}

// Exhausted returns the Macs that reported as many unseen tokens as the key may use, and for how long
// they will have.
func (k *Key) Exhausted(now time.Time) map[string]time.Duration {
	b := k.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	var out map[string]time.Duration
	for mac, of := range b.unseen {
		if of.fill(now); of.level < 1 {
			if out == nil {
				out = map[string]time.Duration{}
			}
			out[mac] = of.until(1)
		}
	}
	return out
}

func (b *budget) claim(of *bucket, n int64, now time.Time) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait, ok := of.take(float64(n), now)
	return Verdict{Left: of.left(), OK: ok, Wait: wait, Never: !ok && float64(n) > of.perMinute}
}
