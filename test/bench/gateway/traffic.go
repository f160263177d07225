package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// settle is how long streams have waited when memory is read.
const settle = 3 * time.Second

// cpuTime of a proxy so far; 0 if its process is unknown.
func (t *target) cpuTime() (time.Duration, error) {
	if t.pid == 0 {
		return 0, nil
	}
	return proc.CPUTime(t.pid)
}

// latency is the median of sequential requests.
func (w *world) latency(ctx context.Context, t *target) (time.Duration, error) {
	const requests = 400
	c, err := t.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	request, want := t.request(question(askShort, 16)), len(w.agent.short)
	took := make([]time.Duration, 0, requests)
	for range requests {
		began := time.Now()
		if err := c.whole(request, want); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	slices.Sort(took)
	return took[requests/2], nil
}

// shortAnswers has n clients ask, each again as soon as it was answered.
func (w *world) shortAnswers(ctx context.Context, t *target, n int, v scenario.Values) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conns, err := t.dialAll(ctx, n)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	request, want := t.request(question(askShort, 16)), len(w.agent.short)
	askFor := func(d time.Duration) (int, error) {
		until := time.Now().Add(d)
		return each(conns, func(c *conn) (count int, err error) {
			for ; time.Now().Before(until); count++ {
				if err := c.whole(request, want); err != nil {
					return count, err
				}
			}
			return count, nil
		})
	}
	if _, err := askFor(w.short / 4); err != nil { // warms every connection up
		return err
	}
	before, err := t.cpuTime()
	if err != nil {
		return err
	}
	began := time.Now()
	count, err := askFor(w.short)
	if err != nil {
		return err
	}
	v[seen(n)[1:]] = float64(count) / time.Since(began).Seconds()
	after, err := t.cpuTime()
	if t.pid != 0 {
		v[core(n)[1:]] = float64(count) / (after - before).Seconds()
	}
	return err
}

// eventStreams measures the proxy's processor time for one event.
func (w *world) eventStreams(ctx context.Context, t *target, v scenario.Values) error {
	ctx, cancel := context.WithTimeout(ctx, w.events+patience)
	defer cancel()
	conns, err := t.dialAll(ctx, w.streams)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	want := int(w.events.Seconds() * eventsEach)
	request := t.request(question(askEvents, want))
	before, err := t.cpuTime()
	if err != nil {
		return err
	}
	count, err := each(conns, func(c *conn) (int, error) { return c.events(request, w.events+patience, want) })
	if err != nil {
		return err
	}
	after, err := t.cpuTime()
	if t.pid != 0 {
		v["event"] = float64((after - before).Microseconds()) / float64(count)
	}
	return err
}

// idleStreams measures what the proxy's memory grows by for a waiting stream.
func (w *world) idleStreams(ctx context.Context, t *target, v scenario.Values) error {
	memory := func() (int64, error) {
		if t.pid == 0 {
			return 0, nil
		}
		return proc.Shared(t.pid)
	}
	before, err := memory()
	if err != nil {
		return err
	}
	conns, err := t.dialAll(ctx, w.idle)
	if err != nil {
		return err
	}
	defer closeAll(conns)
	request := t.request(question(askIdle, 16))
	if _, err := each(conns, func(c *conn) (int, error) { return 1, c.first(request) }); err != nil {
		return err
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := memory()
	if t.pid != 0 {
		v["stream"] = float64(after-before) / 1024 / float64(w.idle)
	}
	return err
}

func (t *target) dialAll(ctx context.Context, n int) ([]*conn, error) {
	conns := make([]*conn, 0, n)
	for range n {
		c, err := t.dial(ctx)
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// each runs f for every connection at once, and adds what it counted.
func each(conns []*conn, f func(*conn) (int, error)) (sum int, err error) {
	counts, errs := make([]int, len(conns)), make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { counts[i], errs[i] = f(c) })
	}
	wg.Wait()
	for i, n := range counts {
		if sum += n; err == nil {
			err = errs[i] // the first is enough
		}
	}
	return sum, err
}
