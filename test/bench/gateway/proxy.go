package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

type proxyOptions struct {
	peers, upstream string
	// short is how long short answers are asked for at each number of connections,
	// events how long streams send events.
	short, events time.Duration
	// idle streams wait at once, streams send events at once.
	idle, streams int
}

func proxyScenario(o *proxyOptions) scenario.Scenario {
	return scenario.Scenario{
		Name: "proxy", Title: "What the gateway costs next to nginx", Rounds: 5,
		Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error { return runProxy(ctx, e, r, *o) },
		About: `The gateway's program (API keys, metrics and retries on, its table from a real API server) and nginx, each on a core of its own,
started again for each round. Clients speak HTTP/1.1 without TLS to both; both reach the same scripted agent with mutual TLS 1.3, the gateway
in HTTP/2, nginx in HTTP/1.1 on connections that it keeps. Clients and agent have the other cores. Added time is the median of sequential
requests, minus that of requests sent straight to the agent. Requests by the clock are what clients saw, and are limited by clients and agent
as well; requests of a core are those of a second of the proxy's own processor time. An event is one of 64 streams with 50 per second each. A
waiting stream has sent one event and nothing for 3 s; it counts what the proxy's memory (PSS) grew by.`,
	}
}

// Names of the proxies that are always measured, and of the agent itself.
const (
	nameOurs  = "gateway"
	nameNginx = "nginx"
	nameAgent = "agent"
)

const (
	mostAdded    = 0.2  // ms more than nginx adds
	leastRate    = 0.35 // of nginx's requests
	mostEvent    = 2    // times nginx's processor time
	mostStreamKB = 64
	leastAhead   = 1 // of the requests of another proxy
)

// connections at which short answers are asked for.
var connections = []int{32, 256}

func runProxy(ctx context.Context, e *scenario.Env, r *report.Report, o proxyOptions) error {
	peers, err := parsePeers(o.peers)
	if err != nil {
		return err
	}
	cores, err := proc.Cores()
	if err != nil {
		return err
	}
	if len(cores) < 2 {
		return fmt.Errorf("this process may run on cores %v; the proxy needs one and its clients another", cores)
	}
	if err := proc.Pin(cores[1:]); err != nil {
		return err
	}
	e.Cleanup(func() error { return proc.Pin(cores) })
	w, err := newWorld(ctx, e, strconv.Itoa(cores[0]), o)
	if err != nil {
		return err
	}
	r.Peer("nginx", w.nginxVersion)
	turns := []scenario.Turn{{Name: nameAgent, Run: func(ctx context.Context) (scenario.Values, error) {
		d, err := w.latency(ctx, w.direct)
		return scenario.Values{"p50": ms(d)}, err
	}}}
	for _, t := range append([]*target{w.nginx, w.ours}, peers...) {
		turns = append(turns, scenario.Turn{Name: t.name, Run: func(ctx context.Context) (scenario.Values, error) { return w.round(ctx, t) }})
	}
	return e.Measure(ctx, r, 1, proxyFigures(peers), scenario.Group{Name: "proxies", Turns: turns})
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func seen(n int) string { return fmt.Sprintf("/seen %d", n) }
func core(n int) string { return fmt.Sprintf("/core %d", n) }

// proxyFigures are those next to nginx, then those of each proxy.
func proxyFigures(peers []*target) []scenario.Figure {
	out := []scenario.Figure{{Name: "added to a request, gateway - nginx", Unit: "ms", Of: nameOurs + "/p50", Less: nameNginx + "/p50", Bound: report.AtMost(mostAdded).Of("aim 0.1")}}
	for _, n := range connections {
		out = append(out,
			scenario.Figure{Name: fmt.Sprintf("requests by the clock on %d connections, gateway / nginx", n), Of: nameOurs + seen(n), Over: nameNginx + seen(n),
				Bound: report.AtLeast(leastRate).Of("aim 0.65")},
			scenario.Figure{Name: fmt.Sprintf("requests of a core on %d connections, gateway / nginx", n), Of: nameOurs + core(n), Over: nameNginx + core(n)})
	}
	out = append(out,
		scenario.Figure{Name: "processor time of an event, gateway / nginx", Of: nameOurs + "/event", Over: nameNginx + "/event", Bound: report.AtMost(mostEvent).Of("aim 1.3")},
		scenario.Figure{Name: "memory of a waiting stream, gateway", Unit: "KiB", Of: nameOurs + "/stream", Bound: report.AtMost(mostStreamKB).Of("aim 48")})
	out = append(append(out, figuresOf(nameOurs, true)...), figuresOf(nameNginx, true)...)
	for _, p := range peers {
		for _, n := range connections {
			out = append(out, scenario.Figure{Name: fmt.Sprintf("requests by the clock on %d connections, gateway / %s", n, p.name),
				Of: nameOurs + seen(n), Over: p.name + seen(n), Bound: report.AtLeast(leastAhead)})
		}
		out = append(out, figuresOf(p.name, p.pid != 0)...)
	}
	return out
}

// figuresOf a proxy; processor time and memory need its process.
func figuresOf(name string, process bool) []scenario.Figure {
	out := []scenario.Figure{{Name: name + ": added to a request", Unit: "ms", Of: name + "/p50", Less: nameAgent + "/p50"}}
	for _, n := range connections {
		out = append(out, scenario.Figure{Name: fmt.Sprintf("%s: requests by the clock, %d connections", name, n), Unit: "1/s", Of: name + seen(n)})
		if process {
			out = append(out, scenario.Figure{Name: fmt.Sprintf("%s: requests of a core, %d connections", name, n), Unit: "1/s", Of: name + core(n)})
		}
	}
	if process {
		out = append(out,
			scenario.Figure{Name: name + ": processor time of an event", Unit: "us", Of: name + "/event"},
			scenario.Figure{Name: name + ": memory of a waiting stream", Unit: "KiB", Of: name + "/stream"})
	}
	return out
}

// round measures one proxy. The gateway and nginx are started for it, so that
// memory is that of a fresh process; waiting streams come first.
func (w *world) round(ctx context.Context, t *target) (v scenario.Values, err error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.end(ctx)) }()
	if _, err := w.latency(ctx, t); err != nil { // opens connections to the agent
		return nil, err
	}
	v = scenario.Values{}
	if err := w.idleStreams(ctx, t, v); err != nil {
		return nil, fmt.Errorf("waiting streams: %w", err)
	}
	p50, err := w.latency(ctx, t)
	if err != nil {
		return nil, err
	}
	v["p50"] = ms(p50)
	for _, n := range connections {
		if err := w.shortAnswers(ctx, t, n, v); err != nil {
			return nil, fmt.Errorf("short answers on %d connections: %w", n, err)
		}
	}
	if err := w.eventStreams(ctx, t, v); err != nil {
		return nil, fmt.Errorf("streams of events: %w", err)
	}
	return v, nil
}
