package cold

// Site is where a block was dropped: one of a closed set.
type Site int

// The sites. Each dropped block counts at exactly one.
const (
	// AtQueue: no room in the queue within the time that Put waits.
	AtQueue Site = iota
	// AtGrant: the owner of the disk granted no bytes in time, or has none.
	AtGrant
	// AtDetached: nobody owns the disk at present.
	AtDetached
	// AtSize: larger than the whole queue.
	AtSize
	// AtFence: the epoch ended while the block was waiting or being written.
	AtFence
	// AtShutdown: the tier was closing, or closed before the block's turn.
	AtShutdown
	sites
)

// String is the site as labels of metrics have it.
func (s Site) String() string {
	return [sites]string{"queue", "grant", "detached", "size", "fence", "shutdown"}[s]
}

// Sites are all of them.
func Sites() []Site {
	out := make([]Site, sites)
	for i := range out {
		out[i] = Site(i)
	}
	return out
}

// Counters say what became of blocks since the tier was opened. At any time,
// Persisted + Queued + dropped + Failed = Accepted.
type Counters struct {
	// Accepted blocks were offered and not yet there.
	Accepted int64
	// Queued blocks wait or are being written, and take QueuedBytes of memory.
	Queued      int64
	QueuedBytes int64
	// Persisted blocks are under their name on the disk, and take
	// PersistedBytes of it; PayloadBytes of that were put.
	Persisted      int64
	PersistedBytes int64
	PayloadBytes   int64
	// Dropped blocks, by site.
	Dropped [sites]int64
	// Failed blocks could not be written; FullDisk of them for want of space.
	Failed   int64
	FullDisk int64
	// WrittenBytes were given to the disk, those of failed files included, and
	// CopiedBytes were copied into the queue.
	WrittenBytes int64
	CopiedBytes  int64
	// Known blocks were offered and were there.
	Known int64
	// Read blocks were found and verified, Pending of them in the queue.
	// Missed were not there, Damaged were and could not be used.
	Read, Pending, Missed, Damaged int64
}

// DroppedTotal is the sum over all sites.
func (c Counters) DroppedTotal() int64 {
	var sum int64
	for _, n := range c.Dropped {
		sum += n
	}
	return sum
}

// Balanced says whether every accepted block is somewhere.
func (c Counters) Balanced() bool {
	return c.Persisted+c.Queued+c.DroppedTotal()+c.Failed == c.Accepted
}
