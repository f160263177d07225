package pool

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Snapshot is what the pool has to report at one moment. Nobody changes it.
type Snapshot struct {
	// Generation of the orders it follows.
	Generation  int64
	Assignments []v1alpha1.AssignmentStatus
	Memory      v1alpha1.MacMemory
	Reclaims    []v1alpha1.Reclaim
	Host        probe.Host
	// Backend of the engines, as the last one said.
	Backend string
}

// Endpoint is a replica that requests may ask for.
type Endpoint struct {
	UID         string
	Epoch       int64
	Namespace   string
	ServedNames []string
	Ready       bool
	// Holds are the requests it serves now.
	Holds int
}

// ReasonInvalidOrder of Admitted: the order cannot be followed.
const ReasonInvalidOrder = "InvalidOrder"

// Snapshot is the newest one.
func (p *Pool) Snapshot() *Snapshot { return p.snapshot.Load() }

// Endpoints are the replicas that requests may ask for now, with the holds of
// this moment (a Snapshot's may be a while old).
func (p *Pool) Endpoints() []Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints()
}

// endpoints lists them in a fixed order; the caller holds mu.
func (p *Pool) endpoints() (all []Endpoint) {
	for _, e := range p.entries {
		if e.order.ReplicaUID != "" && e.want != wantInvalid && e.want != wantGone && !e.released {
			all = append(all, e.endpoint())
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}

// publish makes a new snapshot and says so.
func (p *Pool) publish() {
	p.mu.Lock()
	p.snapshot.Store(p.build(time.Now()))
	p.mu.Unlock()
	p.Changed()
}

// build makes a snapshot; the caller holds mu.
func (p *Pool) build(now time.Time) *Snapshot {
	s := &Snapshot{Generation: p.generation, Reclaims: p.reclaims, Host: p.host, Backend: p.backend, Memory: p.memory()}
	for _, e := range p.entries {
		if e.want == wantUnknown && e.engine == nil {
			continue // remembered, and nobody asked for it yet
		}
		s.Assignments = append(s.Assignments, e.status(now))
	}
	s.Assignments = oneEach(s.Assignments)
	return s
}

// oneEach sorts the reports and keeps the newest epoch of each replica: the
// list is keyed by replica.
func oneEach(all []v1alpha1.AssignmentStatus) []v1alpha1.AssignmentStatus {
	slices.SortFunc(all, func(a, b v1alpha1.AssignmentStatus) int {
		return cmp.Or(cmp.Compare(a.ReplicaUID, b.ReplicaUID), cmp.Compare(b.Epoch, a.Epoch))
	})
	return slices.CompactFunc(all, func(a, b v1alpha1.AssignmentStatus) bool { return a.ReplicaUID == b.ReplicaUID })
}

// memory adds up the Mac's figures; the caller holds mu.
func (p *Pool) memory() v1alpha1.MacMemory {
	a := p.Ledger.Account()
	m := v1alpha1.MacMemory{
		TotalBytes: p.host.Total, CeilingBytes: a.Limits.Ceiling, CeilingTerm: v1alpha1.CeilingTerm(a.Limits.Term),
		CapacityBytes: a.Limits.Capacity, ReservedBytes: a.Reserved,
		ForeignBytes: p.host.Foreign, FreeBytes: p.host.Free, FreedBytesTotal: p.freedTotal,
	}
	for _, e := range p.entries {
		if e.engine != nil && !e.engine.gone {
			m.FootprintBytes += e.engine.footprint
		}
	}
	if !p.measuredAt.IsZero() {
		at := metav1.NewTime(p.measuredAt)
		m.MeasuredAt = &at
	}
	return m
}

func (e *entry) endpoint() Endpoint {
	n := Endpoint{UID: e.key.UID, Epoch: e.key.Epoch, Namespace: e.order.Namespace, ServedNames: e.order.ServedNames}
	if e.engine != nil {
		n.Ready, n.Holds = e.state == Ready && e.engine.ready, len(e.engine.holds)
	}
	return n
}

// status reports the entry; the caller holds Pool.mu.
func (e *entry) status(now time.Time) v1alpha1.AssignmentStatus {
	s := v1alpha1.AssignmentStatus{
		ReplicaUID: e.key.UID, Epoch: e.key.Epoch,
		Progress: e.progress(now), Freed: e.freed, Restarts: e.restarts,
	}
	if e.reserved {
		s.Memory.ReservedBytes = e.order.ReservedBytes
	}
	if g := e.engine; g != nil && g.proc != nil && !g.gone {
		s.PID = int64(g.proc.PID)
		s.Memory.LimitBytes, s.Memory.FootprintBytes = g.config.LimitBytes, g.footprint
		m := g.status.GetMemory()
		s.Memory.WeightsBytes, s.Memory.KVInUseBytes = m.GetWeightsBytes(), m.GetKvInUseBytes()
		s.Memory.ActiveBytes, s.Memory.PooledBytes = m.GetActiveBytes(), m.GetPooledBytes()
		if !g.measured.IsZero() {
			at := metav1.NewTime(g.measured)
			s.Memory.MeasuredAt = &at
		}
	}
	e.conditions = transition(e.conditions, e.derive(now), now)
	s.Conditions = slices.Clone(e.conditions)
	return s
}

// progress names the stage and how far it is.
func (e *entry) progress(now time.Time) v1alpha1.Progress {
	d := &e.download
	switch {
	case e.released:
		return v1alpha1.Progress{Stage: v1alpha1.StageReleased}
	case e.refused != nil || e.want == wantInvalid && e.engine == nil:
		return v1alpha1.Progress{Stage: v1alpha1.StageFailed}
	case e.state == Draining || e.state == Stopping:
		return v1alpha1.Progress{Stage: v1alpha1.StageDraining}
	case e.state == Ready:
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
		eta := int64(math.Ceil(took.Seconds() / float64(done) * float64(total-done)))
		p.ETASeconds = &eta
	}
	return p
}

// derive computes the five conditions from what is the case now.
func (e *entry) derive(now time.Time) []metav1.Condition {
	return []metav1.Condition{e.downloadedCondition(), e.admittedCondition(), e.loadedCondition(now), e.servingCondition(), e.releasedCondition()}
}

func condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (e *entry) downloadedCondition() metav1.Condition {
	d := &e.download
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionDownloaded, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case d.done:
		return condition(v1alpha1.ConditionDownloaded, metav1.ConditionTrue, v1alpha1.ReasonVerified, "all files are on disk and verified")
	case d.failure != nil && d.failure.Final:
		return no(d.failure.Reason, "%s", d.failure.Message)
	case d.failure != nil:
		return no(d.failure.Reason, "%s; tried %d times, and again", d.failure.Message, d.attempts)
	case d.running:
		return no(v1alpha1.ReasonDownloading, "%s to fetch", v1alpha1.FormatBytes(d.total))
	}
	return no(v1alpha1.ReasonWaiting, "not begun")
}

func (e *entry) admittedCondition() metav1.Condition {
	switch {
	case e.want == wantInvalid:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, ReasonInvalidOrder, "%s", e.invalid)
	case e.refused != nil:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, e.refused.Reason, "%s", e.refused.Message)
	case e.reserved:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionTrue, v1alpha1.ReasonReserved, "%s are reserved", v1alpha1.FormatBytes(e.order.ReservedBytes))
	case e.released:
		return condition(v1alpha1.ConditionAdmitted, metav1.ConditionFalse, v1alpha1.ReasonReleased, "the reservation was given back")
	}
	return condition(v1alpha1.ConditionAdmitted, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "asked once the files are on disk")
}

