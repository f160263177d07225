package download

import (
	"context"

	"golang.org/x/time/rate"
)

// MinRate is the lowest rate that a limit may have, in bytes per second; a lower
// one is probably a wrong unit.
const MinRate = 64 << 10

// Limit bounds the rate of all downloads together. A nil Limit bounds nothing.
type Limit struct {
	bucket *rate.Limiter
	// piece is the most that is read at once: a quarter of a second's worth, so
	// that no connection waits so long that it counts as stalled.
	piece int64
}

// NewLimit returns a limit in bytes per second, at least MinRate; nil for 0 or
// less.
func NewLimit(bytesPerSecond int64) *Limit {
	if bytesPerSecond <= 0 {
		return nil
	}
	bytesPerSecond = max(bytesPerSecond, MinRate)
	piece := min(bytesPerSecond/4, copyBytes)
	return &Limit{bucket: rate.NewLimiter(rate.Limit(bytesPerSecond), int(piece)), piece: piece}
}

// most is how much may be read at once.
func (l *Limit) most() int64 {
	if l == nil {
		return copyBytes
	}
	return l.piece
}

// took waits until the limit allows the n bytes that were read.
func (l *Limit) took(ctx context.Context, n int) error {
	if l == nil || n == 0 {
		return nil
	}
	err := l.bucket.WaitN(ctx, n)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
