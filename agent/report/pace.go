package report

import (
	"encoding/json"
	"time"

	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// etcd keeps every version of a MacNode for minutes, and the operator withdraws the right to write
// from a Mac that stores several times as much as this. Half of the burst is for what is urgent:
// how often that changes is also a matter of the tenants.
const (
	paceBurst     = 8 << 20
	pacePerSecond = 16 << 10
	// versionBytes is what a version takes besides its status.
	versionBytes = 16 << 10
)

// pace is what an agent may still write, in bytes.
type pace struct{ left *rate.Limiter }

func newPace() pace { return pace{rate.NewLimiter(pacePerSecond, paceBurst)} }

// written counts a status.
func (p pace) written(s *v1alpha1.MacNodeStatus) {
	text, _ := json.Marshal(s)                                            // a status can be encoded
	p.left.ReserveN(time.Now(), min(versionBytes+2*len(text), paceBurst)) // its field names are in managedFields too
}

// wait returns how long it takes until a status may be written.
func (p pace) wait(urgent bool) time.Duration {
	least := 0.
	if !urgent {
		least = paceBurst / 2
	}
	return time.Duration(max(0, least-p.left.Tokens()) / pacePerSecond * float64(time.Second))
}
