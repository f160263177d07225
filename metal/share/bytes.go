package share

import "sync"

// Bytes are memory that the requests of tenants hold. A tenant gets at most half of what the
// others leave, so that there is always some left for one that holds none.
type Bytes struct {
	most int64

	mu  sync.Mutex
	of  map[string]int64 // by tenant, guarded by mu
	all int64            // guarded by mu
}

// NewBytes returns this many bytes, which no tenant holds yet.
func NewBytes(most int64) *Bytes { return &Bytes{most: most, of: map[string]int64{}} }

// Limit returns what a tenant may hold if no other holds anything.
func (b *Bytes) Limit(tenant string) int64 {
	if tenant == "" {
		return b.most
	}
	return b.most / 2
}

// Take takes n bytes for a tenant, and reports false if they exceed its share.
func (b *Bytes) Take(tenant string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.most - (b.all - b.of[tenant])
	if tenant != "" {
		left /= 2
	}
	if b.of[tenant]+n > left {
		return false
	}
	b.of[tenant] += n
	b.all += n
	return true
}

// Add takes n bytes for a tenant that holds them already, also if they exceed its share.
func (b *Bytes) Add(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of[tenant] += n
	b.all += n
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
}

// Held is what all tenants hold together.
func (b *Bytes) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}
