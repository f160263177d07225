package cold

// Site is where a block was dropped: one of a closed set.
type Site int

// The sites. Each dropped block counts at exactly one of them.
const (
	// AtQueue: the queue had no room within PutWait.
	AtQueue Site = iota
	// AtGrant: the owner of the disk granted no bytes in time.
	AtGrant
	// AtDetached: the disk has no owner at present.
	AtDetached
	// AtSize: larger than the whole queue.
	AtSize
	// AtFence: the epoch ended while the block waited or was being written.
	AtFence
	// AtShutdown: the tier was closing or closed.
	AtShutdown
	sites
)

// String is the site's label in metrics.
func (s Site) String() string {
	return [sites]string{"queue", "grant", "detached", "size", "fence", "shutdown"}[s]
}

// Sites lists all sites.
func Sites() []Site {
	out := make([]Site, sites)
	for i := range out {
		out[i] = Site(i)
	}
	return out
}

// Counters counts blocks since the tier was opened. At any time, Persisted +
// Queued + dropped + Failed = Accepted.
type Counters struct {
	// Accepted blocks were offered and not yet on the disk.
	Accepted int64
	// Queued blocks wait or are being written, and take QueuedBytes of memory.
	Queued      int64
	QueuedBytes int64
	// Persisted blocks have their final name on the disk, where they take
	// PersistedBytes; PayloadBytes is the sum of their payloads.
	Persisted      int64
	PersistedBytes int64
	PayloadBytes   int64
	// Dropped counts dropped blocks by site.
	Dropped [sites]int64
	// Failed blocks could not be written; FullDisk counts those of them for
	// which the disk had no space.
	Failed   int64
	FullDisk int64
	// WrittenBytes were written to the disk, including failed files;
	// CopiedBytes were copied into the queue.
	WrittenBytes int64
	CopiedBytes  int64
	// Known blocks were offered and already on the disk.
	Known int64
	// Read blocks were found and verified, Pending of them in the queue. Missed
	// ones were absent, Damaged ones were corrupt.
	Read, Pending, Missed, Damaged int64
}

// DroppedTotal is the sum of Dropped.
func (c Counters) DroppedTotal() int64 {
	var sum int64
	for _, n := range c.Dropped {
		sum += n
	}
	return sum
}

// Balanced reports whether every accepted block is accounted for.
func (c Counters) Balanced() bool {
	return c.Persisted+c.Queued+c.DroppedTotal()+c.Failed == c.Accepted
}
