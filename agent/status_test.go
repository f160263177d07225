package agent

import (
	"testing"
	"time"
)

func TestStatusesTakeASmallPartOfTheTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 20 * time.Millisecond: 200 * time.Millisecond, 2 * time.Second: time.Second,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("a pause of %s follows a status that took %s, want %s", got, took, want)
		}
	}
}
