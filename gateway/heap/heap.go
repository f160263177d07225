// Package heap keeps the garbage collector of a program with a small heap from
// running all the time: short requests fill a heap of a few megabytes many times
// a second, and each collection costs as much as some hundred of them.
//
// It owns the process's GC percent, and refuses to where GOGC says one. It also owns the
// memory limit of the collector, unless GOMEMLIMIT is set: within a container it collects
// more often before the heap reaches the limit of the container. What was left by
// a busy time is given back when it is over.
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
	// Floor in bytes is what a heap grows to before it is collected.
	Floor = 48 << 20
	// usual is the percent that Go has by itself.
	usual = 100
	// lookEvery is how often it is looked whether the program is quiet: it allocates
	// less than quietBytes in that time. leftBytes since the last collection are
	// worth another one then.
	lookEvery  = time.Second
	quietBytes = 1 << 20
	leftBytes  = 4 << 20

	// In bytes: what the last collection left, what there is now with what is dead,
	// and all that ever was.
	live    = "/gc/heap/live:bytes"
	objects = "/memory/classes/heap/objects:bytes"
	allocs  = "/gc/heap/allocs:bytes"
)

// Keep has the heap collected at Floor or at twice what is alive, whichever is
// more, from the next collection on, and when the program falls quiet, until ctx
// ends.
func Keep(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := limitOf(cgroupLimit); limit > 0 {
			debug.SetMemoryLimit(limit)
		}
	}
	if os.Getenv("GOGC") == "" {
		watch(&percents{until: ctx})
		go giveBack(ctx)
	}
}

const (
	// cgroupLimit is where Linux has the memory limit of a container.
	cgroupLimit = "/sys/fs/cgroup/memory.max"
	// limitShare of it is for what the collector knows of.
	limitShare = 0.85
)

// limitOf returns the limit for the collector, from the file of a container's limit; 0
// where there is none.
func limitOf(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 { // "max" is no limit
		return 0
	}
	return int64(limitShare * float64(n))
}

// giveBack collects when the program is quiet, and returns to the system what is
// free then.
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

// quiet says that a collection disturbs nobody and is worth its while, of bytes
// that were allocated lately, that are there and that the last one left.
func quiet(lately, there, left uint64) bool {
	return lately < quietBytes && there > left+leftBytes
}

// percents remembers which one was set last.
type percents struct {
	until context.Context // ends, nothing is set
	last  atomic.Int64
}

// watch sets the percent after each collection: what nobody holds is gone then.
func watch(p *percents) {
	mark := new([8]*byte) // a small one without pointers shares its memory with others
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

// percent is how much may be added to what is alive, in hundredths of it: as
// debug.SetGCPercent has it.
func percent(alive uint64) int {
	alive = max(alive, 1<<20) // less is a program that has hardly begun
	if alive > math.MaxInt64/100 {
		return usual
	}
	return max(usual, int((Floor-int64(alive))*100/int64(alive)))
}
