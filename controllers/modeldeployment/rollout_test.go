//go:build !race

package modeldeployment

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// planned formats a plan.
func planned(w desiredState, words ...string) string {
	var existing []v1alpha1.ModelReplica
	for _, x := range words {
		existing = append(existing, have(x))
	}
	if w.revision == "" {
		w.revision = "new"
	}
	w.avoid = avoidFor
	c := plan(w, existing, now)
	var out []string
	for _, b := range c.create {
		out = append(out, fmt.Sprintf("+%s#%d/%d", b.revision, b.slot, b.epoch))
	}
	for _, r := range c.remove {
		out = append(out, "-"+strings.Fields(r.Name)[0])
	}
	if c.swap != "" {
		out = append(out, "swap "+strings.Fields(string(c.swap))[0])
	}
	return strings.Join(out, " ")
}

func TestPausedReplacesNothing(t *testing.T) {
	w := desiredState{count: 2, surge: 1, paused: true, served: "old"}
	for name, tc := range map[string]struct {
		have []string
		want string
	}{
		"before it begins":                       {have: []string{"old#0 ready", "old#1 ready"}},
		"in the middle":                          {have: []string{"old#0 ready", "old#1 ready", "new#0"}},
		"a new one that is ready stays":          {have: []string{"old#0 ready", "new#0 ready"}},
		"what is missing is of the old revision": {have: []string{"old#0 ready"}, want: "+old#1/1"},
		"one on a Mac that is gone comes back":   {have: []string{"old#0 ready", "old#1 gone"}, want: "+old#1/2 -old#1"},
		"more than wanted go":                    {have: []string{"old#0 ready", "old#1 ready", "old#2 ready"}, want: "-old#2"},
		"more than wanted and the surge go":      {have: []string{"old#0 ready", "old#1 ready", "new#0", "new#1"}, want: "-new#1"},
	} {
		if got := planned(w, tc.have...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := planned(desiredState{count: 2, surge: 1, paused: true}); got != "" {
		t.Errorf("one that never began: %q", got)
	}
	if got, want := planned(desiredState{surge: 1, paused: true, served: "old"}, "old#0 ready", "new#0 ready"), "-old#0 -new#0"; got != want {
		t.Errorf("scaled to zero in the middle: %q, want %q", got, want)
	}
}

func TestAHaltedRevisionGivesWay(t *testing.T) {
	w := desiredState{count: 2, surge: 1, halted: true, served: "old"}
	for name, tc := range map[string]struct {
		have []string
		want string
	}{
		"the surge is removed":                    {have: []string{"old#0 ready", "old#1 ready", "new#0"}, want: "-new#0"},
		"what was swapped out comes back":         {have: []string{"old#0 ready", "new#0", "old#1 ready deleting"}, want: "+old#1/2 -new#0"},
		"one of it that serves stays":             {have: []string{"old#0 ready", "new#0 ready"}},
		"and is the first to go where too many":   {have: []string{"old#0 ready", "old#1 ready", "new#2 ready"}, want: "-new#2"},
		"the old one that does not serve stays":   {have: []string{"old#0 ready", "old#1"}},
		"all of the old are there":                {have: []string{"old#0 ready", "old#1 ready"}},
		"the only one, swapped out and gone":      {want: "+old#0/1 +old#1/1"},
		"a Mac that refused is avoided, not kept": {have: []string{"old#0 ready", "old#1 refused"}, want: "+old#1/2 -old#1"},
	} {
		if got := planned(w, tc.have...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestWithoutRoomOneAfterTheOtherIsSwapped(t *testing.T) {
	w := desiredState{count: 2, surge: 1, swap: true, served: "old"}
	for name, tc := range map[string]struct {
		have []string
		want string
	}{
		"placement did not look yet":         {have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced"}},
		"there is no room":                   {have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced noroom"}, want: "swap new#0"},
		"its weights are fetched":            {have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced fetches swap"}, want: "swap new#0"},
		"its Mac is away meanwhile":          {have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced away swap"}, want: "swap new#0"},
		"no Mac may ever have it":            {have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced nocandidates swap"}},
		"the old one drains":                 {have: []string{"old#0 ready", "old#1 ready deleting", "new#0 unplaced noroom swap"}, want: "+new#1/1 swap new#0"},
		"the last old one drains":            {have: []string{"old#1 ready deleting", "new#1 ready", "new#0 unplaced noroom swap"}, want: "swap new#0"},
		"the first does not serve yet":       {have: []string{"old#0 ready", "new#0 swap", "new#1 unplaced noroom"}},
		"it serves":                          {have: []string{"old#0 ready", "new#0 ready swap", "new#1 unplaced noroom"}, want: "swap new#1"},
		"fewer serve than wanted":            {have: []string{"old#0 ready", "new#1 unplaced noroom"}, want: "+new#0/1"},
		"an old one that is down costs none": {have: []string{"old#0 ready", "old#1", "new#0 unplaced noroom"}, want: "swap new#0"},
		"another drains for another reason":  {have: []string{"old#0 ready", "old#1 ready deleting", "new#0 unplaced noroom", "new#1 ready"}},
	} {
		if got := planned(w, tc.have...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	two := w
	two.surge = 2
	if got := planned(two, "old#0 ready", "old#1 ready", "new#1 unplaced noroom", "new#0 unplaced noroom"); got != "swap new#0" {
		t.Errorf("one at a time, the lowest slot: %q", got)
	}
	w.swap = false
	if got := planned(w, "old#0 ready", "old#1 ready", "new#0 unplaced noroom"); got != "" {
		t.Errorf("it is to wait: %q", got)
	}
}

// An engine of the old revision that crashed in the middle of a rollout is restarted by its
// Mac.
func TestWhatServedLastIsNotGivenUpForOneThatDoesNotServe(t *testing.T) {
	w := desiredState{count: 1, surge: 1, served: "old"}
	for name, tc := range map[string]struct {
		have []string
		want string
	}{
		"it crashed, and the new one loads":    {have: []string{"old#0", "new#0"}},
		"its Mac is silent":                    {have: []string{"old#0 silent", "new#0"}},
		"the new one serves":                   {have: []string{"old#0", "new#0 ready"}, want: "-old#0"},
		"its Mac starts it no more":            {have: []string{"old#0 ended", "new#0"}, want: "-old#0"},
		"one that never served is removed":     {have: []string{"other#0", "new#0"}, want: "-other#0"},
		"one of a silent Mac that never did":   {have: []string{"other#0 silent", "new#0"}},
		"more than wanted and the surge do go": {have: []string{"old#0 silent", "old#1 silent", "old#2 silent", "new#0"}, want: "-old#2 -old#1"},
	} {
		if got := planned(w, tc.have...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Surplus replicas beyond the surge are removed, those that do not serve first.
func TestFewerAreWantedInTheMiddleOfARollout(t *testing.T) {
	w := desiredState{count: 2, surge: 1, served: "old"}
	for words, want := range map[string]string{
		"old#0 ready,old#1 ready,new#0,new#1":       "-new#1",
		"old#0 ready,old#1 ready,new#0 ready,new#1": "-old#1",
		"new#0 ready,new#1 ready,new#2 ready":       "-new#2",
	} {
		if got := planned(w, strings.Split(words, ",")...); got != want {
			t.Errorf("%s: %q, want %q", words, got, want)
		}
	}
}

// TestIdleReplicasAreReplacedFirst: the autoscaler wants one, and found two idle.
func TestIdleReplicasAreReplacedFirst(t *testing.T) {
	w := desiredState{count: 1, surge: 1, served: "old", mayRemove: func(r *v1alpha1.ModelReplica) bool { return strings.HasSuffix(r.Name, "idle") }}
	if got, want := planned(w, "old#0 ready idle", "old#1 ready idle", "old#2 ready", "new#0 unplaced noroom"), "-old#1 -old#0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// rolled returns a deployment in the middle of a rollout from old to new.
func rolled(change func(*scope), words ...string) *scope {
	s := &scope{now: now, deployment: &v1alpha1.ModelDeployment{}}
	s.deployment.Name = "d"
	for i, name := range []string{"older", "old", "new"} {
		s.revisions = append(s.revisions, revision{object: &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: int64(i + 1)}})
	}
	s.current, s.verdict.engine = &s.revisions[2], &fleet.Engine{}
	began := metav1.NewTime(now.Add(-5 * time.Minute))
	s.deployment.Status = v1alpha1.ModelDeploymentStatus{CurrentRevision: "old", UpdateRevision: "new", UpdatedReplicas: 1,
		Rollout: v1alpha1.RolloutStatus{State: v1alpha1.RolloutSurging, StartTime: &began, ProgressTime: &began, PlacedReplicas: 1}}
	for _, x := range words {
		s.replicas = append(s.replicas, have(x))
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestARevisionThatFailsIsHalted(t *testing.T) {
	fails := func(n int32, at int) func(*scope) {
		return func(s *scope) { s.replicas[at].Status.Restarts = n }
	}
	late := func(s *scope) { s.now = now.Add(5 * time.Minute) }
	unfetched := func(s *scope) {
		late(s)
		s.deployment.Status.Rollout.State, s.deployment.Status.Rollout.PlacedReplicas = v1alpha1.RolloutPrefetching, 0
	}
	for name, tc := range map[string]struct {
		change func(*scope)
		have   []string
		reason string
	}{
		"it loads":                    {have: []string{"old#0 ready", "new#0"}},
		"two failures are not enough": {change: fails(2, 1), have: []string{"old#0 ready", "new#0"}},
		"three on one Mac may be its": {change: fails(9, 1), have: []string{"old#0 ready", "new#0 nocanary"}},
		"three on two are":            {change: func(s *scope) { fails(2, 1)(s); fails(1, 2)(s) }, have: []string{"old#0 ready", "new#0 nocanary", "new#1"}, reason: v1alpha1.ReasonCanaryFailed},
		"one after it was given up":   {change: fails(1, 1), have: []string{"old#0 ready", "new#0 nocanary succeeds"}, reason: v1alpha1.ReasonCanaryFailed},
		"no other Mac can run it":     {have: []string{"old#0 ready", "new#0 unplaced noroom succeeds"}, reason: v1alpha1.ReasonCanaryFailed},
		"another one may":             {have: []string{"old#0 ready", "new#0 unplaced noroom succeeds", "new#1"}},
		"it has no Mac yet":           {have: []string{"old#0 ready", "new#0 unplaced succeeds"}},
		"one is if no replica serves": {change: fails(1, 0), have: []string{"new#0"}, reason: v1alpha1.ReasonLoadFailed},
		"its Mac starts it again meanwhile": {change: func(s *scope) {
			fails(3, 1)(s)
			s.replicas[1].Status.LastFailure = &v1alpha1.EngineFailure{Reason: v1alpha1.ReasonCanaryFailed, Message: "no token"}
		},
			have: []string{"old#0 ready", "new#0 succeeds"}, reason: v1alpha1.ReasonCanaryFailed},
		"one that serves again is forgiven": {change: fails(9, 1), have: []string{"old#0 ready", "new#0 ready"}},
		"failures of the old are not its":   {change: fails(9, 0), have: []string{"old#0", "new#0"}},
		"a removed one is not counted":      {change: fails(9, 1), have: []string{"old#0 ready", "new#0 deleting", "new#1"}},
		"no progress in ten minutes":        {change: late, have: []string{"old#0 ready", "new#0 succeeds"}, reason: v1alpha1.ReasonProgressDeadline},
		"on one Mac it may be its":          {change: late, have: []string{"old#0 ready", "new#0"}},
		"not if nothing serves":             {change: late, have: []string{"old#0", "new#0"}, reason: v1alpha1.ReasonProgressDeadline},
		"bytes are progress":                {change: func(s *scope) { late(s); s.replicas[1].Status.Progress.BytesDone = 7 }, have: []string{"old#0 ready", "new#0"}},
		"one more that has a Mac is":        {change: late, have: []string{"old#0 ready", "new#0", "new#1"}},
		"weights that do not come are":      {change: unfetched, have: []string{"old#0 ready", "new#0 unplaced fetches swap succeeds"}, reason: v1alpha1.ReasonProgressDeadline},
		"bytes of them are progress":        {change: func(s *scope) { unfetched(s); s.replicas[1].Status.Progress.BytesDone = 7 }, have: []string{"old#0 ready", "new#0 unplaced fetches swap"}},
		"a fetch that begins late is not": {change: func(s *scope) { unfetched(s); s.deployment.Status.Rollout.State = v1alpha1.RolloutWaiting },
			have: []string{"old#0 ready", "new#0 unplaced fetches swap"}, reason: ""},
		"also where their Mac is away":       {change: unfetched, have: []string{"old#0 ready", "new#0 unplaced away swap succeeds"}, reason: v1alpha1.ReasonProgressDeadline},
		"one that waits for room is no load": {change: late, have: []string{"old#0 ready", "new#0 unplaced noroom"}},
		"a pause stops the clock":            {change: func(s *scope) { late(s); s.deployment.Spec.Rollout.Paused = true }, have: []string{"old#0 ready", "new#0"}},
		"its end starts it again":            {change: func(s *scope) { late(s); s.deployment.Status.Rollout.State = v1alpha1.RolloutPaused }, have: []string{"old#0 ready", "new#0"}},
		"another revision starts it again":   {change: func(s *scope) { late(s); s.deployment.Status.UpdateRevision = "older" }, have: []string{"old#0 ready", "new#0"}},
		"a deadline of its own": {change: func(s *scope) { s.deployment.Spec.Rollout.ProgressDeadlineSeconds = ptr.To[int32](60) },
			have: []string{"old#0 ready", "new#0 succeeds"}, reason: v1alpha1.ReasonProgressDeadline},
		"nothing served before":    {change: func(s *scope) { late(s); fails(9, 0)(s); s.deployment.Status.CurrentRevision = "" }, have: []string{"new#0"}},
		"what served is not there": {change: func(s *scope) { fails(9, 0)(s); s.deployment.Status.CurrentRevision = "pruned" }, have: []string{"new#0"}},
		"what serves is fallen to": {change: func(s *scope) { fails(9, 0)(s); s.deployment.Status.CurrentRevision = "" }, have: []string{"new#0 succeeds", "older#0 ready"}, reason: v1alpha1.ReasonLoadFailed},
		"the revision that served": {change: func(s *scope) { fails(9, 0)(s); s.deployment.Status.CurrentRevision = "new" }, have: []string{"new#0", "old#0"}},
		"a halt is remembered":     {change: halt("new", 0), have: []string{"old#0 ready"}, reason: "Why"},
		"until another is wanted":  {change: halt("older", 0), have: []string{"old#0 ready", "new#0"}},
		"or another attempt is":    {change: func(s *scope) { halt("new", 0)(s); s.deployment.Spec.Rollout.RetryGeneration = 1; late(s) }, have: []string{"old#0 ready", "new#0"}},
		"which may fail as well":   {change: func(s *scope) { halt("new", 0)(s); s.deployment.Spec.Rollout.RetryGeneration = 1; fails(3, 1)(s) }, have: []string{"old#0 ready", "new#0 succeeds"}, reason: v1alpha1.ReasonLoadFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := rolled(tc.change, tc.have...)
			next, _ := assess(s)
			reason := ""
			if next.Halt != nil {
				reason = next.Halt.Reason
				if next.Halt.Revision != "new" || next.Halt.RetryGeneration != s.deployment.Spec.Rollout.RetryGeneration || next.Halt.Message == "" {
					t.Errorf("halt %+v", next.Halt)
				}
			}
			if reason != tc.reason {
				t.Errorf("halted for %q, want %q: %+v", reason, tc.reason, next)
			}
		})
	}
}

// TestAttackAMacThatHaltsEachRollout: what one Mac reports, or leaves out, halts none while another has
// room. Its replica is replaced, and the successor is placed on another.
func TestAttackAMacThatHaltsEachRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*scope)
		have    string
		failure string
	}{
		"its engine fails":    {change: func(s *scope) { s.replicas[1].Status.Restarts = math.MaxInt32 }, have: "new#0 nocanary", failure: v1alpha1.ReasonCanaryFailed},
		"it loads for ever":   {change: func(s *scope) { s.now = now.Add(time.Hour) }, have: "new#0", failure: v1alpha1.ReasonProgressDeadline},
		"it fetches for ever": {change: func(s *scope) { s.now = now.Add(time.Hour) }, have: "new#0 unplaced fetches swap", failure: v1alpha1.ReasonProgressDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			s := rolled(tc.change, "old#0 ready", tc.have)
			s.deployment.Spec.Rollout.MaxSurge = intOrString("1")
			s.deployment.Status.Rollout.State, s.deployment.Status.Rollout.PlacedReplicas = v1alpha1.RolloutPrefetching, s.figures().placed
			if s.rollout, s.overdue = assess(s); s.rollout.Halt != nil || s.overdue {
				t.Fatalf("halted: %+v, overdue %v", s.rollout.Halt, s.overdue)
			}
			c := plan(s.desired(), s.replicas, s.now)
			if len(c.remove) != 1 || c.remove[0].UID != s.replicas[1].UID || len(c.create) != 1 {
				t.Fatalf("%+v", c)
			}
			next := c.create[0]
			if next.revision != "new" || next.epoch != 2 || len(next.avoid) != 1 || next.avoid[0].Name != "mac-0" || next.avoid[0].Failure != tc.failure || next.avoid[0].Until.Sub(s.now) != avoidFor {
				t.Errorf("the successor is %+v", next)
			}
			// It serves, and the rollout continues. Replicas of another revision do not avoid the Mac.
			successor := have("new#1 ready")
			successor.Spec.Avoid = next.avoid
			s.replicas[1] = successor
			if s.rollout, s.overdue = assess(s); s.rollout.Halt != nil {
				t.Errorf("halted for %+v", s.rollout.Halt)
			}
			if a := avoided(s.desired(), "old", s.replicas, s.now); len(a) > 0 {
				t.Errorf("the old revision avoids %v", a)
			}
			if a := avoided(s.desired(), "new", s.replicas, s.now); len(a) != 1 {
				t.Errorf("the next replica of the new one avoids %v", a)
			}
		})
	}
}

// TestARolloutThatBeganInTheFuture: the clock of an operator was ahead. The schema refuses a status
// with a negative estimate, and its deadline would come a day late.
func TestARolloutThatBeganInTheFuture(t *testing.T) {
	s := rolled(func(s *scope) { s.now = now.Add(-24 * time.Hour) }, "old#0 ready", "new#0 ready", "new#1")
	s.deployment.Spec.Replicas = ptr.To[int32](2)
	if e := deriveStatus(s).Rollout.ETASeconds; e == nil || *e < 0 {
		t.Errorf("estimate %v before the rollout is judged", ptr.Deref(e, -1))
	}
	s.rollout, s.overdue = assess(s)
	next := deriveStatus(s).Rollout
	if *next.ETASeconds < 0 || next.StartTime.After(s.now) || next.ProgressTime.After(s.now) {
		t.Errorf("%+v", next)
	}
}

// TestARevisionTakesOverWhereNoMoreFit: if it did not, a later rollout that fails would bring back the
// one before it, and the autoscaler would remove no replica: it waits for the end of a rollout.
func TestARevisionTakesOverWhereNoMoreFit(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*scope)
		have   []string
		want   string
	}{
		"one finds no Mac":           {have: []string{"new#0 ready", "new#1 unplaced noroom"}, want: "new"},
		"placement did not look yet": {have: []string{"new#0 ready", "new#1 unplaced"}, want: "old"},
		"one loads":                  {have: []string{"new#0 ready", "new#1", "new#2 unplaced noroom"}, want: "old"},
		"none serves":                {have: []string{"new#0 unplaced noroom", "new#1 unplaced noroom"}, want: "old"},
		"an old one serves":          {have: []string{"old#0 ready", "new#0 ready", "new#1 unplaced noroom"}, want: "old"},
		"an old one drains":          {have: []string{"old#0 ready deleting", "new#0 ready", "new#1 unplaced noroom"}, want: "old"},
		"it is halted":               {change: halt("new", 0), have: []string{"new#0 ready", "new#1 unplaced noroom"}, want: "old"},
		"none is wanted":             {change: func(s *scope) { s.deployment.Spec.Suspend = true }, have: []string{"new#0 ready"}, want: "old"},
	} {
		s := rolled(tc.change, tc.have...)
		if s.deployment.Spec.Replicas == nil {
			s.deployment.Spec.Replicas = ptr.To[int32](3)
		}
		s.rollout, s.overdue = assess(s)
		if got := deriveStatus(s).CurrentRevision; got != tc.want {
			t.Errorf("%s: the current revision is %s, want %s", name, got, tc.want)
		}
	}
}

func halt(revision string, attempt int64) func(*scope) {
	return func(s *scope) {
		s.deployment.Status.Rollout.Halt = &v1alpha1.RolloutHalt{Revision: revision, RetryGeneration: attempt, Reason: "Why", Message: "because", Time: metav1.NewTime(now)}
	}
}

func TestARolloutSaysWhatItDoesAndWhatToDo(t *testing.T) {
	two := func(s *scope) { s.deployment.Spec.Replicas = ptr.To[int32](2) }
	with := func(changes ...func(*scope)) func(*scope) {
		return func(s *scope) {
			for _, c := range append([]func(*scope){two}, changes...) {
				c(s)
			}
		}
	}
	for name, tc := range map[string]struct {
		change  func(*scope)
		have    []string
		state   v1alpha1.RolloutState
		status  metav1.ConditionStatus
		current string
		says    string
	}{
		"surging":         {change: two, have: []string{"old#0 ready", "old#1 ready", "new#0"}, state: v1alpha1.RolloutSurging, status: metav1.ConditionTrue, current: "old", says: "0 of 2 replicas are updated to revision new"},
		"the pace so far": {change: two, have: []string{"old#0 ready", "new#0 ready", "new#1"}, state: v1alpha1.RolloutSurging, status: metav1.ConditionTrue, current: "old", says: "1 of 2 replicas are updated to revision new and available; about 300 s"},
		"what its Mac expects": {change: with(func(s *scope) { s.replicas[2].Status.Progress.ETASeconds = ptr.To[int64](20) }),
			have: []string{"old#0 ready", "old#1 ready", "new#0"}, state: v1alpha1.RolloutSurging, status: metav1.ConditionTrue, current: "old", says: "about 40 s"},
		"within what may be missing": {change: with(func(s *scope) {
			s.deployment.Spec.Rollout = v1alpha1.RolloutSpec{MaxSurge: intOrString("0"), MaxUnavailable: intOrString("50%")}
		}), have: []string{"old#0 ready", "new#0"}, state: v1alpha1.RolloutReplacing, status: metav1.ConditionTrue, current: "old", says: ""},
		"prefetching":            {change: two, have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced fetches swap"}, state: v1alpha1.RolloutPrefetching, status: metav1.ConditionTrue, current: "old", says: "they will be replaced one at a time; new#0 unplaced fetches swap: downloads the weights first"},
		"prefetching that fails": {change: two, have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced fetches nofetch swap"}, state: v1alpha1.RolloutPrefetching, status: metav1.ConditionTrue, current: "old", says: "(DownloadFailed: the hub is away)"},
		"how long that takes": {change: with(func(s *scope) { s.replicas[2].Status.Progress.ETASeconds = ptr.To[int64](20) }),
			have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced fetches swap"}, state: v1alpha1.RolloutPrefetching, status: metav1.ConditionTrue, current: "old", says: "about 40 s"},
		"paused while it prefetches": {change: with(func(s *scope) { s.deployment.Spec.Rollout.Paused = true }), have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced fetches swap"}, state: v1alpha1.RolloutPaused, status: metav1.ConditionUnknown, current: "old"},
		"swapping":                   {change: two, have: []string{"old#0 ready", "old#1 ready deleting", "new#0 unplaced noroom swap"}, state: v1alpha1.RolloutSwapping, status: metav1.ConditionTrue, current: "old", says: "requests wait meanwhile"},
		"waiting": {change: with(func(s *scope) { s.deployment.Spec.Rollout.OnInsufficientMemory = v1alpha1.InsufficientMemoryWait }),
			have: []string{"old#0 ready", "old#1 ready", "new#0 unplaced noroom"}, state: v1alpha1.RolloutWaiting, status: metav1.ConditionTrue, current: "old", says: "add a Mac, set rollout.onInsufficientMemory to Swap"},
		"paused": {change: with(func(s *scope) { s.deployment.Spec.Rollout.Paused = true }), have: []string{"old#0 ready", "old#1 ready"}, state: v1alpha1.RolloutPaused, status: metav1.ConditionUnknown, current: "old", says: "rollout resume d"},
		"halted": {change: with(halt("new", 0)), have: []string{"old#0 ready", "old#1 ready"}, state: v1alpha1.RolloutHalted, status: metav1.ConditionFalse, current: "old",
			says: "the rollout of revision new is halted (Why: because); the previous revision (old) continues to serve. Correct the spec, roll back with `kubectl metalfleet rollout undo d`"},
		"complete":         {change: two, have: []string{"new#0 ready", "new#1 ready"}, state: v1alpha1.RolloutComplete, status: metav1.ConditionFalse, current: "new"},
		"an old one left":  {change: two, have: []string{"new#0 ready", "new#1 ready", "old#0 ready"}, state: v1alpha1.RolloutSurging, status: metav1.ConditionTrue, current: "old"},
		"scaled up":        {change: with(func(s *scope) { s.deployment.Status.CurrentRevision = "new" }), have: []string{"new#0 ready", "new#1"}, state: v1alpha1.RolloutStarting, status: metav1.ConditionTrue, current: "new"},
		"not accepted yet": {change: with(func(s *scope) { s.verdict.engine = nil }), have: []string{"new#0 ready", "new#1 ready"}, state: v1alpha1.RolloutPending, status: metav1.ConditionFalse, current: "new"},
		"scaled to zero":   {change: func(s *scope) { s.deployment.Spec.Replicas = ptr.To[int32](0) }, state: v1alpha1.RolloutComplete, status: metav1.ConditionFalse, current: "old"},
	} {
		t.Run(name, func(t *testing.T) {
			s := rolled(tc.change, tc.have...)
			s.rollout, s.overdue = assess(s)
			next := deriveStatus(s)
			c := condition(next.Conditions, v1alpha1.ConditionProgressing)
			if next.Rollout.State != tc.state || next.CurrentRevision != tc.current || next.UpdateRevision != "new" || c.Status != tc.status {
				t.Errorf("%s, current %s, Progressing %+v", next.Rollout.State, next.CurrentRevision, c)
			}
			if tc.state.Replaces() && c.Reason != string(tc.state) || !strings.Contains(c.Message, tc.says) {
				t.Errorf("Progressing %+v does not say %q", c, tc.says)
			}
		})
	}
}

// Revisions that are used, current or a fallback are kept in addition.
func TestTheHistoryIsBoundedAndKeepsWhatIsNeeded(t *testing.T) {
	s := rolled(nil, "old#0 ready", "new#0")
	s.revisions = nil
	for _, name := range []string{"a", "b", "old", "c", "new"} {
		s.revisions = append(s.revisions, revision{object: &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}}})
	}
	s.current = &s.revisions[4]
	for limit, want := range map[int32][]string{0: {"a", "b", "c"}, 1: {"a", "b"}, 2: {"a"}, 3: nil, 9: nil} {
		s.deployment.Spec.RevisionHistoryLimit = &limit
		var got []string
		for _, r := range surplusRevisions(s) {
			got = append(got, r.object.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v go, want %v", limit, got, want)
		}
	}
}

// TestAttackFiguresThatOverflow: the schema allows a Mac figures up to the largest, and refuses
// a status with a negative sum.
func TestAttackFiguresThatOverflow(t *testing.T) {
	s := &scope{deployment: &v1alpha1.ModelDeployment{}, current: &revision{object: &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "new"}}}}
	s.deployment.Spec.Replicas = ptr.To[int32](2)
	s.deployment.Status.RetiredFreedBytes = math.MaxInt64
	for i := range 3 {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		r.Spec.Revision, r.Spec.NodeName = "new", "mac"
		r.Status.Restarts = math.MaxInt32
		r.Status.Progress = v1alpha1.Progress{BytesDone: math.MaxInt64, ETASeconds: ptr.To[int64](math.MaxInt64)}
		r.Status.Memory.FootprintBytes, r.Status.Freed.TotalBytes = math.MaxInt64, math.MaxInt64
		s.replicas = append(s.replicas, r)
	}
	next := v1alpha1.ModelDeploymentStatus{}
	next.Rollout.State = v1alpha1.RolloutStarting
	count(&next, s)
	retired, _ := account(s.deployment.Status, s.replicas)
	f, left := s.figures(), eta(s, next)
	if f.bytes != math.MaxInt64 || f.failures != math.MaxInt32 || next.FootprintBytes != math.MaxInt64 || left == nil || *left <= 0 ||
		retired != math.MaxInt64 || liveFreed(s.replicas, nil) != math.MaxInt64 || fleet.Add(retired, liveFreed(s.replicas, nil)) != math.MaxInt64 {
		t.Errorf("%+v, footprint %d, retired %d, freed %d, %v s left", f, next.FootprintBytes, retired, liveFreed(s.replicas, nil), left)
	}
}
