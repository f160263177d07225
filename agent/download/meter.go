package download

import "time"

// Progress is how far a fetch is.
type Progress struct {
	Done, Total int64
	// BytesPerSecond over the last seconds; 0 while unknown.
	BytesPerSecond float64
	// ETA to the end; negative while unknown.
	ETA time.Duration
}

// Within is the progress of several files, of which those before this one have
// so many bytes, and all of them total.
func (p Progress) Within(before, total int64) Progress {
	return progressOf(before+p.Done, total, p.BytesPerSecond)
}

const meterWindow = 10 * time.Second

// meter derives a rate from what arrived in the last seconds. It is used by
// one goroutine.
type meter struct {
	marks []mark
}

type mark struct {
	at   time.Time
	done int64
}

// observe notes that done bytes are there and returns the rate, 0 if unknown.
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

// reset forgets the past, after a pause or a change of work.
func (m *meter) reset() { m.marks = nil }

// progress makes the figure that callers see.
func progressOf(done, total int64, rate float64) Progress {
	p := Progress{Done: done, Total: total, BytesPerSecond: rate, ETA: -1}
	if rate > 0 && total >= done {
		p.ETA = time.Duration(float64(total-done) / rate * float64(time.Second))
	}
	return p
}