func (e *entry) loadedCondition(now time.Time) metav1.Condition {
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionLoaded, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case e.refused != nil && e.failure != nil:
		return no(e.refused.Reason, "%s", e.refused.Message)
	case e.state == Ready, e.state == Draining, e.state == Stopping && e.engine != nil && e.engine.failure == nil:
		return condition(v1alpha1.ConditionLoaded, metav1.ConditionTrue, v1alpha1.ReasonLoaded, "the engine holds the model")
	case e.state == Loading:
		return no(v1alpha1.ReasonLoading, "load %d", e.loads)
	case e.failure != nil:
		return no(e.failure.Reason, "%s; restart %d of %d", e.failure.Message, len(e.crashes), maxCrashes)
	case e.loads > 0:
		return no(v1alpha1.ReasonStopped, "no engine runs")
	}
	return no(v1alpha1.ReasonWaiting, "not begun")
}

func (e *entry) servingCondition() metav1.Condition {
	no := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionServing, metav1.ConditionFalse, reason, format, args...)
	}
	switch {
	case e.state == Ready:
		return condition(v1alpha1.ConditionServing, metav1.ConditionTrue, v1alpha1.ReasonServing, "requests are answered")
	case e.state == Draining, e.state == Stopping:
		return no(v1alpha1.ReasonDraining, "running requests finish, new ones go elsewhere")
	case e.state == Loading:
		return no(v1alpha1.ReasonLoading, "the engine loads")
	case e.refused != nil:
		return no(e.refused.Reason, "%s", e.refused.Message)
	case e.failure != nil:
		return no(v1alpha1.ReasonBackOff, "%s; the engine is started again soon", e.failure.Message)
	case e.released || e.loads > 0:
		return no(v1alpha1.ReasonStopped, "no engine runs")
	}
	return no(v1alpha1.ReasonWaiting, "not begun")
}

func (e *entry) releasedCondition() metav1.Condition {
	if !e.released {
		return condition(v1alpha1.ConditionReleased, metav1.ConditionFalse, v1alpha1.ReasonHeld, "ordered to this Mac")
	}
	switch {
	case e.loads == 0:
		return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "it had no engine")
	case e.freed.Bytes == nil:
		return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "its engine is gone; what it held could not be measured")
	}
	return condition(v1alpha1.ConditionReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased, "its engine is gone and held %s", v1alpha1.FormatBytes(*e.freed.Bytes))
}

// reasonForm is what the API takes as a reason: with anything else the whole
// report would be refused.
var reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_]{0,62}[A-Za-z0-9])?$`)

// bounded fits a message into a condition.
func bounded(s string) string {
	if s = strings.ToValidUTF8(s, "?"); len(s) > 1024 {
		s = strings.ToValidUTF8(s[:1021], "") + "..."
	}
	return s
}

// transition keeps the time of the last change of each condition's status.
func transition(old, next []metav1.Condition, now time.Time) []metav1.Condition {
	for i := range next {
		c := &next[i]
		c.LastTransitionTime = metav1.NewTime(now)
		if j := slices.IndexFunc(old, func(o metav1.Condition) bool { return o.Type == c.Type }); j >= 0 && old[j].Status == c.Status {
			c.LastTransitionTime = old[j].LastTransitionTime
		}
		c.Message = bounded(c.Message)
		if !reasonForm.MatchString(c.Reason) { // an engine's or a store's word
			c.Reason = v1alpha1.ReasonLoadFailed
		}
	}
	return next
}
