package cold

import "time"

// FreeFor is how long a figure of free space is believed.
const FreeFor = 30 * time.Second

// MaxUnlinks is how many files one save removes at most; the rest goes with
// later ones.
const MaxUnlinks = 32

// Budget is what an administrator allows the cache.
type Budget struct {
	// LimitBytes is the most; 0 means that only the disk says.
	LimitBytes int64
	// FloorBytes of the disk stay free whatever else there is.
	FloorBytes int64
	// Percent of what would be free without the cache may be used; 0 means 99.
	Percent int64
}

// Limit is how many bytes the cache may take where it holds own and the disk has
// free bytes: never more than the free space leaves, whatever the disk's size.
func Limit(b Budget, own, free int64) int64 {
	percent := b.Percent
	if percent == 0 {
		percent = 99
	}
	room := max(0, own) + max(0, free)
	room = room/100*percent + room%100*percent/100
	limit := max(0, room-max(0, b.FloorBytes))
	if b.LimitBytes > 0 {
		limit = min(limit, b.LimitBytes)
	}
	return limit
}

// Room is a figure of the disk that is believed for a time. Own and free bytes
// are kept as read together: what is written since moves bytes from one to the
// other, and their sum stays.
type Room struct {
	own, free int64
	at        time.Time
	known     bool
}

// Known says whether there is a figure young enough.
func (r Room) Known(now time.Time) bool {
	return r.known && now.Sub(r.at) < FreeFor && !now.Before(r.at)
}

// RoomOf is a figure read now.
func RoomOf(own, free int64, now time.Time) Room { return Room{own, free, now, true} }

// Limit by this figure; nothing is allowed where there is none.
func (r Room) Limit(b Budget) int64 {
	if !r.known {
		return 0
	}
	return Limit(b, r.own, r.free)
}

// Free is the figure that was read.
func (r Room) Free() int64 { return r.free }

// Plan is what goes so that at most target bytes stay: foreign files, then of the
// blocks that may go those whose last use is oldest, and never more than most files.
// may is asked once for each block, in that order. Plan changes nothing.
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
