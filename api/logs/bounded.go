package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// eachBurst is how many lines with one message are logged in each window, and mostMessages
	// how many messages are counted apart: all others together are one.
	eachBurst    = 100
	mostMessages = 512
)

// Bounded returns a handler that drops most of a flood of records with the same message: a
// client or another machine can cause any number of them, and no program removes what launchd
// writes to a file. The next line with that message has the number of those that were dropped.
// Details, which a person has to turn on, are not bounded.
func Bounded(h slog.Handler) slog.Handler {
	return &bounded{Handler: h, floods: &floods{of: map[string]*flood{}}}
}

// bounded is a handler of Bounded. Those with more attributes share the counts.
type bounded struct {
	slog.Handler
	floods *floods
}

// Handle implements slog.Handler.
func (b *bounded) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return b.Handler.Handle(ctx, r)
	}
	dropped, ok := b.floods.admit(r.Message, time.Now())
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped", dropped))
	}
	return b.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (b *bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &bounded{b.Handler.WithAttrs(attrs), b.floods}
}

// WithGroup implements slog.Handler.
func (b *bounded) WithGroup(name string) slog.Handler {
	return &bounded{b.Handler.WithGroup(name), b.floods}
}

// floods count the lines of each message.
type floods struct {
	mu sync.Mutex // guards of, and what it has
	of map[string]*flood
}

// admit reports whether a line with a message may be logged, and how many before it were not.
func (f *floods) admit(message string, now time.Time) (dropped int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[message] == nil && len(f.of) >= mostMessages {
		message = ""
	}
	one := f.of[message]
	if one == nil {
		one = &flood{}
		f.of[message] = one
	}
	return one.admit(now, eachBurst)
}
