package fuzzapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// atRest bounds the wait until unused connections are closed: the agent's two
	// minutes, and some.
	atRest = 4 * time.Minute
	// slack are goroutines and files of connections that a program may keep open to
	// the others, the API server among them.
	slack = 8
)

// rest is the resource usage of the programs without requests.
type rest struct {
	inFlight          float64
	goroutines, files map[string]float64 // of gateway and agent
	engines           []engine
	reclaims          int
}

// engine is one that runs, with what it says it holds.
type engine struct {
	pid             int
	running, queued int64
	kv              int64
	files           int
}

func (r rest) String() string {
	return fmt.Sprintf("%v in flight; goroutines %v, open files %v; engines (pid, running, queued, KV bytes, files) %v", r.inFlight, r.goroutines, r.files, r.engines)
}

// rest looks.
func (f *fuzz) rest(ctx context.Context) (r rest, err error) {
	r.goroutines, r.files = map[string]float64{}, map[string]float64{}
	if r.inFlight, err = f.FirstGateway().Metric(ctx, "metalfleet_gateway_requests_in_flight"); err != nil {
		return r, err
	}
	agent, err := scrape(ctx, f.metrics)
	if err != nil {
		return r, err
	}
	for name, to := range map[string]map[string]float64{"go_goroutines": r.goroutines, "process_open_fds": r.files} {
		if to["gateway"], err = f.FirstGateway().Metric(ctx, name); err != nil {
			return r, err
		}
		to["agent"] = agent[name]
	}
	for name, n := range r.goroutines {
		if n == 0 || r.files[name] == 0 {
			return r, fmt.Errorf("the %s does not report its goroutines and files", name)
		}
	}
	living, err := f.Agent(macName).Engines()
	if err != nil {
		return r, err
	}
	for _, e := range living {
		state, err := look(ctx, e)
		if err != nil {
			return r, err
		}
		r.engines = append(r.engines, state)
	}
	mac, err := f.Mac(ctx, macName)
	if err != nil {
		return r, err
	}
	r.reclaims = len(mac.Status.Reclaims)
	return r, f.CheckLedger(ctx, macName)
}

func scrape(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", url, err)
	}
	out := map[string]float64{}
	for name, family := range families {
		if family.GetType() == dto.MetricType_GAUGE && len(family.GetMetric()) == 1 {
			out[name] = family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return out, nil
}

// look asks an engine over its own socket.
func look(ctx context.Context, e fleet.Engine) (out engine, err error) {
	out.pid = e.PID
	at := slices.Index(e.Command, "--socket")
	if at < 0 || at+1 == len(e.Command) {
		return out, fmt.Errorf("engine %d names no socket: %s", e.PID, strings.Join(e.Command, " "))
	}
	conn, err := wire.Dial(e.Command[at+1])
	if err != nil {
		return out, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := wire.NewEngineClient(conn).Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 1000})
	if err != nil {
		return out, err
	}
	s, err := watch.Recv()
	if err != nil {
		return out, fmt.Errorf("engine %d: %w", e.PID, err)
	}
	out.running, out.queued, out.kv = s.GetActivity().GetRunning(), s.GetActivity().GetQueued(), s.GetMemory().GetKvInUseBytes()
	open, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(e.PID), "fd"))
	out.files = len(open)
	return out, err
}

// settled waits until everything is as it was before.
func (f *fuzz) settled(ctx context.Context, before rest) (after rest, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, atRest, fmt.Errorf("not within %s", atRest))
	defer cancel()
	err = fleet.Poll(ctx, time.Second, "nothing is left behind", func(ctx context.Context) error {
		var err error
		if after, err = f.rest(ctx); err != nil {
			return err
		}
		return leaked(before, after)
	})
	return after, err
}

// leaked returns the resources that are in use now and were not before.
func leaked(before, after rest) error {
	var errs []error
	if after.inFlight != 0 {
		errs = append(errs, fmt.Errorf("the gateway holds %v requests", after.inFlight))
	}
	for _, name := range []string{"gateway", "agent"} {
		if was, is := before.goroutines[name], after.goroutines[name]; is > was+slack {
			errs = append(errs, fmt.Errorf("the %s has %v goroutines, had %v", name, is, was))
		}
		if was, is := before.files[name], after.files[name]; is > was+slack {
			errs = append(errs, fmt.Errorf("the %s has %v files open, had %v", name, is, was))
		}
	}
	if len(before.engines) != len(after.engines) || after.reclaims != before.reclaims {
		return errors.Join(append(errs, fmt.Errorf("%d engines run, %d did; %d went", len(after.engines), len(before.engines), after.reclaims-before.reclaims))...)
	}
	for i, is := range after.engines {
		was := before.engines[i]
		switch {
		case is.pid != was.pid:
			errs = append(errs, fmt.Errorf("engine %d is another process, %d", was.pid, is.pid))
		case is.running != 0 || is.queued != 0 || is.kv != 0:
			errs = append(errs, fmt.Errorf("engine %d holds %d running and %d waiting requests, %d bytes of keys and values", is.pid, is.running, is.queued, is.kv))
		case is.files > was.files+slack:
			errs = append(errs, fmt.Errorf("engine %d has %d files open, had %d", is.pid, is.files, was.files))
		}
	}
	return errors.Join(errs...)
}
