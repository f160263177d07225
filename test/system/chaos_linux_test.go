//go:build stories

package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	controllers "metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/sandbox"
)

const (
	// picksMost is how long a dead Mac may stay in a gateway's picks.
	picksMost = 2 * time.Second
	// elsewhereMost is how long after a Mac was lost its models serve elsewhere: 180 s
	// of silence, and a load on a busy machine.
	elsewhereMost = 200 * time.Second
	// quiet is the time between two steps.
	quiet = 2 * time.Second
	// felt is how long after its end a fault may still end requests: pings find
	// connections of that time dead.
	felt = 4 * time.Second
	// several is the model with a replica on each of several Macs, single the one with
	// one replica.
	several, single = "story", "tale"
	// diskBytes of a Mac's own disk, which is memory of this machine.
	diskBytes = 96 << 20
)

// TestChaos has a fleet of four Macs with networks and disks of their own, two
// gateways and two models under constant load, and takes one part after the other
// away. No request fails that a retry could have saved, no stream ends without an
// error, a dead Mac leaves the picks of every gateway in under two seconds, what a
// lost Mac served is served elsewhere in 200 s, and after each fault every
// deployment is whole, the ledgers match what was promised, and nothing was loaded
// more often than it had to be.
//
// It runs in a sandbox (Linux, root). By default it has every fault once; with
// -chaos=30m it begins faults for that long in the order of -seed, some at the same
// time.
func TestChaos(t *testing.T) {
	if !sandbox.Enter(t) {
		return
	}
	c := &chaos{down: map[string]bool{}, boots: map[string]string{}, loads: loadCount{engines: map[string]map[string]bool{}, killed: map[string]int{}}}
	c.skewed = buildSkewed(t)
	options := fleet.Options{Address: sandbox.Address}
	for i, chip := range []string{"M2Ultra", "M4Max", "M2Ultra", "M3Max"} {
		m, err := sandbox.NewMachine(t.Context(), fmt.Sprintf("mac-%d", i+1), i)
		must(t, err)
		c.machines = append(c.machines, m)
		options.Macs = append(options.Macs, fleet.Mac{Name: m.Name, Chip: chip, Memory: "64Gi", Address: m.Address, Inside: m.Command, Disk: mountDisk, Flags: []string{"--cache-free=8Mi"}})
	}
	c.world = start(t, options, models())
	second, err := c.AddGateway(t.Context(), "second")
	must(t, err)
	c.gateways = []*fleet.Gateway{c.FirstGateway(), second}
	for name, n := range map[string]int32{several: 3, single: 1} {
		md := c.deploy(t, fleet.Model{Name: name, File: "slow.gguf", MaxTokens: 1024, MaxConcurrentRequests: 4, KVCacheTokens: 4 * 1024, DiskLimit: "64Mi"}, replicas(n))
		c.deployments = append(c.deployments, md)
	}
	must(t, c.awaitWhole(t.Context()))
	c.run(t)
}

// mountDisk gives a Mac a small disk of its own.
func mountDisk(state string) (undo func() error, err error) {
	if err := unix.Mount("tmpfs", state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=700", diskBytes)); err != nil {
		return nil, fmt.Errorf("mount a disk at %s: %w", state, err)
	}
	return func() error { return unix.Unmount(state, unix.MNT_DETACH) }, nil
}

// chaos is a fleet to which faults happen.
type chaos struct {
	*world
	machines    []*sandbox.Machine
	gateways    []*fleet.Gateway
	deployments []*v1alpha1.ModelDeployment
	skewed      [2]string
	load        *fleet.Load
	began       time.Time

	mu               sync.Mutex // guards what follows
	outages          []*outage
	down             map[string]bool
	boots            map[string]string // the last start of each Mac's agent that it reported
	loads            loadCount
	picks, elsewhere []time.Duration

	// lost is the Mac that is away for good, or nil. The goroutine of the rounds alone
	// uses these.
	lost   *sandbox.Machine
	served chan error // the end of the search for its models
	back   func()
}

// run starts the load, has the faults happen, and gives the verdict.
func (c *chaos) run(t *testing.T) {
	watching, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(watching) })
	streams, answers := fleet.Question{Model: several, Stream: true, MaxTokens: 120}, fleet.Question{Model: several, MaxTokens: 24}
	clients := []fleet.Question{streams, streams, streams, answers, answers, streams, answers}
	clients[5].Model, clients[6].Model = single, single
	c.began = time.Now()
	c.load = c.StartLoad(t.Context(), fleet.LoadOptions{Clients: clients, Pause: 100 * time.Millisecond, Gateways: c.gateways,
		Limit: 6 * time.Minute, // longer than a request may have to wait for a model that is loaded elsewhere
		Up:    func(g *fleet.Gateway) bool { return !c.isDown(g.Name) }})
	t.Cleanup(func() { c.load.End(); stop(); watch.Wait() })
	if *chaosFor > 0 {
		c.rounds(t, *chaosFor)
	} else {
		for _, one := range fixedRound() {
			c.do(t, one)
		}
	}
	c.returnLost(t)
	must(t, c.awaitWhole(t.Context()))
	requests := c.load.End()
	stop()
	watch.Wait()
	c.verdict(t, requests)
}

// rounds does what the schedule has until the time is over; the first round is
// always completed.
func (c *chaos) rounds(t *testing.T, length time.Duration) {
	s := newSchedule(*seed)
	for s.round == 0 || time.Since(c.began) < length {
		for _, one := range s.next() {
			left := length - time.Since(c.began)
			if s.round > 1 && left <= 0 {
				return
			}
			if one[0].kind != macLost || s.round == 1 || left >= elsewhereMost {
				c.do(t, one)
			}
		}
		c.returnLost(t)
	}
}

