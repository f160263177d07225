// Package heap keeps the garbage collector of a program with a small heap from running all
// the time: short requests fill a heap of a few megabytes many times per second, and each
// collection costs as much as hundreds of them.
//
// It owns the process's GC percent, unless GOGC is set, and the collector's memory limit,
// unless GOMEMLIMIT is set: within a container it collects more often before the heap
// reaches the container's limit. Memory that a busy period left free is returned to the
// system afterwards.
//
// Start reading at Keep.
package heap

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// floor is the heap size in bytes that is reached before a collection.
	floor = 48 << 20
	// defaultPercent is Go's own GC percent.
	defaultPercent = 100
	// lookEvery is how often Keep checks whether the program is quiet, which means that it
	// allocated less than quietBytes in that time. Then more than leftBytes of garbage
	// justify another collection.
	lookEvery  = time.Second
	quietBytes = 1 << 20
	leftBytes  = 4 << 20

	// In bytes: what survived the last collection, the current heap with garbage, and all
	// allocations so far.
	live    = "/gc/heap/live:bytes"
	objects = "/memory/classes/heap/objects:bytes"
	allocs  = "/gc/heap/allocs:bytes"
)

// Keep collects the heap at Floor or at twice the live heap, whichever is more, and once
// more when the program falls quiet. Within a container it collects at the share of the
// container's limit too: the rest is for what the kernel holds, of connections above all. It
// takes effect with the next collection and lasts until ctx ends.
func Keep(ctx context.Context, share float64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := limitOf(cgroupLimit, share); limit > 0 {
			debug.SetMemoryLimit(limit)
		}
	}
	if os.Getenv("GOGC") == "" {
		watch(&percents{until: ctx})
		go giveBack(ctx)
	}
}

// cgroupLimit is the file with the memory limit of a Linux container.
const cgroupLimit = "/sys/fs/cgroup/memory.max"

// limitOf returns the collector's limit, a share of that in the file of a container's limit; 0
// if there is none.
func limitOf(file string, share float64) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 { // "max" means no limit
		return 0
	}
	return int64(share * float64(n))
}

// giveBack collects when the program is quiet, and returns free memory to the system.
func giveBack(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: allocs}, {Name: objects}, {Name: live}}
	metrics.Read(sample)
	for before := sample[0].Value.Uint64(); ; before = sample[0].Value.Uint64() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(sample)
		if quiet(sample[0].Value.Uint64()-before, sample[1].Value.Uint64(), sample[2].Value.Uint64()) {
			debug.FreeOSMemory()
		}
	}
}

// quiet reports whether a collection would disturb no request and free enough memory, given
// the bytes allocated lately, in use now and left by the last collection.
func quiet(lately, there, left uint64) bool {
	return lately < quietBytes && there > left+leftBytes
}

// percents remembers the GC percent that was set last.
type percents struct {
	until context.Context // when it ends, no percent is set any more
	last  atomic.Int64
}

// watch sets the percent after each collection, through a finalizer that the collection
// runs.
func watch(p *percents) {
	mark := new([8]*byte) // not smaller: tiny allocations without pointers share memory and may outlive the collection
	runtime.AddCleanup(mark, func(p *percents) {
		if p.until.Err() != nil {
			return
		}
		sample := []metrics.Sample{{Name: live}}
		metrics.Read(sample)
		if now := percent(sample[0].Value.Uint64()); p.last.Swap(int64(now)) != int64(now) {
			debug.SetGCPercent(now)
		}
		watch(p)
	}, p)
}

// percent returns the GC percent for a live heap, as debug.SetGCPercent takes it.
func percent(alive uint64) int {
	alive = max(alive, 1<<20) // less is a program that has hardly started
	if alive > math.MaxInt64/100 {
		return defaultPercent
	}
	return max(defaultPercent, int((floor-int64(alive))*100/int64(alive)))
}
