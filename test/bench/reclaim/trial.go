package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	mac    = "studio"
	large  = "large"
	stays  = "stream"
	oneOf  = "many-%02d"
	limit  = 4 * time.Minute // of one load or one eviction; MLX's processor back end computes a token of the large model in seconds
	settle = 3 * time.Second // of the stream, before its gaps count
)

// bench is one fleet of one Mac with one back end.
type bench struct {
	*fleet.Fleet
	options
	backEnd
}

// deploy makes the model that streams, and the large one without its engine.
func (b *bench) deploy(ctx context.Context) error {
	return errors.Join(
		b.Deploy(ctx, fleet.Model{Name: stays, File: streamFile, Tokens: streamContext, Sequences: 1}),
		b.Deploy(ctx, fleet.Model{Name: large, File: largeFile, OnDemand: true, DrainSeconds: 5}),
	)
}

// trial is what was seen of engines that went.
type trial struct {
	engines []gone
	// before and after are the gaps of the stream in windows of one length.
	before, after []time.Duration
}

// gone is one engine that went.
type gone struct {
	// read is the last own reading of /proc before the agent's order to go, last
	// the one before the end.
	read, last int64
	freed      int64
	// status is from the end of the process to the watch event that tells of
	// it; took from what made it go to that end.
	status, took time.Duration
	reason       v1alpha1.ReclaimReason
	exit         v1alpha1.ExitKind
}

// evictLarge lowers the ceiling so far that the large engine must go.
func (b *bench) evictLarge(ctx context.Context) (trial, error) {
	if _, err := b.Rouse(ctx, large, limit); err != nil {
		return trial{}, err
	}
	return b.trial(ctx, []string{large}, b.lowerCeiling)
}

// deleteLarge deletes the model.
func (b *bench) deleteLarge(ctx context.Context) (trial, error) {
	if _, err := b.Rouse(ctx, large, limit); err != nil {
		return trial{}, err
	}
	t, err := b.trial(ctx, []string{large}, func(ctx context.Context, _ []fleet.Resident) error {
		return b.Client.Delete(ctx, fleet.Model{Name: large, File: largeFile}.Deployment())
	})
	if err != nil {
		return t, err
	}
	return t, b.Undeploy(ctx, large)
}

// evictMany loads several engines of one model and lowers the ceiling so far
// that all must go.
func (b *bench) evictMany(ctx context.Context) (trial, error) {
	var names []string
	for n := range b.many {
		name := fmt.Sprintf(oneOf, n)
		if err := b.Deploy(ctx, fleet.Model{Name: name, File: manyFile, OnDemand: true, DrainSeconds: 5}); err != nil {
			return trial{}, err
		}
		if _, err := b.Rouse(ctx, name, limit); err != nil {
			return trial{}, err
		}
		names = append(names, name)
	}
	return b.trial(ctx, names, b.lowerCeiling)
}

// lowerCeiling promises so little that all who go must, and the one that stays
// is well below the soft mark.
func (b *bench) lowerCeiling(ctx context.Context, leaving []fleet.Resident) error {
	all, err := b.MacEngines(mac)
	if err != nil {
		return err
	}
	var use, leaves int64
	for _, e := range all {
		bytes, err := fleet.Footprint(e.PID)
		if err != nil {
			return err
		}
		use += bytes
		if slices.ContainsFunc(leaving, func(r fleet.Resident) bool { return r.Engine.PID == e.PID }) {
			leaves += bytes
		}
	}
	ceiling, err := ceilingFor(use, leaves, len(leaving))
	if err != nil {
		return err
	}
	return b.SetCeiling(ctx, mac, ceiling)
}

// ceilingFor is a ceiling under which engines that hold leaves bytes must go
// and the others may stay. For one it is just above the use, so that the Mac is
// over its hard mark of 0.95 and never over the ceiling; for several it is so
// low that only the end of all is enough: 0.875 of it, the soft mark of the
// default policy less the hysteresis, is what engines are evicted down to.
func ceilingFor(use, leaves int64, engines int) (int64, error) {
	stay := use - leaves
	ceiling := use + use/50
	if engines > 1 {
		ceiling = stay*1000/875 + leaves/int64(engines)/2
	}
	if stay >= ceiling/1000*875 {
		return 0, fmt.Errorf("engines that stay hold %d bytes and those that are to go %d: no ceiling parts them", stay, leaves)
	}
	return ceiling, nil
}

