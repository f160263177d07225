package main

import (
	"fmt"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// Names of the two that are always measured.
const (
	nameOurs  = "gateway"
	nameNginx = "nginx"
)

// The bounds of the issue, beside nginx.
const (
	mostAdded    = 0.2  // ms more than nginx adds
	leastRate    = 0.35 // of its requests
	mostEvent    = 2    // times its processor time
	mostStreamKB = 64
	leastAhead   = 1 // of a peer's requests
)

const about = "`make bench-gateway`: the gateway's own program (API keys, metrics and retries on, its table from a real API server) beside nginx, each on one core\n" +
	"of its own, started anew for each round and measured in turns. Clients speak HTTP/1.1 without TLS to both; both reach the same scripted agent with\n" +
	"mutual TLS 1.3, the gateway in HTTP/2, nginx in HTTP/1.1 on connections that it keeps. Added time is the median of requests one after the other, less\n" +
	"that of requests which reach the agent without a proxy. Requests by the clock are what clients saw, where clients and agent on the other core may be slower\n" +
	"than a proxy: nginx is never busy then. Requests of a core are those of a second of the proxy's own processor time, which says what it could do. An event\n" +
	"is one of 64 streams with 50 a second each; a stream that waits has sent one event and nothing in 3 s since, and counts what its proxy's memory (PSS) grew by."

// newReport judges ours, beside nginx, round by round.
func newReport(m map[string][]figures) *report.Report {
	r := report.New("gateway", "What the gateway costs", about)
	ours, nginx := m[nameOurs], m[nameNginx]
	pick := func(of []figures, f func(figures) float64) []float64 {
		var out []float64
		for _, one := range of {
			out = append(out, f(one))
		}
		return out
	}
	r.Add("added to a request, beside what nginx adds", "ms", report.AtMost(mostAdded).Of("aim 0.1"), differences(pick(ours, added), pick(nginx, added))...)
	for _, n := range connections() {
		seen := func(f figures) float64 { return f.requests[n].seen }
		core := func(f figures) float64 { return f.requests[n].core }
		r.Ratio(fmt.Sprintf("requests by the clock on %d connections, gateway / nginx", n), report.AtLeast(leastRate).Of("aim 0.65"), pick(ours, seen), pick(nginx, seen))
		r.Ratio(fmt.Sprintf("requests of a core on %d connections, gateway / nginx", n), report.Bound{}, pick(ours, core), pick(nginx, core))
	}
	r.Ratio("processor time of an event, gateway / nginx", report.AtMost(mostEvent).Of("aim 1.3"), pick(ours, event), pick(nginx, event))
	r.Add("memory of a stream that waits, gateway", "KiB", report.AtMost(mostStreamKB).Of("aim 48"), pick(ours, stream)...)
	for _, name := range order(m) {
		of := m[name]
		r.Add(name+": added to a request", "ms", report.Bound{}, pick(of, added)...)
		for _, n := range connections() {
			if name != nameOurs && name != nameNginx {
				r.Ratio(fmt.Sprintf("requests by the clock on %d connections, gateway / %s", n, name), report.AtLeast(leastAhead),
					pick(ours, func(f figures) float64 { return f.requests[n].seen }), pick(of, func(f figures) float64 { return f.requests[n].seen }))
			}
			if known(of) {
				r.Add(fmt.Sprintf("%s: requests of a core, %d connections", name, n), "1/s", report.Bound{}, pick(of, func(f figures) float64 { return f.requests[n].core })...)
			}
			r.Add(fmt.Sprintf("%s: requests by the clock, %d connections", name, n), "1/s", report.Bound{}, pick(of, func(f figures) float64 { return f.requests[n].seen })...)
		}
		if known(of) {
			r.Add(name+": processor time of an event", "us", report.Bound{}, pick(of, event)...)
			r.Add(name+": memory of a stream that waits", "KiB", report.Bound{}, pick(of, stream)...)
		}
	}
	return r
}

func added(f figures) float64  { return f.added }
func event(f figures) float64  { return f.event }
func stream(f figures) float64 { return f.stream }

// known says that the processor time and memory of a proxy could be read.
func known(of []figures) bool {
	return len(of) > 0 && !slices.ContainsFunc(of, func(f figures) bool { return f.event == 0 })
}

// differences of rounds; rounds that do not pair up are none.
func differences(a, b []float64) []float64 {
	if len(a) != len(b) {
		return nil
	}
	out := slices.Clone(a)
	for i := range b {
		out[i] -= b[i]
	}
	return out
}

// order has ours first, then nginx, then peers by name.
func order(m map[string][]figures) []string {
	out := []string{nameOurs, nameNginx}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if name != nameOurs && name != nameNginx {
			out = append(out, name)
		}
	}
	return out
}
