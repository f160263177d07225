// Package heap keeps the garbage collector of a program with a small heap from
// running all the time: short requests fill a heap of a few megabytes many times
// a second, and each collection costs as much as some hundred of them.
//
// It owns the process's GC percent, and refuses to where GOGC says one. It sets no
// limit: a heap of more than the floor is collected as any other.
//
// Start reading at Keep.
package heap

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// Floor in bytes is what a heap grows to before it is collected.
	Floor = 48 << 20
	// usual is the percent that Go has by itself.
	usual = 100
	// live is what the last collection left, in bytes.
	live = "/gc/heap/live:bytes"
)

// Keep has the heap collected at Floor or at twice what is alive, whichever is
// more, from the next collection on.
func Keep() {
	if os.Getenv("GOGC") == "" {
		watch(new(atomic.Int64))
	}
}

// watch sets the percent after each collection: what nobody holds is gone then.
func watch(set *atomic.Int64) {
	mark := new([8]*byte) // a small one without pointers shares its memory with others
	runtime.AddCleanup(mark, func(set *atomic.Int64) {
		sample := []metrics.Sample{{Name: live}}
		metrics.Read(sample)
		if p := percent(sample[0].Value.Uint64()); set.Swap(int64(p)) != int64(p) {
			debug.SetGCPercent(p)
		}
		watch(set)
	}, set)
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
