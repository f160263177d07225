package health

import "time"

const (
	// maxDebts is how many times its limit a client may owe: its next requests wait for longer.
	maxDebts = 8
	// forgetEvery is how often debts that are paid are dropped.
	forgetEvery = 10 * time.Second
)

// Debts are what clients owe for work that they cause and do not pay with requests of their
// own. Each may owe Most, and pays PerSecond. It is not safe for concurrent use.
type Debts struct {
	Most, PerSecond float64

	of     map[string]debt
	forgot time.Time
}

type debt struct {
	owed float64
	at   time.Time
}

func (d *Debts) owed(client string, now time.Time) float64 {
	of, ok := d.of[client]
	if !ok {
		return 0
	}
	return max(0, of.owed-d.PerSecond*max(0, now.Sub(of.at).Seconds()))
}

// Wait returns how long a client has to wait before it may owe n more; 0 if it may now. One
// who owes nothing may owe any n.
func (d *Debts) Wait(client string, n float64, now time.Time) time.Duration {
	over := d.owed(client, now) + min(n, d.Most) - d.Most
	return max(0, time.Duration(over/d.PerSecond*float64(time.Second)))
}

// Add adds to what a client owes.
func (d *Debts) Add(client string, n float64, now time.Time) {
	if now.Sub(d.forgot) >= forgetEvery {
		d.forgot = now
		for client := range d.of {
			if d.owed(client, now) == 0 {
				delete(d.of, client)
			}
		}
	}
	if d.of == nil {
		d.of = map[string]debt{}
	}
	d.of[client] = debt{min(d.owed(client, now)+n, maxDebts*d.Most), now}
}
