package pool

import (
	"cmp"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Snapshot is the reported state of the pool at one moment. It is immutable.
type Snapshot struct {
	// Generation of the assignments it follows.
	Generation  int64
	Assignments []v1alpha1.AssignmentStatus
	Memory      v1alpha1.MacMemory
	Reclaims    []v1alpha1.Reclaim
	Host        probe.Host
	// Backend of the engines, as the last one reported.
	Backend string
	// Conditions of the Mac: MemoryPressure, WiredStranded, MemoryDiverged and
	// GuardInactive. Their messages hold no figure that moves from poll to poll.
	Conditions []metav1.Condition
	// Guards of the replicas that have or had an engine in this agent's life.
	Guards []GuardCounters
	// Remembered are the prompt caches of the replicas.
	Remembered []Remembered
}

// GuardCounters count the actions of the guards of a replica's engines since this
// agent started.
type GuardCounters struct {
	UID string
	// ThrottledChunks were made smaller, RefusedRequests did not fit, and
	// AbortedPrefills ended on their way.
	ThrottledChunks, RefusedRequests, AbortedPrefills int64
}

// plus adds what one engine counted; a nil guard counted nothing.
func (c GuardCounters) plus(g *wire.Guard) GuardCounters {
	c.ThrottledChunks += g.GetThrottledChunks()
	c.RefusedRequests += g.GetRefusedRequests()
	c.AbortedPrefills += g.GetAbortedPrefills()
	return c
}

// Endpoint is a replica that requests may ask for.
type Endpoint struct {
	UID         string
	Epoch       int64
	Namespace   string
	ServedNames []string
	// Adapters are the names of the model's adapters.
	Adapters []string
	Ready    bool
	// Holds are the requests it serves now.
	Holds int
}

// endpoints lists them in a fixed order; the caller holds mu.
func (rs *replicas) endpoints() (all []Endpoint) {
	for _, e := range rs.entries {
		if e.assignment.ReplicaUID != "" && e.want != wantInvalid && e.want != wantGone && !e.released {
			all = append(all, e.endpoint())
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}

// reports are those of all entries, one for each replica; the caller holds mu.
func (rs *replicas) reports(now time.Time) (all []v1alpha1.AssignmentStatus) {
	for _, e := range rs.entries {
		if e.want == wantUnknown && e.engine == nil {
			continue // known from the journal, and not assigned yet
		}
		all = append(all, rs.report(e, now))
	}
	return oneEach(all)
}

// oneEach sorts the reports and keeps the newest epoch of each replica: the
// list is keyed by replica.
func oneEach(all []v1alpha1.AssignmentStatus) []v1alpha1.AssignmentStatus {
	slices.SortFunc(all, func(a, b v1alpha1.AssignmentStatus) int {
		return cmp.Or(cmp.Compare(a.ReplicaUID, b.ReplicaUID), cmp.Compare(b.Epoch, a.Epoch))
	})
	return slices.CompactFunc(all, func(a, b v1alpha1.AssignmentStatus) bool { return a.ReplicaUID == b.ReplicaUID })
}

func (e *entry) endpoint() Endpoint {
	n := Endpoint{UID: e.key.UID, Epoch: e.key.Epoch, Namespace: e.assignment.Namespace, ServedNames: e.assignment.ServedNames}
	for _, a := range e.assignment.Model.Adapters {
		n.Adapters = append(n.Adapters, a.Name)
	}
	if e.engine != nil {
		n.Ready, n.Holds = e.state == Ready && e.engine.state == Ready, len(e.engine.holds)
	}
	return n
}

// guards lists the counters of each replica, over all its engines of this
// agent's life; the caller holds mu.
func (rs *replicas) guards() (all []GuardCounters) {
	for _, e := range rs.entries {
		c := e.guards
		if c.UID = e.key.UID; e.engine != nil {
			c = c.plus(e.engine.status.GetGuard())
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b GuardCounters) int { return cmp.Compare(a.UID, b.UID) })
	sums := all[:0] // one for each replica, over its epochs
	for _, c := range all {
		if n := len(sums); n > 0 && sums[n-1].UID == c.UID {
			last := &sums[n-1]
			last.ThrottledChunks += c.ThrottledChunks
			last.RefusedRequests += c.RefusedRequests
			last.AbortedPrefills += c.AbortedPrefills
			continue
		}
		sums = append(sums, c)
	}
	return sums
}

// report is the status of one entry; the caller holds mu.
func (rs *replicas) report(e *entry, now time.Time) v1alpha1.AssignmentStatus {
	s := v1alpha1.AssignmentStatus{
		ReplicaUID: e.key.UID, Epoch: e.key.Epoch,
		Freed: e.freed, Restarts: e.restarts, LastFailure: e.lastFailure, Canary: e.canary,
	}
	if e.reserved {
		s.Memory.ReservedBytes = e.assignment.ReservedBytes
		if e.engine != nil {
			s.Memory.ReservedBytes = e.engine.record.Reserved // the assignment may ask for another by now
		}
	}
	if g := e.engine; g != nil && g.alive() {
		s.PID = int64(g.pid)
		s.Memory.LimitBytes, s.Memory.FootprintBytes = g.config.LimitBytes, g.footprint
		m := g.status.GetMemory()
		s.Memory.WeightsBytes, s.Memory.KVInUseBytes = m.GetWeightsBytes(), m.GetKvInUseBytes()
		s.Memory.ActiveBytes, s.Memory.PooledBytes = m.GetActiveBytes(), m.GetPooledBytes()
		s.Memory.AccountedBytes = accounted(m)
		s.Activity = activityOf(g.status)
		if !g.measured.IsZero() {
			at := metav1.NewTime(g.measured)
			s.Memory.MeasuredAt = &at
		}
	}
	e.conditions = transition(e.conditions, rs.derive(e, now), now)
	s.Conditions, s.Progress = slices.Clone(e.conditions), e.progress(now)
	return s
}

// progress names the stage and how far it is; conditions are those of now.
func (e *entry) progress(now time.Time) v1alpha1.Progress {
	d := &e.download
	switch {
	case e.released:
		return v1alpha1.Progress{Stage: v1alpha1.StageReleased}
	case e.refused != nil || e.want == wantInvalid && e.engine == nil:
		return v1alpha1.Progress{Stage: v1alpha1.StageFailed}
	case e.state == Draining || e.state == Stopping:
		return v1alpha1.Progress{Stage: v1alpha1.StageDraining}
	case e.state == Ready, e.asleep() && e.demand == nil && meta.IsStatusConditionTrue(e.conditions, v1alpha1.ConditionServing):
		return v1alpha1.Progress{Stage: v1alpha1.StageServing}
	case e.state == Loading && e.engine != nil:
		l := e.engine.status.GetLoad()
		return progressOf(v1alpha1.StageLoading, l.GetBytesDone(), l.GetBytesTotal(), now.Sub(e.engine.loadBegan))
	case d.running && d.total > 0 && d.bytes >= d.total:
		return v1alpha1.Progress{Stage: v1alpha1.StageVerifying, BytesDone: d.bytes, BytesTotal: d.total}
	case d.running:
		return progressOf(v1alpha1.StageDownloading, d.bytes, d.total, now.Sub(d.since))
	}
	return v1alpha1.Progress{Stage: v1alpha1.StageQueued}
}

// progressOf adds the time to the end at the rate so far, an estimate.
func progressOf(stage v1alpha1.Stage, done, total int64, took time.Duration) v1alpha1.Progress {
	p := v1alpha1.Progress{Stage: stage, BytesDone: max(0, done), BytesTotal: max(0, total)}
	if done > 0 && total >= done && took >= time.Second {
		eta := int64(min(math.MaxInt32, math.Ceil(took.Seconds()/float64(done)*float64(total-done))))
		p.ETASeconds = &eta
	}
	return p
}

// activityOf is what an engine works on; nil before its first report.
func activityOf(s *wire.Status) *v1alpha1.EngineActivity {
	a := s.GetActivity()
	if a == nil {
		return nil
	}
	return &v1alpha1.EngineActivity{
		Running: max(0, a.GetRunning()), Queued: max(0, a.GetQueued()), CacheBytes: max(0, s.GetMemory().GetPrefixCacheBytes()),
		PromptTokensTotal: max(0, a.GetPromptTokensTotal()), GeneratedTokensTotal: max(0, a.GetGeneratedTokensTotal()),
	}
}
