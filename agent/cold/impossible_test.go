package cold_test

import (
	"math"
	"testing"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// TestAttackAnEngineThatReportsImpossibleFiles: sizes below zero, or whose sum overflows,
// would give an engine back what it was granted, again and again.
func TestAttackAnEngineThatReportsImpossibleFiles(t *testing.T) {
	for name, sizes := range map[string][]int64{
		"below zero":    {-1 << 20, -1},
		"an overflow":   {math.MaxInt64, math.MaxInt64},
		"an odd number": {math.MaxInt64, math.MaxInt64, math.MaxInt64, 2},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, 1<<20, blocks.Budget{LimitBytes: 1 << 19}, func(t *testing.T, m *mac) {
				l, err := m.w.Lease(origin("a"), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer l.End()
				report := blocks.Report{Epoch: l.Current().Epoch, WantedBytes: fileBytes, LeastBytes: fileBytes}
				granted := l.Report(report).GrantedBytes
				if granted < fileBytes {
					t.Fatalf("%d bytes are granted", granted)
				}
				report.WantedBytes = 0
				for i, bytes := range sizes {
					report.Persisted = append(report.Persisted, blocks.File{Key: key("a", i), Bytes: bytes})
				}
				l.Report(report)
				s := m.w.Snapshot()
				if s.GrantedBytes < 0 || s.GrantedBytes > granted || s.UsedBytes != 0 {
					t.Errorf("engines may still write %d bytes of %d, and %d are used", s.GrantedBytes, granted, s.UsedBytes)
				}
			})
		})
	}
}
