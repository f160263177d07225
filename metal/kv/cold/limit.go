package cold

import "time"

// FreeFor is how long a measurement of free space is used.
const FreeFor = 30 * time.Second

// MaxUnlinks is the maximum number of files that one save removes; later ones
// remove the rest.
const MaxUnlinks = 32

// Budget is the administrator's limit on the cache.
type Budget struct {
	// LimitBytes is the maximum size; 0 means that only the free space limits
	// it.
	LimitBytes int64
	// FloorBytes of the disk always stay free.
	FloorBytes int64
	// Percent of what would be free without the cache may be used; 0 means 99.
	Percent int64
	// AwaitedBytes will be written by others, and count as used already.
	AwaitedBytes int64
	// SpareBytes of the disk stay free too, unless that is more than half of what
	// would be free without the cache.
	SpareBytes int64
}

// Limit is the maximum size of the cache in bytes when it takes own bytes and
// the disk has free bytes. It never exceeds what the free space allows.
func Limit(b Budget, own, free int64) int64 {
	percent := b.Percent
	if percent == 0 {
		percent = 99
	}
	room := max(0, max(0, own)+max(0, free)-max(0, b.AwaitedBytes))
	floor := max(0, b.FloorBytes, min(b.SpareBytes, room/2))
	room = room/100*percent + room%100*percent/100
	limit := max(0, room-floor)
	if b.LimitBytes > 0 {
		limit = min(limit, b.LimitBytes)
	}
	return limit
}

// Room is a measurement of disk space that is used for a limited time. Own and
// free bytes are measured together: writing blocks moves bytes from free to own
// and leaves the sum unchanged.
type Room struct {
	own, free int64
	at        time.Time
	known     bool
}

// Known reports whether the measurement is recent enough.
func (r Room) Known(now time.Time) bool {
	return r.known && now.Sub(r.at) < FreeFor && !now.Before(r.at)
}

// RoomOf returns a measurement made now.
func RoomOf(own, free int64, now time.Time) Room { return Room{own, free, now, true} }

// Limit is the limit by this measurement; 0 if there is none.
func (r Room) Limit(b Budget) int64 {
	if !r.known {
		return 0
	}
	return Limit(b, r.own, r.free)
}

// Free is the measured free space in bytes.
func (r Room) Free() int64 { return r.free }

// Plan lists the files to evict so that at most target bytes remain: foreign
// files first, then the least recently used of the blocks that may allows, and
// at most most files. It calls may once per block, in that order, and does not
// change the index.
func Plan(x *Index, target int64, most int, may func(Entry) bool) []Entry {
	var out []Entry
	left := x.Total()
	x.Each(func(e Entry) bool {
		if left <= target || len(out) >= most {
			return false
		}
		if e.Foreign != "" || may(e) {
			left -= e.Bytes
			out = append(out, e)
		}
		return true
	})
	return out
}
