package cold

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// PutWait is how long Put waits for room.
const PutWait = 250 * time.Millisecond

const (
	// maxTouched bounds how many used keys wait to be reported: they are a hint.
	maxTouched = 4096
	// maxDamaged is how many damaged blocks one report has before the tier closes: the owner removes each.
	maxDamaged = 4096
	// MaxDamaged is how many a report of a closing tier has: the engine may end before the owner takes
	// another.
	MaxDamaged = 1 << 16
)

// Options configure a tier.
type Options struct {
	FS     disk.FS
	Origin kv.Origin
	// QueueBytes bounds the copies of payloads that wait to be written.
	QueueBytes int64
	// PutWait is how long Put waits for room; 0 means the constant PutWait.
	PutWait time.Duration
	Log     *slog.Logger
}

// Lease is the owner's permission to write.
type Lease struct {
	// Dir is the model folder, which has all namespaces of the engine's model.
	Dir string
	// Epoch is the name of the engine's temporary folder, which the owner
	// creates.
	Epoch string
	// GrantedBytes is the total disk space that this epoch may use.
	GrantedBytes int64
	// Final means that the owner will not increase the grant for now, so that
	// Put does not wait for it.
	Final bool
}

// Tier is an engine's cache on disk. It implements kv.Tier.
type Tier struct {
	opt Options
	ns  Namespace

	mu     sync.Mutex
	lease  Lease
	ended  string // the epoch that Detach ended
	spent  int64  // bytes of the grant that files of this epoch take
	owed   int64  // bytes of the grant that queued blocks will take
	missed int64  // the largest block that the grant had no room for
	// starved means that a Put waited in vain for a grant; until the next grant
	// no other Put waits.
	starved bool
	queue   []*item
	pending map[kv.Key]*item
	// bad are damaged files, by the time of their last change.
	bad     map[kv.Key]time.Time
	report  Report
	written written
	touched map[kv.Key]struct{}
	counts  Counters
	closing bool
	// epoch grows with each Distrust: earlier blocks must not be used.
	epoch int64
	// changed is closed and replaced when waiting goroutines have to check
	// again.
	changed chan struct{}

	wake    chan struct{} // the writer has work, or is to end
	news    chan struct{} // a report is worth reading
	stopped chan struct{} // the writer has ended
}

// item is a block that waits to be written.
type item struct {
	key     kv.Key
	payload []byte
	takes   int64
	lease   Lease
	epoch   int64
	// unseen: not yet checked whether the disk has the block already.
	unseen bool
}

