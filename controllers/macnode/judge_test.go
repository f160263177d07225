package macnode

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var (
	start = time.Unix(1_800_000_000, 0)
	stamp = time.Unix(5, 0) // the Mac's clock is wrong, which must not matter
)

// life is a Mac from the operator's view, with the stored judgement.
type life struct {
	pulses Pulses
	now    time.Time
	stored *metav1.Condition
}

func (l *life) judge() string {
	p, _ := l.pulses.Of("m", l.now)
	c := Judge(l.stored, p)
	l.stored = &metav1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason}
	return c.Reason
}

func (l *life) want(t *testing.T, what, reason string) {
	t.Helper()
	if got := l.judge(); got != reason {
		t.Errorf("%s: %s, want %s", what, got, reason)
	}
}

func (l *life) after(d time.Duration) *life { l.now = l.now.Add(d); return l }

func (l *life) renew() *life {
	stamp = stamp.Add(time.Second)
	l.pulses.Observe("m", stamp, l.now)
	return l
}

// restart simulates a new operator process: only the judgement is stored.
func (l *life) restart() *life {
	l.pulses = Pulses{}
	l.pulses.Observe("m", stamp, l.now)
	return l
}

func joined() *life {
	l := &life{now: start}
	l.pulses.Observe("m", time.Time{}, start)
	l.judge()
	return l.after(time.Second).renew()
}

func TestSilenceIsJudgedByTheOperatorsClock(t *testing.T) {
	l := &life{now: start}
	l.pulses.Observe("m", time.Time{}, start)
	l.want(t, "a Lease without renewal", v1alpha1.ReasonNeverReported)
	l.after(time.Hour).want(t, "an hour later", v1alpha1.ReasonNeverReported)
	l.renew().want(t, "the first renewal", v1alpha1.ReasonReporting)
	l.after(29*time.Second).want(t, "29 s", v1alpha1.ReasonReporting)
	l.after(time.Second).want(t, "30 s", v1alpha1.ReasonMacSilent)
	l.after(149*time.Second).want(t, "179 s", v1alpha1.ReasonMacSilent)
	l.after(time.Second).want(t, "180 s", v1alpha1.ReasonMacGone)
	l.renew().want(t, "it is back", v1alpha1.ReasonReporting)
	// The same time stamp again is no sign of life.
	l.after(40 * time.Second)
	l.pulses.Observe("m", stamp, l.now)
	l.want(t, "an unchanged Lease", v1alpha1.ReasonMacSilent)
}

func TestARestartGrantsTimeAndBelievesNothing(t *testing.T) {
	l := joined()
	l.want(t, "joined", v1alpha1.ReasonReporting)
	l.after(20*time.Second).restart().after(20*time.Second).want(t, "20 s before and 20 s after a restart", v1alpha1.ReasonReporting)
	l.after(10*time.Second).want(t, "30 s after it", v1alpha1.ReasonMacSilent)
	l.restart().after(time.Second).want(t, "silent stays silent", v1alpha1.ReasonMacSilent)
	l.after(179*time.Second).want(t, "180 s after the restart", v1alpha1.ReasonMacGone)
	l.restart().after(time.Second).want(t, "gone stays gone", v1alpha1.ReasonMacGone)
	l.renew().want(t, "until it is heard", v1alpha1.ReasonReporting)
}

func TestAnOldLeaseOfAMacThatNeverJoinedIsNoSignOfLife(t *testing.T) {
	l := joined()
	l.stored = &metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNeverReported}
	l.restart().want(t, "a renewal that this process did not see", v1alpha1.ReasonNeverReported)
	l.renew().want(t, "one that it saw", v1alpha1.ReasonReporting)
}

