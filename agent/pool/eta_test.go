package pool

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestTheTimeLeftIsNeverNegative, however little an engine says it has read: the API server would refuse the status
// of the Mac.
func TestTheTimeLeftIsNeverNegative(t *testing.T) {
	p := progressOf(v1alpha1.StageLoading, 1, 1<<50, 3*time.Hour)
	if p.ETASeconds == nil || *p.ETASeconds < 1<<30 {
		t.Errorf("%v seconds are left", p.ETASeconds)
	}
}
