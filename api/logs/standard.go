package logs

import (
	"bytes"
	stdlog "log"
	"log/slog"
	"sync"
	"time"
)

const (
	// burst is how many lines of the standard logger are logged in each window.
	burst  = 20
	window = 10 * time.Second
)

// TakeStandard sends the lines of the standard logger, which libraries such as
// net/http use, to log. A peer can cause any number of them: most of a flood is
// dropped, and the next line counts what was.
func TakeStandard(log *slog.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetOutput(&standard{log: log})
}

// standard is the output of the standard logger: each write is one line.
type standard struct {
	log *slog.Logger

	mu    sync.Mutex
	flood flood // guarded by mu
}

// Write implements io.Writer.
func (s *standard) Write(p []byte) (int, error) {
	if dropped, ok := s.admit(time.Now()); ok {
		s.log.Info("A library logged a line", "line", string(bytes.TrimSpace(p)), "dropped", dropped)
	}
	return len(p), nil
}

// admit reports whether a line may be logged, and how many before it were not.
func (s *standard) admit(now time.Time) (dropped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flood.admit(now, burst)
}

// flood counts lines of one kind. The zero value is ready.
type flood struct {
	began   time.Time // of the window
	lines   int       // logged in it
	dropped int       // since the last one that was logged
}

// admit reports whether a line may be logged, of which each window has most, and how many were
// dropped since the last that was.
func (f *flood) admit(now time.Time, most int) (dropped int, ok bool) {
	if now.Sub(f.began) >= window {
		f.began, f.lines = now, 0
	}
	if f.lines == most {
		f.dropped++
		return 0, false
	}
	f.lines++
	dropped, f.dropped = f.dropped, 0
	return dropped, true
}
