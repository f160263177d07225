package pool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// ask calls an engine in a goroutine, bounded by Hello, so that an engine that
// hangs delays no other.
func (p *pressure) ask(g *engine, what string, call func(context.Context) error, done func(err error)) {
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, p.timing.Hello)
		defer cancel()
		err := call(ctx)
		p.read(func() { done(err) })
		if err != nil && ctx.Err() != nil && p.life.Err() == nil {
			p.log.Error(excerpt.Error(err), "Engine does not answer", "call", what, "pid", g.pid)
		}
	})
}

// trim asks an engine for its pooled bytes, and for its prompt cache where that
// is needed, unless such a request is running.
func (p *pressure) trim(g *engine, cache bool) {
	again := false
	p.read(func() {
		if again = g.trim.running; !again {
			g.trim.running, g.trim.asked = true, time.Now()
		}
	})
	if again {
		return
	}
	p.ask(g, "Trim", func(ctx context.Context) error {
		_, err := g.client.Trim(ctx, &wire.TrimRequest{PrefixCache: cache})
		return err
	}, func(err error) {
		g.trim.running = false
		if err == nil {
			g.trim.acknowledged = time.Now()
		}
	})
}

// abort ends the requests of an engine, which stays loaded.
func (p *pressure) abort(g *engine, because string) {
	again := false
	p.read(func() { again, g.aborting = g.aborting, true })
	if again {
		return
	}
	p.log.Info("Aborting requests to free memory", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "because", because)
	p.ask(g, "Abort", func(ctx context.Context) error {
		_, err := g.client.Abort(ctx, &wire.AbortRequest{Reason: because})
		return err
	}, func(error) { g.aborting = false })
}

// clearCaches asks every engine that serves for its caches; see Pool.Forget.
func (p *pressure) clearCaches(ctx context.Context) (all []v1alpha1.EngineCleared) {
	ctx, cancel := context.WithTimeout(ctx, p.timing.Hello)
	defer cancel()
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	for _, g := range p.serving() {
		asking.Go(func() {
			r, err := g.client.Trim(ctx, &wire.TrimRequest{PrefixCache: true})
			c := v1alpha1.EngineCleared{ReplicaUID: g.record.ReplicaUID}
			if err == nil {
				bytes := count(r.GetBytesReclaimed())
				c.Bytes = &bytes
			} else {
				p.log.Error(excerpt.Error(err), "Engine did not clear its cache", "pid", g.pid)
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

// serving lists the engines that take requests.
func (p *pressure) serving() (engines []*engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if g := e.engine; g != nil && g.state == Ready {
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
