package intake

import (
	"cmp"
	"slices"
	"time"
)

// weighTime is how often the memory that the kernel uses is added up.
const weighTime = stallTime / stallChecks

// weighed is a connection and how much memory the kernel uses for it.
type weighed struct {
	*Conn
	bytes int64
	rank  int64 // bytes of it and of the lighter ones of its owner or address; those of strangers come after all others
}

// weigh adds up what the kernel uses for all connections, again and again while there are any, and ends
// the heaviest ones beyond Kernel. No length bounds that memory: a client chooses how long the segments are
// in which it sends, receives and acknowledges, and one of a few bytes takes a thousand.
func (l *Listener) weigh() {
	if l.Kernel > 0 && l.weighing.CompareAndSwap(false, true) {
		time.AfterFunc(weighTime, func() {
			for _, c := range l.tooHeavy(l.weights()) {
				c.abort()
			}
			l.weighing.Store(false)
			if l.Count() > 0 {
				l.weigh()
			}
		})
	}
}

// weights returns all connections for which the kernel uses memory, and all of that memory.
func (l *Listener) weights() (all []weighed, total int64) {
	l.mu.Lock()
	all = make([]weighed, 0, l.count)
	for _, a := range l.addresses {
		for c := range a.all {
			all = append(all, weighed{Conn: c})
		}
		for at := a.closing.Front(); at != nil; at = at.Next() {
			all = append(all, weighed{Conn: at.Value.(*Conn)})
		}
	}
	l.mu.Unlock()
	for i := range all {
		received, unsent := Memory(all[i].Conn.Conn)
		all[i].bytes = received + unsent
		total += all[i].bytes
	}
	return slices.DeleteFunc(all, func(w weighed) bool { return w.bytes == 0 }), total
}

// tooHeavy removes connections until the others take no more than Kernel, and returns them, to be closed.
// The lightest ones of each owner or address stay, as many bytes of each; strangers stay last.
func (l *Listener) tooHeavy(all []weighed, total int64) (out []*Conn) {
	if total <= l.Kernel {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(all, func(a, b weighed) int { return cmp.Compare(a.bytes, b.bytes) })
	by := map[string]int64{}
	for i, w := range all {
		of := cmp.Or(w.payer, w.address.name)
		by[of] += w.bytes
		if all[i].rank = by[of]; w.stranger() {
			all[i].rank += 1 << 60
		}
	}
	slices.SortFunc(all, func(a, b weighed) int { return cmp.Compare(b.rank, a.rank) })
	for _, w := range all {
		if total <= l.Kernel {
			break
		}
		if total -= w.bytes; w.gone {
			continue
		}
		l.leave(w.Conn)
		l.ended[heavy]++
		out = append(out, w.Conn)
	}
	return out
}
