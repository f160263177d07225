package agent

import (
	"os"
	"syscall"

	"metalfleet.dev/metalfleet/agent/cold"
)

// sharedDisk lets the disk cache give way to weights if both are on one disk; if
// they are not, it has no bytes and reserves nothing.
type sharedDisk struct {
	// weights and cache are the folders.
	weights, cache string
	// owner returns the open cache; nil if there is none.
	owner func() *cold.Owner
}

// Bytes implements store.Cache.
func (d sharedDisk) Bytes() int64 {
	if owner := d.owner(); owner != nil && d.same() {
		return owner.Snapshot().UsedBytes
	}
	return 0
}

// GiveWay implements store.Cache.
func (d sharedDisk) GiveWay(bytes int64) int64 {
	if owner := d.owner(); owner != nil && d.same() {
		return owner.GiveWay(bytes)
	}
	return 0
}

// same reports whether both folders are on one file system.
func (d sharedDisk) same() bool {
	a, known := device(d.weights)
	b, also := device(d.cache)
	return known && also && a == b
}

// device returns the file system of a path.
func device(path string) (id uint64, known bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return uint64(st.Dev), true
}