// Open starts a tier without a disk; see Attach. Close ends it.
func Open(o Options) *Tier {
	if o.PutWait == 0 {
		o.PutWait = PutWait
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tier{
		opt: o, ns: NamespaceOf(o.Origin),
		pending: map[kv.Key]*item{}, bad: map[kv.Key]time.Time{}, touched: map[kv.Key]struct{}{}, written: written{again: map[kv.Key]bool{}},
		changed: make(chan struct{}), wake: make(chan struct{}, 1), news: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	go t.write()
	return t
}

// Namespace returns the namespace of the tier's blocks.
func (t *Tier) Namespace() Namespace { return t.ns }

// Counters returns the counters.
func (t *Tier) Counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// Attach sets the owner's lease, or raises its grant. A new epoch ends the
// previous one: its queued blocks are dropped and can no longer be read.
func (t *Tier) Attach(l Lease) error {
	if err := CheckEpoch(l.Epoch); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case l.Epoch == t.ended:
		return fmt.Errorf("epoch %q has ended: its grant may already be spent", l.Epoch)
	case l.Epoch != t.lease.Epoch || l.Dir != t.lease.Dir:
		t.dropQueue(AtFence)
		t.lease, t.spent, t.owed, t.starved = l, 0, 0, false
		t.report, t.touched, t.bad = Report{Damaged: t.written.distrusted()}, map[kv.Key]struct{}{}, map[kv.Key]time.Time{}
		if len(t.report.Damaged) > 0 {
			t.tell()
		}
	case l.GrantedBytes > t.lease.GrantedBytes:
		t.lease.GrantedBytes, t.starved = l.GrantedBytes, false
		t.lease.Final = l.Final
	default: // only a new epoch reduces a grant
		t.lease.Final = l.Final
	}
	t.broadcast()
	return nil
}

// Await implements kv.Tier: it waits until there is a lease, or the tier
// closes.
func (t *Tier) Await(ctx context.Context) error {
	for {
		t.mu.Lock()
		taken, changed := t.lease.Epoch != "" || t.closing, t.changed
		t.mu.Unlock()
		if taken {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Detach ends the lease and its epoch. Blocks on the disk can still be read.
func (t *Tier) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropQueue(AtDetached)
	if t.lease.Epoch != "" {
		t.ended = t.lease.Epoch
	}
	t.lease = Lease{Dir: t.lease.Dir}
	t.spent, t.owed = 0, 0
	t.report = Report{}
	t.broadcast()
}

// Distrust implements kv.Tier: it drops queued blocks, does not rename those
// being written into place, and reports those written before to the owner. None
// of them is found until it is written again.
func (t *Tier) Distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropQueue(AtFence)
	t.epoch++
	t.report.Damaged = append(t.report.Damaged, t.written.distrust()...)
	clear(t.pending) // one that is being written
	t.broadcast()
	t.tell()
}

// Close accepts no more blocks, writes the queued ones until ctx ends, and
// drops the rest. It does not wait for a write that hangs; that block still
// counts as queued.
func (t *Tier) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closing = true
	t.broadcast()
	t.mu.Unlock()
	t.notify()
	var err error
	select {
	case <-t.stopped:
	case <-ctx.Done():
		err = ctx.Err()
		t.mu.Lock()
		t.dropQueue(AtShutdown)
		t.lease.Epoch = "" // a write in progress must not rename its file
		t.mu.Unlock()
	}
	return err
}

// dropQueue drops the queued blocks. The caller holds the lock. The block being
// written is no longer in the queue.
func (t *Tier) dropQueue(at Site) {
	for _, it := range t.queue {
		t.forget(it, int64(len(it.payload)))
		t.counts.Dropped[at]++
	}
	t.queue = nil
}

// forget releases n bytes of the queue's accounts for a block. The caller holds
// the lock.
func (t *Tier) forget(it *item, n int64) {
	if t.pending[it.key] == it {
		delete(t.pending, it.key)
	}
	t.counts.Queued--
	t.counts.QueuedBytes -= n
	if it.lease.Epoch == t.lease.Epoch {
		t.owed -= it.takes
	}
}

// broadcast makes waiting goroutines check again. The caller holds the lock.
func (t *Tier) broadcast() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *Tier) notify() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// File is a block on the disk.
type File struct {
	Key kv.Key
	// Bytes that it takes of the disk.
	Bytes int64
}

// Report is what the owner must know, since the report before.
type Report struct {
	Epoch string
	// Persisted blocks, in order; SpentBytes of the grant are used up.
	Persisted  []File
	SpentBytes int64
	// Touched blocks were used; Damaged ones should be removed.
	Touched []kv.Key
	Damaged []kv.Key
	// WantedBytes is how much more the tier would like to be granted at once;
	// it cannot use less than LeastBytes.
	WantedBytes, LeastBytes int64
	Counters                Counters
}

// News has a value when there is something to report.
func (t *Tier) News() <-chan struct{} { return t.news }

// Report returns the events since the previous one, in the present epoch.
func (t *Tier) Report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.report
	t.report = Report{}
	most := maxDamaged
	if t.closing {
		most = MaxDamaged
	}
	if len(r.Damaged) > most {
		r.Damaged, t.report.Damaged = r.Damaged[:most:most], r.Damaged[most:]
		t.tell()
	}
	r.Epoch, r.SpentBytes, r.Counters = t.lease.Epoch, t.spent, t.counts
	for k := range t.touched {
		r.Touched = append(r.Touched, k)
	}
	clear(t.touched)
	if used := t.counts.Accepted > 0 || t.missed > 0; used && !t.closing {
		r.LeastBytes = t.missed
		r.WantedBytes = max(0, max(t.missed, Takes(t.opt.QueueBytes))-(t.lease.GrantedBytes-t.spent-t.owed))
	}
	return r
}

// Unreported reports whether damaged blocks had no room in the last report. News has a value then.
func (t *Tier) Unreported() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.report.Damaged) > 0
}

func (t *Tier) tell() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}

// touch notes a use; the caller holds the lock.
func (t *Tier) touch(key kv.Key) {
	if len(t.touched) < maxTouched {
		t.touched[key] = struct{}{}
		t.tell()
	}
}
