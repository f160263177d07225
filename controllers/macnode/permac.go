package macnode

import "sync"

// perMac is what a reconciler remembers of each Mac, by name. The zero value remembers
// nothing. It is safe for concurrent use; values are replaced and never changed.
type perMac[T any] struct {
	mu sync.Mutex
	of map[string]T // guarded by mu
}

// known returns what is remembered, and whether there is anything.
func (p *perMac[T]) known(mac string) (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, met := p.of[mac]
	return v, met
}

func (p *perMac[T]) remember(mac string, v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]T{}
	}
	p.of[mac] = v
}

func (p *perMac[T]) forget(mac string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, mac)
}