// do injects the faults of a step together, ends each in its time, and waits until
// the fleet is whole.
func (c *chaos) do(t *testing.T, one []fault) {
	t.Helper()
	if one[0].kind == macLost {
		c.lose(t)
		return
	}
	errs := make([]error, len(one))
	var who []string
	var together sync.WaitGroup
	for i, f := range one {
		heal, name, err := c.inject(t.Context(), f)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if who = append(who, name); heal == nil {
			continue // there is none left that it could be done to
		}
		together.Go(func() {
			lasts(t.Context(), f.lasts)
			errs[i] = heal(t.Context())
		})
	}
	together.Wait()
	ended := time.Now()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v of %q: end: %v", one, who, err)
	}
	if err := c.awaitWhole(t.Context()); err != nil {
		t.Fatalf("after %v of %q: %v", one, who, err)
	}
	t.Logf("%6.1f s  %v of %q: whole again %.1f s after its end", ended.Sub(c.began).Seconds(), one, who, time.Since(ended).Seconds())
	lasts(t.Context(), quiet)
}

// lose cuts the link of the Mac with the only replica of a model, for good. What
// else the schedule has happens meanwhile.
func (c *chaos) lose(t *testing.T) {
	t.Helper()
	replica, err := c.Replica(t.Context(), single)
	must(t, err)
	c.lost = c.machine(replica.Spec.NodeName)
	picking := c.picking(t.Context(), c.lost.Name)
	cut := time.Now()
	c.back = c.gone(macLost, c.lost.Name)
	must(t, c.lost.Vanish(t.Context()))
	must(t, c.awaitPicks(t.Context(), picking, c.lost.Name, cut))
	t.Logf("%6.1f s  %s lost, the only one with %s", cut.Sub(c.began).Seconds(), c.lost.Name, single)
	c.served = make(chan error, 1)
	go func() { c.served <- c.awaitElsewhere(t.Context(), c.lost.Name, cut) }()
	if *chaosFor == 0 {
		sandbox.Parallel() // nothing is measured until that Mac's time is over
	}
	lasts(t.Context(), quiet)
}

// awaitElsewhere waits until the single model is ready on another Mac, and notes
// how long that took.
func (c *chaos) awaitElsewhere(ctx context.Context, mac string, cut time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*elsewhereMost, errors.New("it took more than twice what is promised"))
	defer cancel()
	return fleet.Poll(ctx, 100*time.Millisecond, "what "+mac+" served is served elsewhere", func(ctx context.Context) error {
		var list v1alpha1.ModelReplicaList
		if err := c.Client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelDeployment: single}); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(r v1alpha1.ModelReplica) bool { return controllers.ReplicaReady(&r) && r.Spec.NodeName != mac }) {
			return fmt.Errorf("%d replicas, none is ready elsewhere", len(list.Items))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.elsewhere = append(c.elsewhere, time.Since(cut))
		return nil
	})
}

// returnLost waits until the lost Mac's models are elsewhere, restores its link, and
// wants it to hold nothing that is held elsewhere.
func (c *chaos) returnLost(t *testing.T) {
	t.Helper()
	if c.lost == nil {
		return
	}
	must(t, <-c.served)
	must(t, c.lost.Reappear(t.Context()))
	back, name := time.Now(), c.lost.Name
	c.back()
	c.lost = nil
	if err := c.awaitWhole(t.Context()); err != nil {
		t.Fatalf("after %s came back: %v", name, err)
	}
	t.Logf("%6.1f s  %s back: whole again after %.1f s", back.Sub(c.began).Seconds(), name, time.Since(back).Seconds())
	lasts(t.Context(), quiet)
}

// verdict judges every request and figure.
func (c *chaos) verdict(t *testing.T, requests []fleet.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	outages, moved := make([]outage, len(c.outages)), 0
	for i, one := range c.outages {
		outages[i] = *one
	}
	for _, r := range requests {
		moved += r.Moved
	}
	count, err := tally(requests, outages)
	t.Logf("%s; %v, %d times to the other gateway", fleet.Summary(requests), count, moved)
	if err := errors.Join(err, c.loads.check()); err != nil {
		t.Error(err)
	}
	t.Logf("dead Macs left the picks after %v; the models of lost ones served elsewhere after %v", c.picks, c.elsewhere)
	if len(c.picks) == 0 || slices.Max(c.picks) >= picksMost {
		t.Errorf("dead Macs left the picks after %v, want less than %s each", c.picks, picksMost)
	}
	if len(c.elsewhere) == 0 || slices.Max(c.elsewhere) > elsewhereMost {
		t.Errorf("the models of lost Macs served elsewhere after %v, want at most %s each", c.elsewhere, elsewhereMost)
	}
}

// gone notes that a part was taken away, and returns what notes its return.
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

func (c *chaos) isDown(who string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down[who]
}

// choose is one of those to which nothing else happens now; empty if there is none.
func (c *chaos) choose(from []string, target int) string {
	free := slices.DeleteFunc(slices.Clone(from), c.isDown)
	if len(free) == 0 {
		return ""
	}
	return free[target%len(free)]
}

func (c *chaos) machine(name string) *sandbox.Machine {
	return c.machines[slices.IndexFunc(c.machines, func(m *sandbox.Machine) bool { return m.Name == name })]
}
