// Package heaplimit refuses requests while the process has too much live memory.
//
// It is the second bound of the agent's memory: bodies, answers and stored responses each count
// what they take, and a count that is too low shows only here. What the collector measures is
// right for all of them.
//
// Start reading at Limit.
package heaplimit

import (
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// live is what survived the last collection, in bytes.
	live = "/gc/heap/live:bytes"
	// rest is the least time between two collections of Limit, and restShare how many times
	// as long as the last one it is.
	rest      = time.Second
	restShare = 10
)

// Limit is safe for concurrent use. The zero value never refuses.
type Limit struct {
	// Bytes is the most live memory of the process with which requests begin; 0 means any.
	Bytes int64
	// Relieve frees memory that the process can do without. It is called again after a while,
	// as long as requests are refused.
	Relieve func()

	freeing atomic.Bool
}

// Full reports whether the process has as much live memory as it may, or more. If so, it collects
// garbage in the background, since the last collection may be long ago, and calls Relieve if that
// did not help.
func (l *Limit) Full() bool {
	if l.Bytes == 0 || Live() < l.Bytes {
		return false
	}
	if l.freeing.CompareAndSwap(false, true) {
		go l.free()
	}
	return true
}

func (l *Limit) free() {
	defer l.freeing.Store(false)
	began := time.Now()
	runtime.GC()
	if Live() >= l.Bytes {
		l.Relieve()
		runtime.GC()
	}
	time.Sleep(max(rest, restShare*time.Since(began)))
}

// Live returns the live memory of the process after the last collection, in bytes.
func Live() int64 {
	sample := []metrics.Sample{{Name: live}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
