package pool

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Forget asks each engine that serves for what it remembers of prompts and for
// its pooled memory, all at once, and says what each gave back. One that does
// not answer within Hello is listed without a figure. Requests go on.
func (p *Pool) Forget(ctx context.Context) (all []v1alpha1.EngineCleared) {
	ctx, cancel := context.WithTimeout(ctx, p.Timing.Hello)
	defer cancel()
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	for _, g := range p.serving() {
		asking.Go(func() {
			r, err := g.client.Trim(ctx, &wire.TrimRequest{PrefixCache: true})
			c := v1alpha1.EngineCleared{ReplicaUID: g.record.ReplicaUID}
			if err == nil {
				bytes := max(0, r.GetBytesReclaimed())
				c.Bytes = &bytes
			} else {
				p.Log.Error(err, "Engine did not clear its cache", "pid", g.pid)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, c)
		})
	}
	asking.Wait()
	slices.SortFunc(all, func(a, b v1alpha1.EngineCleared) int { return cmp.Compare(a.ReplicaUID, b.ReplicaUID) })
	return onePerReplica(all)
}

// serving are the engines that have their model and are not asked to end.
func (p *Pool) serving() (engines []*engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if g := e.engine; g != nil && g.proc != nil && !g.gone && g.ready && g.stop == nil {
			engines = append(engines, g)
		}
	}
	return engines
}

// onePerReplica adds up what engines of several epochs of a replica gave back;
// one that did not answer makes the sum unknown.
func onePerReplica(all []v1alpha1.EngineCleared) []v1alpha1.EngineCleared {
	sums := all[:0]
	for _, c := range all {
		n := len(sums)
		if n == 0 || sums[n-1].ReplicaUID != c.ReplicaUID {
			sums = append(sums, c)
			continue
		}
		last := &sums[n-1]
		if last.Bytes == nil || c.Bytes == nil {
			last.Bytes = nil
			continue
		}
		sum := *last.Bytes + *c.Bytes
		last.Bytes = &sum
	}
	return sums
}
