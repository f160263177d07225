package weights

import (
	"fmt"
	"sync"
)

// HeaderMemory is what the headers that a process reads may take together; one alone may take
// half of it. A header of ordinary size takes up to 40 MB.
const HeaderMemory = 256 << 20

// What a header's parts take besides their bytes, about.
const (
	stringMemory = 16
	keyMemory    = 96
	tensorMemory = 192
)

// Budget is the memory that headers take while they are read, shared by all that are read at
// once. It is for any number of goroutines.
type Budget struct {
	most int64 // of one header

	mu   sync.Mutex
	left int64 // guarded by mu
}

// NewBudget makes one of this size.
func NewBudget(bytes int64) *Budget { return &Budget{most: bytes / 2, left: bytes} }

// take reports whether there are n bytes more.
func (b *Budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *Budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// takeStep is how much a header takes of its budget at once.
const takeStep = 1 << 20

// take counts memory before it is allocated.
func (d *decoder) take(n int64) error {
	d.used += n
	if d.used > d.budget.most {
		return d.invalid("the header takes more than %d bytes of memory", d.budget.most)
	}
	for d.taken < d.used {
		step := max(takeStep, d.used-d.taken)
		if !d.budget.take(step) {
			return fmt.Errorf("read the header at byte %d: %w", d.at, ErrBusy)
		}
		d.taken += step
	}
	return nil
}
