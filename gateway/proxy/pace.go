package proxy

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/health"
)

const (
	// paceEach is how many requests of one client begin in each second, for each processor, while
	// there are other clients. They take a quarter of its time: a request without work for the
	// gateway takes 0.05 to 0.3 ms. As many may begin at once.
	paceEach = 1000
	// paceAlone is how long a client has to be the only one to be free of that limit.
	paceAlone = 10 * time.Minute
	// paceLongest is how long a request waits at most: less than unreadTime, and than the probes of a
	// load balancer have, whose address all of its clients may share. Those of 2,000 connections wait
	// less; those of clients that have left would wait longer, which nothing detects before a body is read.
	paceLongest = 1500 * time.Millisecond
)

// pace keeps the requests of one client from taking all processors. Each connection with data
// waits in the same queue for a processor, and a client with a thousand would have all others
// wait a thousand times as long. Requests beyond the pace wait without a processor. Those of clients without
// a key, where one is required, take turns before they are parsed.
type pace struct {
	mu    sync.Mutex   // guards the fields after it
	debts health.Debts // requests, by client
	// last is the client of the last request, and changed when that was another one.
	last    string
	changed time.Time
}

func newPace() *pace {
	most := float64(paceEach * runtime.GOMAXPROCS(0))
	return &pace{debts: health.Debts{Most: most, PerSecond: most}}
}

// begin counts a request of a client, and returns how long it has to wait. probes are requests
// that any monitor sends; they show no other client.
func (p *pace) begin(client string, probe bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !probe && client != p.last {
		if p.last != "" {
			p.changed = now
		}
		p.last = client
	}
	if p.changed.IsZero() || now.Sub(p.changed) >= paceAlone {
		return 0
	}
	wait := p.debts.Wait(client, 1, now)
	p.debts.Add(client, 1, now)
	return min(wait, paceLongest)
}

// left counts a request no more that ended while it waited: it took no processor, and many clients
// may have one address.
func (p *pace) left(client string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.debts.Add(client, -1, now)
}

// await waits until a request may begin. Meanwhile its connection gives way to others.
func (p *pace) await(ctx context.Context, client string, probe bool, r *http.Request) error {
	wait := p.begin(client, probe, time.Now())
	if wait == 0 {
		return nil
	}
	intake.Pause(r.Context())
	enough := time.NewTimer(wait)
	defer enough.Stop()
	select {
	case <-enough.C:
	case <-ctx.Done():
		p.left(client, time.Now())
		return dispatch.Ended(ctx)
	}
	intake.Resume(r)
	return nil
}
