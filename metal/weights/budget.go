package weights

import (
	"fmt"
	"sync"
)

// HeaderMemory bounds the memory of all headers that a process reads; one
// header may take half of it. A typical header takes up to 40 MB.
const HeaderMemory = 256 << 20

// What a header's parts take besides their bytes, about.
const (
	stringMemory = 16
	keyMemory    = 96
	tensorMemory = 192
	slotMemory   = 640 // of a tensor that the model reads: what it wants there, and has
	// jsonMemory is for each byte of JSON, until it is parsed: the text, the decoder's
	// buffer, which doubles, and a string.
	jsonMemory = 4
)

// Budget is the memory that headers take while they are read and kept, shared by all of a process. It is for any number of goroutines.
type Budget struct {
	most int64 // of one header

	mu   sync.Mutex
	left int64 // guarded by mu
}

// NewBudget returns a budget of this size, of which one header may take half.
func NewBudget(bytes int64) *Budget { return &Budget{most: bytes / 2, left: bytes} }

// NewBudgetFor returns a budget with room for a number of the largest headers of HeaderMemory.
func NewBudgetFor(headers int) *Budget {
	return &Budget{most: HeaderMemory / 2, left: int64(headers) * HeaderMemory / 2}
}

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

// Reserve takes bytes for what is read together with a header, until release is called. The
// error is ErrBusy where others that are read now left too little.
func (b *Budget) Reserve(bytes int64) (release func(), err error) {
	if !b.take(bytes) {
		return nil, fmt.Errorf("reserve %d bytes: %w", bytes, ErrBusy)
	}
	return sync.OnceFunc(func() { b.give(bytes) }), nil
}

// takeStep is how much a header takes of its budget at once.
const takeStep = 1 << 20

// account is what one header takes of a budget, or those of one folder together.
type account struct {
	budget *Budget
	// used memory, for which taken was taken of the budget. held of both are those of an open
	// model, which gives them back itself.
	used, taken, held int64
}

// with is the account of a header that is read while a model is open. Both together take no more
// than one header may: who reads several models at once has room for as many headers.
func (b *Budget) with(f *File) account {
	return account{budget: b, used: f.held, taken: f.held, held: f.held}
}

// take counts memory before it is allocated, for what is read at a byte of a file.
func (a *account) take(n, at int64) error {
	a.used += n
	if a.used > a.budget.most {
		return &formatError{ErrInvalid, at, fmt.Sprintf("the header takes more than %d bytes of memory", a.budget.most)}
	}
	for a.taken < a.used {
		step := max(takeStep, a.used-a.taken)
		if !a.budget.take(step) {
			return fmt.Errorf("read the header at byte %d: %w", at, ErrBusy)
		}
		a.taken += step
	}
	return nil
}

// free counts memory that is not used any more. The account keeps it for what is next.
func (a *account) free(n int64) { a.used -= n }

// keep gives back to the budget what is not used any more, and returns what gives back the rest.
func (a *account) keep() (release func()) {
	used, budget := a.used, a.budget
	budget.give(a.taken - used)
	a.used, a.taken = 0, 0
	return sync.OnceFunc(func() { budget.give(used) })
}

// close gives all of it back to the budget.
func (a *account) close() {
	a.budget.give(a.taken - a.held)
	a.used, a.taken = a.held, a.held
}

func (d *decoder) take(n int64) error { return d.memory.take(n, d.at) }
