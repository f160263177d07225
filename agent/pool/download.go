package pool

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// download runs Ensure in a goroutine.
func (rs *replicas) download(e *entry) {
	ctx, cancel := context.WithCancel(rs.life)
	var order v1alpha1.Assignment
	rs.change(func() {
		order = e.assignment
		e.download.running, e.download.cancel = true, cancel
		e.download.since, e.download.bytes, e.download.total = time.Now(), 0, order.Model.Bytes()
		e.download.attempts++
	})
	rs.tasks.Go(func() {
		defer cancel()
		path, err := rs.weights.Ensure(ctx, order.Model, order.TokenRef, rs.downloadProgress(e))
		rs.change(func() { e.download.finished(path, err, time.Now()) })
		if err != nil && ctx.Err() == nil {
			rs.log.Info("Download failed", "ModelReplica", order.Namespace+"/"+order.Name, "reason", err.Error())
		}
		rs.replan()
	})
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
