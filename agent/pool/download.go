package pool

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

// download runs Ensure in a goroutine.
func (rs *replicas) download(e *entry) {
	ctx, cancel := context.WithCancel(rs.life)
	var order v1alpha1.Assignment
	rs.change(func() {
		order = e.assignment
		e.download.running, e.download.cancel = true, cancel
		e.download.since, e.download.bytes, e.download.total = time.Now(), 0, order.Model.Bytes()+order.Model.AdapterBytes()
		e.download.attempts++
	})
	rs.tasks.Go(func() {
		defer cancel()
		path, adapters, err := rs.fetch(ctx, order, rs.downloadProgress(e))
		rs.change(func() {
			e.download.adapters = adapters
			e.download.finished(path, err, time.Now())
		})
		if err != nil && ctx.Err() == nil {
			rs.log.Info("Download failed", "ModelReplica", order.Namespace+"/"+order.Name, "reason", excerpt.Message(err.Error()))
		}
		rs.replan()
	})
}

// fetch returns the paths of the model and of its adapters, in their order.
func (rs *replicas) fetch(ctx context.Context, order v1alpha1.Assignment, progress func(done, total int64)) (path string, adapters []string, err error) {
	before, total := int64(0), order.Model.Bytes()+order.Model.AdapterBytes()
	part := func(done, _ int64) { progress(before+done, total) }
	if path, err = rs.weights.Ensure(ctx, order.Model, order.TokenRef, part); err != nil {
		return "", nil, err
	}
	before = order.Model.Bytes()
	for _, a := range order.Model.Adapters {
		ref := ""
		if a.Shared(order.Model.Source) {
			ref = order.TokenRef
		}
		at, err := rs.weights.Ensure(ctx, a.Record(), ref, part)
		if err != nil {
			return "", nil, err
		}
		adapters, before = append(adapters, at), before+a.Bytes()
	}
	return path, adapters, nil
}

// progressPause bounds how often progress makes a new snapshot.
const progressPause = 100 * time.Millisecond

func (rs *replicas) downloadProgress(e *entry) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		rs.mu.Lock()
		e.download.bytes, e.download.total = done, total
		publish := time.Since(last) >= progressPause
		if publish {
			last = time.Now()
		}
		rs.mu.Unlock()
		if publish {
			rs.publish()
		}
	}
}
