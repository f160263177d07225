package cold

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// Snapshot is the state after the owner's last operation.
type Snapshot struct {
	// LimitBytes is the limit of UsedBytes of files plus GrantedBytes that
	// engines may still write; FreeBytes of the disk as last measured, and
	// BacklogBytes above a limit that fell.
	LimitBytes, UsedBytes, GrantedBytes, FreeBytes, BacklogBytes int64
	// Files, of which ForeignFiles are no blocks of this version.
	Files, ForeignFiles int
	// Evictions of files and their bytes; UnlinkFailures failed.
	Evictions, EvictedBytes, UnlinkFailures int64
	// Namespaces in the order of their names.
	Namespaces []Namespace
	// Blocks of all engines since the agent began.
	Blocks blocks.Counters
	// Problem is the last failure, as a sentence; empty if there was none lately.
	Problem string
	// Waiting is true while Tick has work left.
	Waiting bool
}

// Namespace is the part of the cache of one kind of engine.
type Namespace struct {
	Name    string
	Model   string
	Blocks  int
	Bytes   int64
	Engines int
}

// Snapshot does not wait for the disk.
func (w *Owner) Snapshot() *Snapshot { return w.view.Load() }

// publish replaces the snapshot; the caller holds work.
func (w *Owner) publish() {
	b := w.books
	s := &Snapshot{
		LimitBytes: b.limit(), UsedBytes: b.index.Total(), GrantedBytes: b.charged(), FreeBytes: b.room.Free(), BacklogBytes: b.backlog(),
		Files: b.index.Files(), ForeignFiles: b.index.ForeignFiles(),
		Evictions: b.evictions, EvictedBytes: b.evictedBytes, UnlinkFailures: b.unlinkFailures,
		Blocks: b.total(), Problem: b.problem, Waiting: b.backlog() > 0,
	}
	engines := map[blocks.Namespace]int{}
	for a := range b.accounts {
		engines[a.namespace]++
		s.Waiting = s.Waiting || a.ending || a.wanted > 0 && !a.final
	}
	for n := range w.namespaces() {
		sum := b.index.Sum(n)
		s.Namespaces = append(s.Namespaces, Namespace{Name: n.String(), Model: w.origins[n].Model, Blocks: sum.Blocks, Bytes: sum.Bytes, Engines: engines[n]})
	}
	slices.SortFunc(s.Namespaces, func(a, b Namespace) int { return strings.Compare(a.Name, b.Name) })
	w.view.Store(s)
}

// series are the owner's metrics.
type series struct {
	w                                                 *Owner
	bytes, files, evictions, evicted, failures, ended *prometheus.Desc
	written, reads                                    *prometheus.Desc
}

// Collector reads the owner's metrics at each scrape.
func (w *Owner) Collector() prometheus.Collector {
	const prefix = "metalfleet_agent_cache_"
	return &series{
		w:         w,
		bytes:     prometheus.NewDesc(prefix+"bytes", "The cache on this Mac's disk by term: limit, used, granted, free, backlog.", []string{"term"}, nil),
		files:     prometheus.NewDesc(prefix+"files", "Files in the cache: blocks, and foreign files, which are evicted first.", []string{"kind"}, nil),
		evictions: prometheus.NewDesc(prefix+"evictions_total", "Files evicted from the cache to make room.", nil, nil),
		evicted:   prometheus.NewDesc(prefix+"evicted_bytes_total", "Bytes of files evicted from the cache to make room.", nil, nil),
		failures:  prometheus.NewDesc(prefix+"unlink_failures_total", "Cache files that could not be removed.", nil, nil),
		ended:     prometheus.NewDesc(prefix+"blocks_total", "Blocks that engines saved, by outcome.", []string{"result"}, nil),
		written:   prometheus.NewDesc(prefix+"written_bytes_total", "Bytes that engines wrote to the cache: total, and payloads that were persisted.", []string{"kind"}, nil),
		reads:     prometheus.NewDesc(prefix+"reads_total", "Blocks that engines looked up, by result.", []string{"result"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *series) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.bytes, c.files, c.evictions, c.evicted, c.failures, c.ended, c.written, c.reads} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *series) Collect(out chan<- prometheus.Metric) {
	s := c.w.Snapshot()
	gauge := func(d *prometheus.Desc, v int64, label ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), label...)
	}
	count := func(d *prometheus.Desc, v int64, label ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), label...)
	}
	gauge(c.bytes, s.LimitBytes, "limit")
	gauge(c.bytes, s.UsedBytes, "used")
	gauge(c.bytes, s.GrantedBytes, "granted")
	gauge(c.bytes, s.FreeBytes, "free")
	gauge(c.bytes, s.BacklogBytes, "backlog")
	gauge(c.files, int64(s.Files-s.ForeignFiles), "block")
	gauge(c.files, int64(s.ForeignFiles), "foreign")
	count(c.evictions, s.Evictions)
	count(c.evicted, s.EvictedBytes)
	count(c.failures, s.UnlinkFailures)
	count(c.ended, s.Blocks.Persisted, "persisted")
	count(c.ended, s.Blocks.Failed, "failed")
	for _, site := range blocks.Sites() {
		count(c.ended, s.Blocks.Dropped[site], "dropped_"+site.String())
	}
	count(c.written, s.Blocks.WrittenBytes, "all")
	count(c.written, s.Blocks.PayloadBytes, "payload")
	count(c.reads, s.Blocks.Read, "found")
	count(c.reads, s.Blocks.Missed, "missed")
	count(c.reads, s.Blocks.Damaged, "damaged")
}
