package pool

import (
	"cmp"
	"slices"

	"metalfleet.dev/metalfleet/metal/wire"
)

// Remembered are the prompt caches of a replica's engines, in memory.
type Remembered struct {
	UID string
	// Held: an engine runs that caches prompts, in Bytes of BudgetBytes.
	Held               bool
	Bytes, BudgetBytes int64
	// QueriedTokens of prompts were looked for since this agent started, and
	// RestoredTokens of them were not computed.
	QueriedTokens, RestoredTokens int64
}

// plus adds what one engine counted; a nil cache counted nothing.
func (r Remembered) plus(c *wire.PrefixCache) Remembered {
	r.QueriedTokens += c.GetQueriedTokens()
	r.RestoredTokens += c.GetRestoredTokens()
	return r
}

// remembered lists what each replica remembers, over all its engines of this
// agent's life; the caller holds mu.
func (rs *replicas) remembered() (all []Remembered) {
	for _, e := range rs.entries {
		r := e.remembered
		if r.UID = e.key.UID; e.engine != nil {
			c := e.engine.status.GetPrefixCache()
			r = r.plus(c)
			if c != nil && e.engine.state != Exited {
				r.Held, r.Bytes, r.BudgetBytes = true, c.GetBytes(), c.GetBudgetBytes()
			}
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Remembered) int { return cmp.Compare(a.UID, b.UID) })
	sums := all[:0] // one for each replica, over its epochs
	for _, r := range all {
		if n := len(sums); n > 0 && sums[n-1].UID == r.UID {
			last := &sums[n-1]
			last.Held = last.Held || r.Held
			last.Bytes += r.Bytes
			last.BudgetBytes += r.BudgetBytes
			last.QueriedTokens += r.QueriedTokens
			last.RestoredTokens += r.RestoredTokens
			continue
		}
		sums = append(sums, r)
	}
	return sums
}