// trial has the engines of some models go while another one streams, and takes
// the ceiling back.
func (b *bench) trial(ctx context.Context, models []string, order func(context.Context, []fleet.Resident) error) (t trial, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit+4*b.window, errors.New("the trial takes too long"))
	defer cancel()
	var residents []fleet.Resident
	for _, m := range models {
		r, err := b.Resident(ctx, m)
		if err != nil {
			return t, err
		}
		residents = append(residents, r)
	}
	s := listen(ctx, b.URL, stays)
	defer func() { err = errors.Join(err, s.end(), b.SetCeiling(context.WithoutCancel(ctx), mac, 0)) }()
	if err := s.runs(ctx, limit, settle+b.window); err != nil {
		return t, err
	}
	began := time.Now()
	if t.engines, err = b.watchThemGo(ctx, residents, order); err != nil {
		return t, err
	}
	rest := time.NewTimer(time.Until(began.Add(b.window)))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		return t, context.Cause(ctx)
	}
	t.before, t.after = s.gaps(began.Add(-b.window), began), s.gaps(began, began.Add(b.window))
	return t, nil
}

// watchThemGo gives the order and sees each engine's end, three ways at once:
// its memory, its process, and what the API server is told.
func (b *bench) watchThemGo(ctx context.Context, residents []fleet.Resident, order func(context.Context, []fleet.Resident) error) ([]gone, error) {
	w, err := b.Client.Watch(ctx, &v1alpha1.MacNodeList{}, client.MatchingFields{"metadata.name": mac})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", mac, err)
	}
	defer w.Stop()
	var known []string
	before, err := b.Mac(ctx, mac)
	if err != nil {
		return nil, err
	}
	for _, r := range before.Status.Reclaims {
		known = append(known, r.ID)
	}
	type seen struct {
		ended    time.Time
		readings []reading
		err      error
	}
	ends := make([]chan seen, len(residents))
	for i, r := range residents {
		ends[i] = make(chan seen, 1)
		reads := follow(ctx, r.Engine.PID)
		go func() { // bounded by ctx; its channel has room
			at, err := awaitEnd(ctx, r.Engine.PID)
			ends[i] <- seen{at, <-reads, err}
		}()
	}
	ordered := time.Now()
	if err := order(ctx, residents); err != nil {
		return nil, err
	}
	told, err := tellings(ctx, w, known, residents)
	if err != nil {
		return nil, err
	}
	var out []gone
	for i, r := range residents {
		s := <-ends[i]
		if s.err != nil {
			return nil, s.err
		}
		out = append(out, told[string(r.Replica.UID)].compare(s.ended, ordered, s.readings))
	}
	return out, nil
}

// telling is a reclaim and when the watch told of it.
type telling struct {
	reclaim v1alpha1.Reclaim
	at      time.Time
}

// tellings waits until the MacNode tells of a new reclaim of each replica.
func tellings(ctx context.Context, w watch.Interface, known []string, residents []fleet.Resident) (map[string]telling, error) {
	told := map[string]telling{}
	for {
		missing := slices.ContainsFunc(residents, func(r fleet.Resident) bool { return told[string(r.Replica.UID)].at.IsZero() })
		if !missing {
			return told, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for reclaims: %w; %d of %d came", context.Cause(ctx), len(told), len(residents))
		case e, ok := <-w.ResultChan():
			at := time.Now()
			node, isNode := e.Object.(*v1alpha1.MacNode)
			if !ok || !isNode {
				return nil, fmt.Errorf("wait for reclaims: the watch ended or said %+v", e.Object)
			}
			for _, r := range node.Status.Reclaims {
				if _, had := told[r.ReplicaUID]; !had && !slices.Contains(known, r.ID) {
					told[r.ReplicaUID] = telling{r, at}
				}
			}
		}
	}
}

// compare puts what the agent said beside what was seen here.
func (t telling) compare(ended, ordered time.Time, readings []reading) gone {
	g := gone{status: t.at.Sub(ended), took: ended.Sub(ordered), reason: t.reclaim.Reason, exit: t.reclaim.Exit, freed: -1}
	if f := t.reclaim.FreedBytes; f != nil {
		g.freed = *f
	}
	order := t.reclaim.Time.Add(-time.Duration(t.reclaim.DurationMilliseconds) * time.Millisecond)
	g.read, g.last = lastBefore(readings, order), lastBefore(readings, ended)
	return g
}

// String is one line for people.
func (t trial) String() string {
	var b strings.Builder
	for _, g := range t.engines {
		fmt.Fprintf(&b, "%s/%s: freed %d, /proc said %d (at last %d), gone after %s, told %s later\n", g.reason, g.exit, g.freed, g.read, g.last,
			g.took.Round(time.Millisecond), g.status.Round(time.Millisecond))
	}
	fmt.Fprintf(&b, "gaps ms, median p99 max: before %.1f %.1f %.1f (%d), after %.1f %.1f %.1f (%d)",
		quantile(t.before, 0.5), quantile(t.before, 0.99), quantile(t.before, 1), len(t.before),
		quantile(t.after, 0.5), quantile(t.after, 0.99), quantile(t.after, 1), len(t.after))
	return b.String()
}
