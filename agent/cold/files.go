package cold

import (
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// DefaultFiles is the default of Options.Files.
const DefaultFiles = 1 << 19

const (
	// smallest is the disk space of the smallest file.
	smallest = 4096
	// minAhead and maxAhead bound how many bytes of a request room is made for at once,
	// as if they were the smallest files.
	minAhead = 64 << 20
	maxAhead = 512 << 20
)

// fileRoom is how many bytes may be granted so that the number of files stays within
// its bound even if all of them are the smallest, with held files there.
func (b *books) fileRoom(held int) int64 {
	return int64(max(0, b.files-held))*smallest - b.charged()
}

// crowded returns blocks to remove, at most files of them, because there are too many
// or an account's request would make them so: fairly for all tenants by their number,
// so that a tenant with many small ones loses those.
func (b *books) crowded(a *account, files int, now time.Time) (out []blocks.Entry) {
	ahead := min(b.wanted(a), max(minAhead, min(a.least, maxAhead)))
	over := int64(b.index.Files()) + (b.charged()+ahead)/smallest - int64(b.files)
	if over <= 0 {
		return nil
	}
	held := map[holder]int64{}
	for p, sum := range b.index.Tenants() {
		held[b.holderOf(p.Namespace, p.Tenant)] += int64(sum.Blocks)
	}
	left := excess(held, func(h holder) bool { return now.Sub(b.lastUse[h]) >= idleAfter }, over)
	b.index.Each(func(e blocks.Entry) bool {
		if over <= 0 || len(out) >= files {
			return false
		}
		h := b.holderOf(e.ID.Namespace, e.ID.Key.Tenant())
		if e.Foreign != "" || left[h] > 0 {
			left[h]--
			over--
			out = append(out, e)
		}
		return true
	})
	return out
}
