package kv

import (
	"slices"
	"sync"
)

// lowerTier is the tier that a Memory writes back to, and the blocks that were
// not offered to it yet. The mutex is held by callers of queue,
// next and lose, and by no others.
type lowerTier struct {
	Tier
	// dirtied signals WriteBack.
	dirtied chan struct{}

	mu *sync.Mutex // Memory.mu, which guards what follows
	// dirty blocks in order of arrival, and others that were dirty. At pruneAt of them the others
	// are left out.
	dirty   []*block
	pruneAt int
	// distrusts counts calls of Distrust.
	distrusts              int64
	offered, refused, lost int64
}

// leastPrune is the least number of blocks of which those that are not dirty any more are left out.
const leastPrune = 1024

// queue adds a new block and signals WriteBack, which may have to wait for the tier for days.
func (l *lowerTier) queue(b *block) {
	if len(l.dirty) >= max(leastPrune, l.pruneAt) {
		l.dirty = slices.DeleteFunc(l.dirty, func(b *block) bool { return !b.dirty || b.gone })
		l.pruneAt = 2 * len(l.dirty)
	}
	l.dirty = append(l.dirty, b)
	select {
	case l.dirtied <- struct{}{}:
	default:
	}
}

// next takes the oldest block that was not offered yet; nil if there is none.
func (l *lowerTier) next() (b *block) {
	for len(l.dirty) > 0 && b == nil {
		if first := l.dirty[0]; first.dirty && !first.gone {
			b = first
		}
		l.dirty[0] = nil
		l.dirty = l.dirty[1:]
	}
	return b
}

// lose counts a block that is removed without being offered.
func (l *lowerTier) lose(b *block) {
	b.dirty = false
	l.lost++
}

// offer offers a block that was taken out of the index unless that was done
// before. It returns false if the block was lost. It does not wait for the disk,
// because the caller needs the memory.
func (l *lowerTier) offer(b *block) bool {
	if l == nil || !l.claim(b) {
		return true
	}
	return l.put(func() Saved {
		saved, _ := l.Offer(b.key, int64(len(b.mapping)), func(dst []byte) error {
			copy(dst, b.mapping)
			return nil
		})
		return saved
	})
}

// claim reports whether the caller is the one to offer a block.
func (l *lowerTier) claim(b *block) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := b.dirty
	b.dirty = false
	return was
}

// put calls store to store a block, counts the result and reports whether the
// tier accepted the block. It distrusts the tier again if Distrust was called
// meanwhile.
func (l *lowerTier) put(store func() Saved) bool {
	before := l.distrusted()
	saved := store()
	if l.distrusted() != before {
		l.Tier.Distrust()
	}
	return l.count(saved)
}

// count counts the result of an offer and reports whether the tier accepted it.
func (l *lowerTier) count(saved Saved) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offered++
	if saved == Dropped {
		l.refused++
	}
	return saved != Dropped
}

func (l *lowerTier) distrusted() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.distrusts
}

// Distrust makes the tier forget its blocks, and those on their way to it.
func (l *lowerTier) Distrust() {
	l.mu.Lock()
	l.distrusts++
	l.mu.Unlock()
	l.Tier.Distrust()
}
