package share

import "sync"

// Bytes are memory that the requests of tenants hold. A tenant gets at most half of what the
// others leave, so that there is always some left for one that holds none.
type Bytes struct {
	most   int64
	within *Bytes // nil: none

	mu  sync.Mutex
	of  map[string]int64 // by tenant, guarded by mu
	all int64            // guarded by mu
}

// NewBytes returns this many bytes, which no tenant holds yet.
func NewBytes(most int64) *Bytes { return &Bytes{most: most, of: map[string]int64{}} }

// Within has what is taken count in another account as well, which several share. It is called
// before the first bytes are taken.
func (b *Bytes) Within(all *Bytes) *Bytes {
	b.within = all
	return b
}

// Limit returns what a tenant may hold if no other holds anything.
func (b *Bytes) Limit(tenant string) int64 {
	most := b.most
	if tenant != "" {
		most /= 2
	}
	if b.within != nil {
		most = min(most, b.within.Limit(tenant))
	}
	return most
}

// Take takes n bytes for a tenant, and reports false if they exceed its share.
func (b *Bytes) Take(tenant string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lacks(tenant, n) > 0 || b.within != nil && !b.within.Take(tenant, n) {
		return false
	}
	b.of[tenant] += n
	b.all += n
	return true
}

// Lacks returns how many bytes others have to give back before a tenant may take n more, if any.
func (b *Bytes) Lacks(tenant string, n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, b.lacks(tenant, n))
}

// lacks is called with mu held.
func (b *Bytes) lacks(tenant string, n int64) int64 {
	needed := b.of[tenant] + n
	if tenant != "" {
		needed *= 2
	}
	return needed - (b.most - (b.all - b.of[tenant]))
}

// Add takes n bytes for a tenant that holds them already, also if they exceed its share.
func (b *Bytes) Add(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of[tenant] += n
	b.all += n
	if b.within != nil {
		b.within.Add(tenant, n)
	}
}

// Of is what a tenant holds.
func (b *Bytes) Of(tenant string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[tenant]
}

// Give gives n bytes of a tenant back.
func (b *Bytes) Give(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.of[tenant] -= n; b.of[tenant] == 0 {
		delete(b.of, tenant)
	}
	if b.within != nil {
		b.within.Give(tenant, n)
	}
}

// Held is what all tenants hold together.
func (b *Bytes) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}
