package download

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// MinRate is the lowest rate that a limit may have, in bytes per second; a lower
// one is probably a wrong unit.
const MinRate = 64 << 10

// Limit bounds the rate of all downloads together. A nil Limit bounds nothing.
type Limit struct {
	now atomic.Pointer[bucket] // nil bounds nothing
}

// bucket is one rate.
type bucket struct {
	*rate.Limiter
	// piece is the most that is read at once: a quarter of a second's worth, so
	// that no connection waits so long that it counts as stalled.
	piece int64
}

// NewLimit returns a limit in bytes per second, at least MinRate; 0 or less bounds
// nothing.
func NewLimit(bytesPerSecond int64) *Limit {
	l := &Limit{}
	l.Set(bytesPerSecond)
	return l
}

// Set changes the limit, also that of running downloads.
func (l *Limit) Set(bytesPerSecond int64) {
	if bytesPerSecond <= 0 {
		l.now.Store(nil)
		return
	}
	bytesPerSecond = max(bytesPerSecond, MinRate)
	if b := l.now.Load(); b != nil && b.Limit() == rate.Limit(bytesPerSecond) {
		return
	}
	piece := min(bytesPerSecond/4, copyBytes)
	l.now.Store(&bucket{Limiter: rate.NewLimiter(rate.Limit(bytesPerSecond), int(piece)), piece: piece})
}

// bucket returns the current rate; nil if there is none.
func (l *Limit) bucket() *bucket {
	if l == nil {
		return nil
	}
	return l.now.Load()
}

// most is how much may be read at once.
func (l *Limit) most() int64 {
	if b := l.bucket(); b != nil {
		return b.piece
	}
	return copyBytes
}

// took waits until the limit allows the n bytes that were read. They may be more than
// one piece, if the limit was lowered after they were read.
func (l *Limit) took(ctx context.Context, n int) error {
	if a, ok := ctx.Value(allowanceKey{}).(*allowance); ok {
		defer a.extend(time.Now())
	}
	for n > 0 {
		b := l.bucket()
		if b == nil {
			return nil
		}
		some := min(n, int(b.piece))
		err := b.WaitN(ctx, some)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		n -= some
	}
	return nil
}

// WithTime returns a context that ends with cause after d, in which the waits for a Limit do not count.
func WithTime(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &allowance{until: time.Now().Add(d)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(d, func() {
		if left := a.left(); left > 0 {
			a.timer.Reset(left)
			return
		}
		cancel(cause)
	})
	return context.WithValue(ctx, allowanceKey{}, a), func() {
		a.timer.Stop()
		cancel(context.Canceled)
	}
}

// allowance is the time of a context of WithTime.
type allowance struct {
	timer *time.Timer

	mu    sync.Mutex
	until time.Time // guarded by mu
}

type allowanceKey struct{}

// extend adds the time since then.
func (a *allowance) extend(since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = a.until.Add(time.Since(since))
}

func (a *allowance) left() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Until(a.until)
}
