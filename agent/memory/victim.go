package memory

import (
	"math"
	"slices"
	"time"
)

// anyPriority lets pressure unload any idle engine.
const anyPriority = math.MaxInt32

// Victim picks the idle engine to unload for a deficit of bytes: the longest
// unused one that alone covers it, else the largest, never a small one again
// and again. Only ready OnDemand engines of at most forPriority qualify that
// are positively known to be idle. ok is false where none does.
func Victim(engines []EngineReading, deficit int64, forPriority int32, protect ...Key) (key Key, ok bool) {
	i := victim(engines, deficit, forPriority, EngineReading.counted, protect)
	if i < 0 {
		return Key{}, false
	}
	return engines[i].Key, true
}

// CanMakeRoom reports whether an idle engine could go for another one, or one
// ends soon.
func CanMakeRoom(engines []EngineReading, forPriority int32, protect ...Key) bool {
	for _, e := range engines {
		if e.Stopping && !e.Lasting && !slices.Contains(protect, e.Key) {
			return true
		}
	}
	_, ok := Victim(engines, 1, forPriority, protect...)
	return ok
}

// victim is Victim by the size that counts; -1 where there is none.
func victim(engines []EngineReading, deficit int64, forPriority int32, size func(EngineReading) int64, protect []Key) int {
	best := -1
	for i, e := range engines {
		if !e.OnDemand || !e.Idle() || e.Priority > forPriority || slices.Contains(protect, e.Key) {
			continue
		}
		if best < 0 || better(e, engines[best], deficit, size) {
			best = i
		}
	}
	return best
}

// better reports whether a is to go rather than b.
func better(a, b EngineReading, deficit int64, size func(EngineReading) int64) bool {
	coversA, coversB := size(a) >= deficit, size(b) >= deficit
	switch {
	case coversA != coversB:
		return coversA
	case coversA && !a.LastUse.Equal(b.LastUse):
		return a.LastUse.Before(b.LastUse)
	case !coversA && size(a) != size(b):
		return size(a) > size(b)
	}
	return a.LastUse.Before(b.LastUse)
}

// victims picks engines until they cover the deficit, or no more are idle, and
// returns what they hold together.
func victims(engines []EngineReading, deficit int64, forPriority int32, size func(EngineReading) int64, protect ...Key) (keys []Key, sum int64) {
	taken := slices.Clone(protect)
	for sum < deficit {
		i := victim(engines, deficit-sum, forPriority, size, taken)
		if i < 0 {
			break
		}
		keys, taken = append(keys, engines[i].Key), append(taken, engines[i].Key)
		sum += size(engines[i])
	}
	return keys, sum
}

// Expired lists the idle OnDemand engines whose time to live has passed since
// their last use. A hold keeps an engine, and its end restarts the time.
func Expired(engines []EngineReading, now time.Time) []Key {
	var keys []Key
	for _, e := range engines {
		if e.OnDemand && e.Idle() && e.IdleAfter > 0 && !e.LastUse.IsZero() && now.Sub(e.LastUse) >= e.IdleAfter {
			keys = append(keys, e.Key)
		}
	}
	return keys
}
