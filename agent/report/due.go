package report

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

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
	case figuresMoved(sent, next):
		return figuresEvery, true
	}
	return 0, false
}

// urgent is the status without what may wait: figures that were measured,
// progress within a stage, and what is made from them.
func urgent(s *v1alpha1.MacNodeStatus) *v1alpha1.MacNodeStatus {
	u := s.DeepCopy()
	u.Summary = v1alpha1.MacSummary{}
	u.Disk = v1alpha1.MacDisk{}
	u.Memory.FootprintBytes, u.Memory.ForeignBytes, u.Memory.FreeBytes, u.Memory.MeasuredAt = 0, 0, 0, nil
	for i := range u.Assignments {
		a := &u.Assignments[i]
		a.Progress = v1alpha1.Progress{Stage: a.Progress.Stage}
		a.Memory = v1alpha1.EngineMemory{ReservedBytes: a.Memory.ReservedBytes, LimitBytes: a.Memory.LimitBytes}
	}
	return u
}

// progressMoved assumes the same assignments in the same order: otherwise the
// change is urgent.
func progressMoved(sent, next *v1alpha1.MacNodeStatus) bool {
	for i := range next.Assignments {
		a, b := sent.Assignments[i].Progress, next.Assignments[i].Progress
		if a.BytesDone != b.BytesDone || a.BytesTotal != b.BytesTotal {
			return true
		}
	}
	return false
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
	f := []int64{s.Memory.FootprintBytes, s.Memory.ForeignBytes, s.Memory.FreeBytes, s.Disk.FreeBytes, s.Disk.WeightsBytes}
	for i := range s.Assignments {
		m := &s.Assignments[i].Memory
		f = append(f, m.FootprintBytes, m.WeightsBytes, m.KVInUseBytes, m.ActiveBytes, m.PooledBytes)
	}
	return f
}

// moved by more than 1 % or more than 64 MiB.
func moved(a, b int64) bool {
	d := a - b
	if d < 0 {
		d = -d
	}
	return d > figureStep || d > max(a, b)/100
}
