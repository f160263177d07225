// Package gateway measures the gateway: what it costs next to nginx and other
// proxies, what it adds to the first token of a stream, and what its choice of
// replicas is worth.
//
// It owns the scripted agent, the traffic, the bounds, and the fleet of engines
// for routing. It refuses to measure an answer that is not the one asked for.
//
// Start reading at Subject.
package gateway

import (
	"flag"
	"os"
	"time"

	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// Subject is `bench gateway`.
func Subject() scenario.Subject {
	p := &proxyOptions{short: 3 * time.Second, events: 4 * time.Second, idle: 900, streams: 64}
	requests := 240
	return scenario.Subject{
		Name: "gateway", Help: "cost next to nginx, time added to the first token, routing policies",
		Flags: func(f *flag.FlagSet) {
			f.StringVar(&p.peers, "peers", os.Getenv("PEERS"), "proxy: other `proxies`, as name=url or name=url=pid, separated by commas; they forward to -upstream")
			f.StringVar(&p.upstream, "upstream", "127.0.0.1:18080", "proxy: `address` of the scripted agent for -peers, in plain HTTP")
			f.IntVar(&requests, "requests", requests, "routing: `number` of requests of a run")
		},
		Scenarios: []scenario.Scenario{proxyScenario(p), firstTokenScenario, routingScenario(&requests)},
	}
}
