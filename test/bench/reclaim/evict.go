package reclaim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// limit of a load or an eviction: MLX's processor back end computes a token of
	// the large model in seconds.
	limit = 4 * time.Minute
	// settle is how long the stream runs before its gaps count.
	settle = 3 * time.Second
	// readEvery is the pause between two readings of /proc. A reading of a process
	// of this size takes the kernel milliseconds, which the stream would lack.
	readEvery = 20 * time.Millisecond
	// minGaps in a window: a p99 needs a hundred values.
	minGaps = 100
)

// bench is a fleet of one Mac, and how long the stream is observed.
type bench struct {
	*fleet.Fleet
	window time.Duration
}

// trial is what was seen of one eviction.
type trial struct {
	// read is the last reading of /proc before the agent ended the engine, freed
	// what the agent reported; -1 if it reported nothing.
	read, freed int64
	// took is from the lowered ceiling to the end of the process, status from there
	// to the watch event that reports it.
	took, status time.Duration
	// before and after are gaps of the stream in two windows.
	before, after []time.Duration
}

func (t trial) values() scenario.Values {
	v := scenario.Values{"read": float64(t.read), "freed": float64(t.freed), "took": traffic.Milliseconds(t.took), "status": traffic.Milliseconds(t.status)}
	if t.freed < 0 || t.read <= 0 {
		v["freed"] = math.NaN()
	}
	for name, gaps := range map[string][]time.Duration{"before": t.before, "after": t.after} {
		for figure, p := range map[string]float64{"median ": 50, "p99 ": 99, "longest ": 100} {
			v[figure+name] = traffic.Milliseconds(traffic.Percentile(gaps, p))
			if len(gaps) < minGaps {
				v[figure+name] = math.NaN()
			}
		}
	}
	return v
}

// evict loads the large model and lowers the ceiling while the other one
// streams.
func (b *bench) evict(ctx context.Context) (t trial, err error) {
	if _, err := b.Rouse(ctx, large, limit); err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit+4*b.window, errors.New("the eviction takes too long"))
	defer cancel()
	resident, err := b.Resident(ctx, large)
	if err != nil {
		return t, err
	}
	s := listen(ctx, b.URL, streaming)
	defer func() { err = errors.Join(err, s.end(), b.SetCeiling(context.WithoutCancel(ctx), mac, 0)) }()
	if err := s.runs(ctx, limit, settle+b.window); err != nil {
		return t, err
	}
	began := time.Now()
	if t, err = b.watch(ctx, resident); err != nil {
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

// watch lowers the ceiling and observes the end of the engine in two ways: its
// memory, and the status of the Mac.
func (b *bench) watch(ctx context.Context, r fleet.Resident) (trial, error) {
	w, err := b.Client.Watch(ctx, &v1alpha1.MacNodeList{}, client.MatchingFields{"metadata.name": mac})
	if err != nil {
		return trial{}, fmt.Errorf("watch %s: %w", mac, err)
	}
	defer w.Stop()
	node, err := b.Mac(ctx, mac)
	if err != nil {
		return trial{}, err
	}
	readings := follow(ctx, r.Engine.PID)
	ordered := time.Now()
	if err := b.lowerCeiling(ctx, r.Engine.PID); err != nil {
		return trial{}, err
	}
	reclaim, at, err := awaitReclaim(ctx, w, node.Status.Reclaims, string(r.Replica.UID))
	if err != nil {
		return trial{}, err
	}
	return compare(reclaim, at, ordered, <-readings), nil
}

// lowerCeiling sets a ceiling that is too low for the engine that leaves.
func (b *bench) lowerCeiling(ctx context.Context, leaves int) error {
	all, err := b.Agent(mac).Engines()
	if err != nil {
		return err
	}
	var use, leaving int64
	for _, e := range all {
		bytes, err := proc.Footprint(e.PID)
		if err != nil {
			return err
		}
		if use += bytes; e.PID == leaves {
			leaving = bytes
		}
	}
	ceiling, err := ceilingFor(use, leaving)
	if err != nil {
		return err
	}
	return b.SetCeiling(ctx, mac, ceiling)
}

// ceilingFor returns a ceiling just above the use: the Mac is over its hard mark
// of 0.95 and never over the ceiling. What stays has to be under 0.875 of it, the
// soft mark of the default policy less the hysteresis, which is what engines are
// evicted down to.
func ceilingFor(use, leaving int64) (int64, error) {
	ceiling := use + use/50
	if use-leaving >= ceiling/1000*875 {
		return 0, fmt.Errorf("engines that stay hold %d bytes and the one that leaves %d: no ceiling separates them", use-leaving, leaving)
	}
	return ceiling, nil
}

// awaitReclaim waits until the MacNode reports a new reclaim of a replica.
func awaitReclaim(ctx context.Context, w watch.Interface, known []v1alpha1.Reclaim, replica string) (v1alpha1.Reclaim, time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return v1alpha1.Reclaim{}, time.Time{}, fmt.Errorf("wait for the reclaim: %w", context.Cause(ctx))
		case e, ok := <-w.ResultChan():
			at := time.Now()
			node, isNode := e.Object.(*v1alpha1.MacNode)
			if !ok || !isNode {
				return v1alpha1.Reclaim{}, at, fmt.Errorf("wait for the reclaim: the watch ended or returned %+v", e.Object)
			}
			for _, r := range node.Status.Reclaims {
				if r.ReplicaUID == replica && !slices.ContainsFunc(known, func(k v1alpha1.Reclaim) bool { return k.ID == r.ID }) {
					return r, at, nil
				}
			}
		}
	}
}

// compare puts what the agent reported next to what was seen here.
func compare(r v1alpha1.Reclaim, reported, ordered time.Time, seen observation) trial {
	t := trial{status: reported.Sub(seen.ended), took: seen.ended.Sub(ordered), freed: -1}
	if r.FreedBytes != nil {
		t.freed = *r.FreedBytes
	}
	t.read = lastBefore(seen.readings, r.Time.Add(-time.Duration(r.DurationMilliseconds)*time.Millisecond))
	return t
}

// observation of a process until it has ended, to readEvery.
type observation struct {
	readings []reading
	ended    time.Time
}

// reading of a process's memory, and when it was done.
type reading struct {
	at    time.Time
	bytes int64
}

// follow reads a process until it has ended.
func follow(ctx context.Context, pid int) <-chan observation {
	out := make(chan observation, 1)
	go func() { // ends with the process or with ctx; its channel has room
		var o observation
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			bytes, err := proc.Footprint(pid)
			o.ended = time.Now()
			if err != nil {
				break // the process has no memory any more
			}
			o.readings = append(o.readings, reading{o.ended, bytes})
			<-tick.C
		}
		out <- o
	}()
	return out
}

// lastBefore returns the last reading that was done before a moment, or the
// first one if all came later; 0 without any.
func lastBefore(all []reading, moment time.Time) int64 {
	if len(all) == 0 {
		return 0
	}
	last := all[0].bytes
	for _, r := range all {
		if !r.at.After(moment) {
			last = r.bytes
		}
	}
	return last
}
