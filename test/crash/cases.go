package main

import (
	"strings"

	"metalfleet.dev/metalfleet/agent/pool"
)

// way is what makes an engine come or go.
type way string

const (
	// deployed models are loaded because they are there, and asked ones by a request.
	deployed, asked way = "deployed", "asked"
	// deleted models are drained, and evicted ones go because the ceiling fell.
	deleted, evicted way = "deleted", "evicted"
)

// step is one case: the agent dies at a point on the way.
type step struct {
	point string
	way   way
}

func (s step) String() string { return s.point + ", " + string(s.way) }

func (s step) loads() bool { return strings.HasPrefix(s.point, "load/") }

// onDemand models are what requests load and pressure evicts.
func (s step) onDemand() bool { return s.way == asked || s.way == evicted }

// cases are all points that agent/pool has, each on every way that passes it.
func cases() []step {
	var out []step
	for _, p := range pool.FaultPoints() {
		ways := []way{deleted, evicted}
		switch {
		case strings.HasPrefix(p, "load/"):
			ways = []way{deployed, asked}
		case p == pool.FaultReleased: // what is evicted stays assigned
			ways = []way{deleted}
		}
		for _, w := range ways {
			out = append(out, step{p, w})
		}
	}
	return out
}
