package download

import (
	"math"
	"time"
)

// Progress is the progress of a fetch.
type Progress struct {
	Done, Total int64
	// BytesPerSecond over the last seconds; 0 while unknown.
	BytesPerSecond float64
	// ETA is the estimated time to the end; negative while unknown.
	ETA time.Duration
}

// Within returns the progress of several files: those before this one have before
// bytes, and all of them total.
func (p Progress) Within(before, total int64) Progress {
	return progressOf(before+p.Done, total, p.BytesPerSecond)
}

const meterWindow = 10 * time.Second

// meter computes a rate from the bytes of the last seconds. It is used by one
// goroutine.
type meter struct {
	marks []mark
}

type mark struct {
	at   time.Time
	done int64
}

// observe records that done bytes have arrived and returns the rate, 0 if
// unknown.
func (m *meter) observe(now time.Time, done int64) float64 {
	m.marks = append(m.marks, mark{now, done})
	for len(m.marks) > 2 && now.Sub(m.marks[1].at) >= meterWindow {
		m.marks = m.marks[1:]
	}
	first := m.marks[0]
	span := now.Sub(first.at).Seconds()
	if span < 0.1 || done <= first.done {
		return 0
	}
	return float64(done-first.done) / span
}

// reset starts over, after a pause or a change of work.
func (m *meter) reset() { m.marks = nil }

// progressOf returns the figures for callers.
func progressOf(done, total int64, rate float64) Progress {
	p := Progress{Done: done, Total: total, BytesPerSecond: rate, ETA: -1}
	if rate > 0 && total >= done {
		p.ETA = time.Duration(min(math.MaxInt32, float64(total-done)/rate) * float64(time.Second))
	}
	return p
}
