// Command gateway measures what the gateway costs beside nginx: the time that it
// adds to a request, requests of a second on one core, processor time of an
// event of a stream, and the memory of a stream that waits. Both forward to the
// same scripted agent with mutual TLS, and each has one core to itself; the
// agent and the clients have the others.
//
// It owns the traffic, the bounds and the record in docs/bench. The gateway is
// the program itself, with API keys, metrics and retries on, beside a real API
// server. It refuses to measure where an answer is not the one that was asked
// for, and where the machine has one core alone.
//
// PEERS=name=url=pid,... measures other routers too. They are started by whoever
// names them and forward to the address that -upstream listens on, in plain
// HTTP; without a pid their processor time and memory stay unknown. A url has
// the path that comes before /v1, if any: http://127.0.0.1:8000/openai.
//
//	go run ./test/bench/gateway        (make bench-gateway)
//
// Start reading at round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rounds        int
	out, peers    string
	upstream, bin string
	short, events time.Duration
	idle, streams int
}

func main() {
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 5, "how often each proxy is measured, in turns")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for gateway.json and gateway.md; empty writes none")
	flag.StringVar(&o.peers, "peers", os.Getenv("PEERS"), "other routers, as name=url or name=url=pid, apart by commas")
	flag.StringVar(&o.upstream, "upstream", "127.0.0.1:18080", "`address` of the scripted agent for peers, in plain HTTP")
	flag.StringVar(&o.bin, "gateway", filepath.Join("bin", "gateway"), "the gateway's program")
	flag.DurationVar(&o.short, "short", 3*time.Second, "how long short answers are asked at each number of connections")
	flag.DurationVar(&o.events, "events", 4*time.Second, "how long streams send events")
	flag.IntVar(&o.idle, "idle", 900, "streams that wait at once")
	flag.IntVar(&o.streams, "streams", 64, "streams that send events at once")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gateway:", err)
		os.Exit(1)
	}
}

// pinned says, in the environment, that this process has its cores already.
const pinned = "BENCH_GATEWAY_PROXY_CORE"

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	core := os.Getenv(pinned)
	if core == "" {
		return again(ctx)
	}
	peers, err := parsePeers(o.peers)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "mf-bench-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	w, err := newWorld(ctx, scratch, core, o, len(peers) > 0)
	if err != nil {
		return err
	}
	measured, err := w.measure(ctx, peers)
	if err := errors.Join(err, w.stop()); err != nil {
		return err
	}
	r := newReport(measured)
	r.Peer("nginx", w.nginxVersion)
	return r.Finish(o.out)
}

// again runs this program once more, on all cores but one, which is for the
// proxies.
func again(ctx context.Context) error {
	cores, err := allowedCores()
	if err != nil {
		return err
	}
	if len(cores) < 2 {
		return fmt.Errorf("this machine lets us have the cores %v; a proxy needs one for itself, and the clients another", cores)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", strings.Join(cores[1:], ","), self}, os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pinned+"="+cores[0])
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd.Run()
}

// measure asks every proxy the same, round by round, after one round that is
// not counted.
func (w *world) measure(ctx context.Context, peers []*target) (map[string][]figures, error) {
	all := append([]*target{w.nginx, w.ours}, peers...)
	out := map[string][]figures{}
	for n := range w.rounds + 1 {
		direct, err := w.latency(ctx, w.direct)
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			f, err := w.round(ctx, t)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", t.name, n, err)
			}
			f.added = ms(f.p50 - direct)
			fmt.Fprintf(os.Stderr, "%s, round %d of %d: %+v\n", t.name, n, w.rounds, f)
			if n > 0 {
				out[t.name] = append(out[t.name], f)
			}
		}
	}
	return out, nil
}

// figures of one proxy in one round. What needs its processor time or memory is
// zero where neither can be read.
type figures struct {
	p50      time.Duration
	added    float64 // ms
	requests map[int]rate
	event    float64 // us of processor time
	stream   float64 // KiB
}

// rate is what short answers came to.
type rate struct {
	seen float64 // requests a second, by the clock
	core float64 // requests of a second of the proxy's own processor time
}

// connections at which short answers are asked.
func connections() []int { return []int{32, 256} }

// round measures one proxy. A program of ours or nginx is started for it, so
// that memory is that of a fresh one, and its streams come first.
func (w *world) round(ctx context.Context, t *target) (f figures, err error) {
	if err := t.begin(ctx); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, t.end(ctx)) }()
	if _, err := w.latency(ctx, t); err != nil { // connections upstream are made
		return f, err
	}
	if f.stream, err = w.idleStreams(ctx, t); err != nil {
		return f, fmt.Errorf("streams that wait: %w", err)
	}
	if f.p50, err = w.latency(ctx, t); err != nil {
		return f, err
	}
	f.requests = map[int]rate{}
	for _, n := range connections() {
		if f.requests[n], err = w.shortAnswers(ctx, t, n); err != nil {
			return f, fmt.Errorf("short answers on %d connections: %w", n, err)
		}
	}
	if f.event, err = w.eventStreams(ctx, t); err != nil {
		return f, fmt.Errorf("streams of events: %w", err)
	}
	return f, nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