func TestAnEmptiedLeaseIsASilence(t *testing.T) {
	empty := func(l *life) *life { l.pulses.Observe("m", time.Time{}, l.now); return l }
	l := joined()
	l.want(t, "joined", v1alpha1.ReasonReporting)
	empty(l.after(20*time.Second)).want(t, "emptied", v1alpha1.ReasonReporting)
	l.after(10*time.Second).want(t, "30 s after the last renewal", v1alpha1.ReasonMacSilent)
	empty(l.after(149*time.Second)).want(t, "179 s", v1alpha1.ReasonMacSilent)
	l.after(time.Second).want(t, "180 s", v1alpha1.ReasonMacGone)
	l.pulses = Pulses{}
	empty(l).want(t, "after a restart", v1alpha1.ReasonMacGone)
	l.renew().want(t, "a renewal", v1alpha1.ReasonReporting)
	empty(l).stored = nil
	l.want(t, "another MacNode of the name", v1alpha1.ReasonNeverReported)
}

func TestTimeWithoutTheAPIServerDoesNotCount(t *testing.T) {
	l := joined()
	l.want(t, "joined", v1alpha1.ReasonReporting)
	for range 100 {
		l.after(5 * time.Second)
		l.pulses.Blind(l.now)
		l.want(t, "while the API server is away", v1alpha1.ReasonReporting)
	}
	l.after(29*time.Second).want(t, "29 s after it is back", v1alpha1.ReasonReporting)
	l.after(time.Second).want(t, "30 s after it is back", v1alpha1.ReasonMacSilent)
	l.after(150*time.Second).want(t, "180 s after it is back", v1alpha1.ReasonMacGone)
	l.pulses.Blind(l.now)
	l.after(time.Second).want(t, "blindness raises no dead", v1alpha1.ReasonMacGone)
}

// TestAnAPIServerThatFailsEveryFewMinutesKeepsNoMacAlive: one probe of 24 fails.
func TestAnAPIServerThatFailsEveryFewMinutesKeepsNoMacAlive(t *testing.T) {
	dead, alive := joined(), joined()
	for i := range 3 * 24 {
		alive.after(watchdogPeriod).renew().want(t, "a Mac that renews", v1alpha1.ReasonReporting)
		dead.after(watchdogPeriod).judge()
		for _, l := range []*life{dead, alive} {
			if l.pulses.Looked(l.now); i%24 == 23 {
				l.after(probeTimeout)
				l.pulses.Blind(l.now)
			}
		}
	}
	dead.want(t, "six minutes", v1alpha1.ReasonMacGone)
	alive.after(29*time.Second).want(t, "29 s after a renewal and a failure", v1alpha1.ReasonReporting)
}

func TestASilenceLastsOverAnOutage(t *testing.T) {
	l := joined()
	l.after(100*time.Second).want(t, "100 s", v1alpha1.ReasonMacSilent)
	l.pulses.Looked(l.now)
	for range 1000 {
		l.after(watchdogPeriod + probeTimeout)
		l.pulses.Blind(l.now)
		l.want(t, "while the API server is away", v1alpha1.ReasonMacSilent)
	}
	l.after(79*time.Second).want(t, "79 s after it is back", v1alpha1.ReasonMacSilent)
	l.after(time.Second).want(t, "80 s after it is back", v1alpha1.ReasonMacGone)
	l.renew().want(t, "it is back", v1alpha1.ReasonReporting)
	l.after(10 * time.Second)
	l.pulses.Blind(l.now)
	l.after(29*time.Second).want(t, "what it was before it renewed does not count", v1alpha1.ReasonReporting)
}

// TestAPauseOfTheOperatorIsNoSilence: its machine sleeps for an hour, and the first probe fails.
func TestAPauseOfTheOperatorIsNoSilence(t *testing.T) {
	l := joined()
	l.want(t, "joined", v1alpha1.ReasonReporting)
	l.pulses.Looked(l.now)
	l.after(time.Hour)
	l.pulses.Blind(l.now)
	l.want(t, "an hour without a probe", v1alpha1.ReasonReporting)
}
