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

// maxTouched bounds how many used keys wait to be reported: they are a hint.
const maxTouched = 4096

// Options are what a tier is opened with.
type Options struct {
	FS     disk.FS
	Origin kv.Origin
	// QueueBytes bounds the copies of payloads that wait to be written.
	QueueBytes int64
	// PutWait is how long Put waits for room; 0 means PutWait.
	PutWait time.Duration
	Log     *slog.Logger
}

// Lease is the owner's leave to write.
type Lease struct {
	// Dir is the folder of all namespaces of the engine's model.
	Dir string
	// Epoch names the engine's temporary folder, which the owner made.
	Epoch string
	// GrantedBytes may be taken of the disk in this epoch, all in all.
	GrantedBytes int64
	// Final says that the owner will grant no more for now, so that nobody
	// waits for it.
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
	// starved says that somebody waited for a grant in vain; until there is a
	// new one nobody else does.
	starved bool
	queue   []*item
	pending map[kv.Key]*item
	// bad are damaged files, by the time of their last change.
	bad    map[kv.Key]time.Time
	report Report
	// mine were persisted since the tier was opened, distrusted ones of them not
	// anew since.
	mine, distrusted map[kv.Key]struct{}
	touched          map[kv.Key]struct{}
	counts           Counters
	closing          bool
	// epoch grows when what was put before is not to be trusted.
	epoch int64
	// changed is closed and replaced when waiting may have become useless.
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
	// unseen: nobody looked yet whether the disk has it already.
	unseen bool
}

// Open starts a tier that has no disk yet. Close ends it.
func Open(o Options) *Tier {
	if o.PutWait == 0 {
		o.PutWait = PutWait
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tier{
		opt: o, ns: NamespaceOf(o.Origin),
		pending: map[kv.Key]*item{}, bad: map[kv.Key]time.Time{}, touched: map[kv.Key]struct{}{}, mine: map[kv.Key]struct{}{}, distrusted: map[kv.Key]struct{}{},
		changed: make(chan struct{}), wake: make(chan struct{}, 1), news: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	go t.write()
	return t
}

// Namespace is where the tier's blocks lie.
func (t *Tier) Namespace() Namespace { return t.ns }

// Counters are what became of blocks so far.
func (t *Tier) Counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// Attach takes the owner's leave, or a larger grant of it. A new epoch ends the
// one before: what was queued in it is dropped and can no longer be read.
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
		t.report, t.touched, t.bad = Report{}, map[kv.Key]struct{}{}, map[kv.Key]time.Time{}
	case l.GrantedBytes > t.lease.GrantedBytes:
		t.lease.GrantedBytes, t.starved = l.GrantedBytes, false
		t.lease.Final = l.Final
	default: // a grant is never taken back, but by a new epoch
		t.lease.Final = l.Final
	}
	t.broadcast()
	return nil
}

// Await implements kv.Tier: it waits until the owner gave leave to write, or the
// tier closes.
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

// Detach ends the leave to write, and its epoch with it. What is on the disk can still be read.
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

// Distrust implements kv.Tier: what waits is dropped, what is being written is
// given no name, and the owner hears of what was written. Until it is written anew
// none of it is found.
func (t *Tier) Distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropQueue(AtFence)
	t.epoch++
	for k := range t.mine {
		t.distrusted[k] = struct{}{}
		t.report.Damaged = append(t.report.Damaged, k)
	}
	clear(t.mine)
	clear(t.pending) // one that is being written
	t.broadcast()
	t.tell()
}

// Close takes no more blocks, writes those that are queued until ctx ends, and
// drops the rest. A write that the disk does not answer is left alone; it counts
// as queued.
func (t *Tier) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closing = true
	t.broadcast()
	t.mu.Unlock()
	t.poke()
	var err error
	select {
	case <-t.stopped:
	case <-ctx.Done():
		err = ctx.Err()
		t.mu.Lock()
		t.dropQueue(AtShutdown)
		t.lease.Epoch = "" // a write that is under way gives its file no name
		t.mu.Unlock()
	}
	return err
}

// dropQueue forgets what waits; the caller holds the lock. What is being written
// is no longer in the queue, and ends by itself.
func (t *Tier) dropQueue(at Site) {
	for _, it := range t.queue {
		t.forget(it, int64(len(it.payload)))
		t.counts.Dropped[at]++
	}
	t.queue = nil
}

// forget takes a block of n bytes out of the books of the queue; the caller holds
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

// broadcast lets whoever waits look again; the caller holds the lock.
func (t *Tier) broadcast() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *Tier) poke() {
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
	// Touched blocks were used, and Damaged ones must go.
	Touched []kv.Key
	Damaged []kv.Key
	// WantedBytes is how much more the tier would like to be granted at once;
	// it cannot use less than LeastBytes.
	WantedBytes, LeastBytes int64
	Counters                Counters
}

// News has a value when there is something to report.
func (t *Tier) News() <-chan struct{} { return t.news }

// Report says what happened since the last one, in the present epoch.
func (t *Tier) Report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.report
	t.report = Report{}
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
