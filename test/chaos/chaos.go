package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// picksMost is how many milliseconds a dead Mac may stay in a gateway's picks.
	picksMost = 2000.0
	// elsewhereMost is how many seconds after a Mac was lost its models serve
	// elsewhere: the 180 s of docs/concepts/architecture.md, and a load on a busy machine.
	elsewhereMost = 200.0
	// wholeMost bounds how long a fleet takes to be whole again: a wait costs
	// nothing where things work.
	wholeMost = 3 * time.Minute
	// quiet is how long nothing is done between two steps.
	quiet = 2 * time.Second
	// felt is how long after its end a fault may still end requests: connections
	// of then are found dead by their pings.
	felt = 4 * time.Second
	// answerMost bounds the wait for one answer of a Mac.
	answerMost = time.Minute
)

// chaos is a fleet to which things are done.
type chaos struct {
	*fleet.Fleet
	links    map[string]*cluster.Mac
	macs     []string
	gateways []*fleet.Gateway
	skewed   [2]string
	loads    *loads
	traffic  *traffic
	began    time.Time

	mu      sync.Mutex // guards what follows
	outages []*outage
	down    map[string]bool
	boots   map[string]string // the last start of each Mac's agent that it reported
	// figures
	picks, elsewhere []float64
	took             map[kind][]float64

	// lost is the Mac that is away for good, or empty: the one goroutine of rounds
	// reads and writes it.
	lost string
	// served has how the search for its models ended, once it did.
	served chan error
	back   func()
}

func newChaos(f *fleet.Fleet, links map[string]*cluster.Mac, skewed [2]string) *chaos {
	c := &chaos{Fleet: f, links: links, skewed: skewed, loads: newLoads(), down: map[string]bool{}, boots: map[string]string{}, took: map[kind][]float64{}}
	for name := range links {
		c.macs = append(c.macs, name)
	}
	slices.Sort(c.macs)
	return c
}

// run does everything: models, load, rounds of faults, the verdict.
func (c *chaos) run(ctx context.Context, o options) error {
	second, err := c.AddGateway(ctx, gatewayName(1))
	if err != nil {
		return err
	}
	c.gateways = []*fleet.Gateway{c.FirstGateway(), second}
	fmt.Printf("   %s on %d Macs, %s on one\n", several, replicas, single)
	if err := c.deploy(ctx); err != nil {
		return err
	}
	c.began = time.Now()
	watching, stopWatching := context.WithCancel(ctx)
	watched := c.watchLoads(watching)
	c.traffic = &traffic{gateways: c.gateways, ready: func(gateway string) bool { return !c.isDown(gateway) }}
	c.traffic.begin(ctx)
	err = c.rounds(ctx, o)
	if err == nil {
		err = c.awaitWhole(ctx)
	}
	requests := c.traffic.end()
	stopWatching()
	<-watched
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, c.verdict(requests, o))
}

// rounds does what the schedule says until the time is over.
func (c *chaos) rounds(ctx context.Context, o options) error {
	s := newSchedule(o.seed)
	for {
		for _, one := range s.next() {
			left := o.length - time.Since(c.began)
			if s.round > 1 && left <= 0 {
				return c.returnLost(ctx)
			}
			if one[0].kind == macLost && s.round > 1 && left < time.Duration(elsewhereMost)*time.Second {
				continue
			}
			if err := c.do(ctx, one); err != nil {
				return err
			}
		}
		if err := c.returnLost(ctx); err != nil {
			return err
		}
		if time.Since(c.began) >= o.length {
			return nil
		}
	}
}

// do injects the faults of a step together, heals each in its time, and waits
// until the fleet is whole.
func (c *chaos) do(ctx context.Context, one step) error {
	if one[0].kind == macLost {
		return c.lose(ctx, one[0])
	}
	errs := make([]error, len(one))
	who := make([]string, len(one))
	var together sync.WaitGroup
	for i, f := range one {
		heal, name, err := c.inject(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		if who[i] = name; heal == nil {
			continue // nobody is left to whom it could be done
		}
		together.Go(func() {
			pause(ctx, f.hold)
			errs[i] = heal(ctx)
		})
	}
	together.Wait()
	healed := time.Now()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%v: heal: %w", one, err)
	}
	if err := c.awaitWhole(ctx); err != nil {
		return fmt.Errorf("after %v of %v: %w", one, who, err)
	}
	took := time.Since(healed)
	for i, f := range one {
		c.took[f.kind] = append(c.took[f.kind], took.Seconds())
		fmt.Printf("   %6.1f s  %-34s %-14s whole again %4.1f s after its end\n", healed.Sub(c.began).Seconds(), f, who[i], took.Seconds())
	}
	pause(ctx, quiet)
	return ctx.Err()
}

// verdict prints the figures and judges them.
func (c *chaos) verdict(requests []request, o options) error {
	c.mu.Lock()
	outages := make([]outage, len(c.outages))
	for i, one := range c.outages {
		outages[i] = *one
	}
	c.mu.Unlock()
	t := judgeAll(requests, func(r request) int {
		if r.stream {
			return streamTokens
		}
		return wholeTokens
	}, outages)
	loaded, err := c.loads.judge()
	fmt.Printf("   %d requests, %d of them streams, in %.0f s\n", len(requests), t.streams, time.Since(c.began).Seconds())
	return errors.Join(t.err(), err, c.tell(t, loaded, o))
}

// gone notes that something was taken away, and returns what notes its return.
func (c *chaos) gone(k kind, who string) (back func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &outage{kind: k, who: who, from: time.Now()}
	c.outages = append(c.outages, o)
	c.down[who] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		o.to = time.Now().Add(felt)
		delete(c.down, who)
	}
}

// choose is one of those to whom nothing else is done now; empty if there is none.
func (c *chaos) choose(from []string, target int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(from), func(name string) bool { return c.down[name] })
	if len(free) == 0 {
		return ""
	}
	return free[target%len(free)]
}

// logOf reads what a gateway has said.
func logOf(g *fleet.Gateway) (string, error) {
	b, err := os.ReadFile(g.Log())
	return string(b), err
}

// booted remembers which start of its agent a Mac reports.
func (c *chaos) booted(mac *v1alpha1.MacNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boots[mac.Name] = mac.Status.BootID
}

func (c *chaos) bootOf(mac string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boots[mac]
}
