package proxy

import (
	"context"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
)

const (
	// auditWindow is the period in which the lines of one client are counted, and auditEach how
	// many are logged: the rest of a flood of refused requests would only displace the log.
	auditWindow = 10 * time.Second
	auditEach   = 100
	// auditClients is how many clients without a valid key have lines in one period.
	auditClients = 100
)

// auditor bounds the lines about clients of one kind: those of the audit log, or about failed
// requests. The zero value is ready for use.
type auditor struct {
	mu      sync.Mutex // guards the fields after it
	began   time.Time  // of the period
	keys    map[string]int
	others  map[string]int // by address
	dropped int            // since the last line
}

// admit reports whether a line about a client may be logged, and how many were not since the
// last one. key is empty for a client without a valid key.
func (a *auditor) admit(key, address string, now time.Time) (dropped int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys == nil || now.Sub(a.began) >= auditWindow {
		a.began, a.keys, a.others = now, map[string]int{}, map[string]int{}
	}
	of, client := a.keys, key
	if key == "" {
		of, client = a.others, intake.AddressOf(address)
	}
	if n := of[client]; n == auditEach || n == 0 && key == "" && len(of) == auditClients {
		a.dropped++
		return 0, false
	}
	of[client]++
	dropped, a.dropped = a.dropped, 0
	return dropped, true
}

// denied counts a request that was refused because of its key, and writes its line of the
// audit log.
func (g *gate) denied(ctx context.Context, c caller, why keys.Reason, model string) {
	if g.keys == nil {
		return
	}
	g.keys.CountRefusal(c.key, why)
	if dropped, ok := g.audit.admit(c.name(), c.address, g.keys.Now()); ok {
		logOf(ctx).WithName("audit").Info("Request refused", "key", c.name(), "client", c.address, "reason", why,
			"model", openai.Shorten(model), "dropped", dropped)
	}
}
