package report

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	progressEvery = 2 * time.Second
	figuresEvery  = 30 * time.Second
	figureStep    = int64(64) << 20
)

// due compares what was written with what is known. It returns how long after
// the last write the next one is due, and whether one is needed at all.
func due(sent, next *v1alpha1.MacNodeStatus) (after time.Duration, needed bool) {
	switch {
	case next == nil:
		return 0, false
	case sent == nil:
		return 0, true
	case !equality.Semantic.DeepEqual(urgent(sent), urgent(next)):
		return 0, true
	case progressMoved(sent, next):
		return progressEvery, true
	case figuresMoved(sent, next) || wordsChanged(sent, next):
		return figuresEvery, true
	}
	return 0, false
}

// urgent is the status without what may wait: figures that were measured,
// progress within a stage, sentences of conditions that say the same as before,
// and what is made from them. The pressure level, a promise and a reclaim with
// its totals are in it.
func urgent(s *v1alpha1.MacNodeStatus) *v1alpha1.MacNodeStatus {
	u := s.DeepCopy()
	u.Summary = v1alpha1.MacSummary{}
	u.Disk = v1alpha1.MacDisk{TotalBytes: s.Disk.TotalBytes, Collected: s.Disk.Collected}
	u.Memory = lasting(s.Memory)
	unsaid(u.Conditions)
	for i := range u.Assignments {
		a := &u.Assignments[i]
		a.Progress = v1alpha1.Progress{Stage: a.Progress.Stage}
		a.Memory = v1alpha1.EngineMemory{ReservedBytes: a.Memory.ReservedBytes, LimitBytes: a.Memory.LimitBytes}
		a.Activity = nil
		unsaid(a.Conditions)
	}
	return u
}

// lasting are the figures that are decided and not measured, the pressure level
// that the agent acts on, and the counts per reclaim. A change of any other
// figure may wait.
func lasting(m v1alpha1.MacMemory) v1alpha1.MacMemory {
	return v1alpha1.MacMemory{
		TotalBytes: m.TotalBytes, CeilingBytes: m.CeilingBytes, CeilingTerm: m.CeilingTerm,
		CapacityBytes: m.CapacityBytes, ReservedBytes: m.ReservedBytes, PressureLevel: m.PressureLevel,
		FreedBytesTotal: m.FreedBytesTotal, IndeterminateReclaims: m.IndeterminateReclaims,
	}
}

// unsaid drops the sentences: they may hold figures that move with every poll.
func unsaid(conditions []metav1.Condition) {
	for i := range conditions {
		conditions[i].Message = ""
	}
}

// progressMoved also sees the sentences of an assignment: they count attempts
// and restarts. It assumes the same assignments in the same order: otherwise the
// change is urgent.
func progressMoved(sent, next *v1alpha1.MacNodeStatus) bool {
	for i := range next.Assignments {
		a, b := sent.Assignments[i].Progress, next.Assignments[i].Progress
		if a.BytesDone != b.BytesDone || a.BytesTotal != b.BytesTotal || !sameWords(sent.Assignments[i].Conditions, next.Assignments[i].Conditions) {
			return true
		}
	}
	return false
}

// wordsChanged sees what has no size: sentences of the Mac's conditions, the
// term that binds, the machine's warmth.
func wordsChanged(sent, next *v1alpha1.MacNodeStatus) bool {
	return !sameWords(sent.Conditions, next.Conditions) || sent.Disk.Cache.Message != next.Disk.Cache.Message || sent.Disk.Message != next.Disk.Message || sent.Memory.EffectiveCeilingTerm != next.Memory.EffectiveCeilingTerm ||
		sent.Memory.ThermalState != next.Memory.ThermalState
}

func sameWords(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.Condition) bool { return x.Message == y.Message })
}

func figuresMoved(sent, next *v1alpha1.MacNodeStatus) bool {
	a, b := figures(sent), figures(next)
	for i := range b {
		if moved(a[i], b[i]) {
			return true
		}
	}
	return false
}

func figures(s *v1alpha1.MacNodeStatus) []int64 {
	mac := &s.Memory
	f := []int64{mac.FootprintBytes, mac.ForeignBytes, mac.FreeBytes, mac.DynamicCeilingBytes, mac.EffectiveCeilingBytes,
		mac.ActiveBytes, mac.AccountedBytes, mac.PooledBytes, mac.StrandedBytes, mac.SwapUsedBytes, s.Disk.FreeBytes, s.Disk.WeightsBytes, s.Disk.ReclaimableBytes,
		s.Disk.Cache.Bytes, s.Disk.Cache.LimitBytes, s.Disk.Cache.WrittenBytes, s.Disk.Cache.Hits, s.Disk.Cache.Dropped}
	for i := range s.Assignments {
		m := &s.Assignments[i].Memory
		f = append(f, m.FootprintBytes, m.WeightsBytes, m.KVInUseBytes, m.ActiveBytes, m.AccountedBytes, m.PooledBytes)
		f = append(f, activity(s.Assignments[i].Activity)...)
	}
	return f
}

// activity returns the figures, with unknown ones distinct from zero.
func activity(a *v1alpha1.EngineActivity) []int64 {
	if a == nil {
		return []int64{-1, 0, 0, 0, 0}
	}
	return []int64{a.Running, a.Queued, a.PromptTokensTotal, a.GeneratedTokensTotal, a.CacheBytes}
}

// moved by more than 1 % or more than 64 MiB.
func moved(a, b int64) bool {
	d := a - b
	if d < 0 {
		d = -d
	}
	return d > figureStep || d > max(a, b)/100
}
