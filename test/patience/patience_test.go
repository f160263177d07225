//go:build !race

package patience

import (
	"testing"
	"time"
)

// ends is a test whose program has so long to live; 0: for ever.
type ends time.Duration

func (e ends) Deadline() (time.Time, bool) { return time.Now().Add(time.Duration(e)), e != 0 }

func TestAWaitFitsIntoTheTimeThatIsLeft(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{0: Most, time.Hour: Most, 2 * time.Minute: 30 * time.Second, time.Millisecond: time.Second} {
		if got := Of(ends(left)); got > want || got < want*9/10 {
			t.Errorf("%s are left: a wait of %s, want %s", left, got, want)
		}
	}
}
