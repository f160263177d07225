//go:build !race

package modeldeployment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// health is the check for Argo CD, which runs the same interpreter.
const health = "../../config/argocd/health.yaml"

// argo runs the health check of a kind and returns the health that Argo CD shows.
func argo(t *testing.T, kind string, o map[string]any) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(health))
	if err != nil {
		t.Fatal(err)
	}
	var patch struct{ Data map[string]string }
	if err := yaml.UnmarshalStrict(raw, &patch); err != nil {
		t.Fatal(err)
	}
	script := patch.Data["resource.customizations.health."+v1alpha1.GroupVersion.Group+"_"+kind]
	if script == "" {
		t.Fatalf("%s has no script for %s", health, kind)
	}
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	lua.OpenBase(l)
	l.SetGlobal("obj", toLua(l, o))
	if err := l.DoString(script); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	answer, ok := l.Get(-1).(*lua.LTable)
	if !ok || answer.RawGetString("message").String() == "" {
		t.Fatalf("%s: the script returns %v", kind, l.Get(-1))
	}
	return answer.RawGetString("status").String()
}

func toLua(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		out := l.NewTable()
		for key, e := range v {
			out.RawSetString(key, toLua(l, e))
		}
		return out
	case []any:
		out := l.NewTable()
		for _, e := range v {
			out.Append(toLua(l, e))
		}
		return out
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}

// standing is the state that people and tools see of a deployment.
type standing struct {
	// ready and available are REASON if the condition is True, and !REASON otherwise.
	ready, available string
	kstatus          kstatus.Status
	argo             string
}

func standingOf(t *testing.T, d *v1alpha1.ModelDeployment) standing {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		t.Fatal(err)
	}
	result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	short := func(kind string) string {
		c := condition(d.Status.Conditions, kind)
		switch {
		case c == nil:
			return ""
		case c.Status == metav1.ConditionTrue:
			return c.Reason
		}
		return "!" + c.Reason
	}
	return standing{ready: short(v1alpha1.ConditionReady), available: short(v1alpha1.ConditionAvailable), kstatus: result.Status, argo: argo(t, "ModelDeployment", content)}
}

// wanting requests n replicas of an accepted deployment.
func wanting(n int32, changes ...func(*scope)) func(*scope) {
	return func(s *scope) {
		s.deployment.Spec.Replicas = &n
		s.deployment.Generation, s.deployment.Status.ObservedGeneration = 2, 1
		s.verdict.condition = status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
		for _, c := range changes {
			c(s)
		}
	}
}

// unaccepted: the new spec is not accepted, and the previous revision stays.
func unaccepted(state metav1.ConditionStatus, reason string) func(*scope) {
	return func(s *scope) {
		s.deployment.Status.CurrentRevision = "new"
		s.verdict.engine, s.verdict.condition = nil, status.Condition{Type: v1alpha1.ConditionAccepted, Status: state, Reason: reason, Message: "says the Mac"}
	}
}

// first: no revision served before.
func first(s *scope) { s.deployment.Status.CurrentRevision = "" }

func paused(s *scope) { s.deployment.Spec.Rollout.Paused = true }

// at gives the replica at an index a false condition.
func at(i int, kind, reason string) func(*scope) {
	return func(s *scope) {
		r := &s.replicas[i]
		r.Status.Conditions = append([]metav1.Condition{{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: "says the Mac"}}, r.Status.Conditions...)
	}
}

func crashing(restarts int32) func(*scope) {
	return func(s *scope) {
		s.replicas[0].Status.Restarts = restarts
		s.replicas[0].Status.LastFailure = &v1alpha1.EngineFailure{Reason: v1alpha1.ReasonCanaryFailed, Message: "no token"}
	}
}

func failing(err error) func(*scope) { return func(s *scope) { s.failure = err } }

var (
	replicasResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "modelreplicas"}
	overQuota        = apierrors.NewForbidden(replicasResource, "new-1", errors.New("exceeded quota: models"))
	conflict         = apierrors.NewConflict(replicasResource, "d", errors.New("changed"))
)

// TestToolsSeeWhetherTheCurrentSpecIsServed: how kstatus (Flux, Helm, kpt) and Argo CD
// interpret the conditions. A deployment is not current because an earlier revision serves.
func TestToolsSeeWhetherTheCurrentSpecIsServed(t *testing.T) {
	const current, working, stuck, leaving = kstatus.CurrentStatus, kstatus.InProgressStatus, kstatus.FailedStatus, kstatus.TerminatingStatus
	deleted := func(s *scope) { s.deployment.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, tc := range map[string]struct {
		change func(*scope)
		have   []string
		want   standing
	}{
		"served":                {change: wanting(2), have: []string{"new#0 ready", "new#1 ready"}, want: standing{"Ready", "Available", current, "Healthy"}},
		"scaled to zero":        {change: wanting(0), want: standing{"ScaledToZero", "!ScaledToZero", current, "Healthy"}},
		"more are wanted":       {change: wanting(2), have: []string{"new#0 ready", "new#1"}, want: standing{"!Loading", "Available", working, "Progressing"}},
		"one drains":            {change: wanting(1), have: []string{"new#0 ready", "new#1 deleting"}, want: standing{"Ready", "Available", working, "Progressing"}},
		"it loads":              {change: wanting(1, first), have: []string{"new#0"}, want: standing{"!Loading", "!Loading", working, "Progressing"}},
		"nothing is placed yet": {change: wanting(1, first), have: []string{"new#0 unplaced"}, want: standing{"!Placing", "!Placing", working, "Progressing"}},
		"there is no room":      {change: wanting(1, first), have: []string{"new#0 unplaced noroom"}, want: standing{"!NoRoom", "!NoRoom", working, "Progressing"}},
		"its Mac is silent":     {change: wanting(1), have: []string{"new#0 silent"}, want: standing{"!MacSilent", "!MacSilent", working, "Progressing"}},
		"the old one serves":    {change: wanting(1), have: []string{"old#0 ready", "new#0"}, want: standing{"!Surging", "PreviousRevision", working, "Progressing"}},
		"both serve":            {change: wanting(1), have: []string{"old#0 ready", "new#0 ready"}, want: standing{"!Surging", "Available", working, "Progressing"}},
		"paused in the middle":  {change: wanting(1, paused), have: []string{"old#0 ready"}, want: standing{"!Paused", "PreviousRevision", working, "Suspended"}},
		"paused at the end":     {change: wanting(1, paused), have: []string{"new#0 ready"}, want: standing{"Ready", "Available", current, "Healthy"}},
		"the rollout is halted": {change: wanting(1, halt("new", 0)), have: []string{"old#0 ready"}, want: standing{"!Halted", "PreviousRevision", stuck, "Degraded"}},
		"halted, and it drains": {change: wanting(1, halt("new", 0)), have: []string{"old#0 ready", "new#0 deleting"}, want: standing{"!Halted", "PreviousRevision", stuck, "Degraded"}},
		"halted and paused":     {change: wanting(1, paused, halt("new", 0)), have: []string{"old#0 ready"}, want: standing{"!Halted", "PreviousRevision", stuck, "Degraded"}},
		"too large for any Mac": {change: wanting(1, at(1, v1alpha1.ConditionPlaced, v1alpha1.ReasonTooLarge)), have: []string{"old#0 ready", "new#0 unplaced"}, want: standing{"!TooLarge", "PreviousRevision", stuck, "Degraded"}},
		"the disk is full":      {change: wanting(1, first, at(0, v1alpha1.ConditionDownloaded, v1alpha1.ReasonDiskFull)), have: []string{"new#0"}, want: standing{"!DiskFull", "!DiskFull", stuck, "Degraded"}},
		"the hub is away":       {change: wanting(1, first), have: []string{"new#0 nofetch"}, want: standing{"!DownloadFailed", "!DownloadFailed", working, "Progressing"}},
		"two failed loads":      {change: wanting(1, first, crashing(2)), have: []string{"new#0"}, want: standing{"!Loading", "!Loading", working, "Progressing"}},
		"three failed loads":    {change: wanting(1, first, crashing(3)), have: []string{"new#0"}, want: standing{"!CanaryFailed", "!CanaryFailed", stuck, "Degraded"}},
		"failures in a long life": {change: wanting(1, crashing(9), func(s *scope) { s.deployment.Status.CurrentRevision = "new" }), have: []string{"new#0"},
			want: standing{"!Loading", "!Loading", working, "Progressing"}},
		"no progress": {change: wanting(1, first, func(s *scope) { s.deployment.Spec.Rollout.ProgressDeadlineSeconds = ptr.To[int32](60) }), have: []string{"new#0"},
			want: standing{"!ProgressDeadlineExceeded", "!ProgressDeadlineExceeded", stuck, "Degraded"}},
		"its Mac is silent for long": {change: wanting(1, func(s *scope) {
			s.deployment.Status.CurrentRevision, s.deployment.Spec.Rollout.ProgressDeadlineSeconds = "new", ptr.To[int32](60)
		}), have: []string{"new#0 silent"}, want: standing{"!MacSilent", "!MacSilent", working, "Progressing"}},
		"a patch to a missing source": {change: wanting(1, unaccepted(metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound)), have: []string{"new#0 ready"},
			want: standing{"!SourceNotFound", "PreviousRevision", stuck, "Degraded"}},
		"a source is inspected": {change: wanting(1, unaccepted(metav1.ConditionUnknown, v1alpha1.ReasonInspecting)), have: []string{"new#0 ready"},
			want: standing{"!Inspecting", "PreviousRevision", working, "Progressing"}},
		"a source is inspected after a halt": {change: wanting(1, unaccepted(metav1.ConditionUnknown, v1alpha1.ReasonInspecting), halt("new", 0)), have: []string{"old#0 ready"},
			want: standing{"!Inspecting", "PreviousRevision", working, "Progressing"}},
		"a source cannot be reached now": {change: wanting(1, unaccepted(metav1.ConditionFalse, v1alpha1.ReasonSourceUnreachable)), want: standing{"!SourceUnreachable", "!SourceUnreachable", working, "Progressing"}},
		"a Secret may not be read":       {change: wanting(1, unaccepted(metav1.ConditionUnknown, v1alpha1.ReasonSecretForbidden)), want: standing{"!SecretForbidden", "!SecretForbidden", stuck, "Degraded"}},
		"zero of a missing source":       {change: wanting(0, unaccepted(metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound)), want: standing{"!SourceNotFound", "!SourceNotFound", stuck, "Degraded"}},
		"a quota": {change: wanting(2, failing(&createError{"new-1", overQuota})), have: []string{"new#0 ready"},
			want: standing{"!ReplicaCreateFailed", "Available", stuck, "Degraded"}},
		"a replica could not be made now": {change: wanting(2, failing(&createError{"new-1", apierrors.NewInternalError(errors.New("bad moment"))})), have: []string{"new#0 ready"},
			want: standing{"!ReplicaCreateFailed", "Available", working, "Progressing"}},
		"the API server has a bad moment": {change: wanting(1, failing(apierrors.NewInternalError(errors.New("bad moment")))), have: []string{"new#0 ready"},
			want: standing{"!ReconcileFailed", "Available", working, "Progressing"}},
		"the revision could not be stored": {change: wanting(1, failing(conflict), func(s *scope) { s.current, s.deployment.Status.UpdateRevision = nil, "old" }), have: []string{"old#0 ready"},
			want: standing{"!Pending", "Available", working, "Progressing"}},
		"a pass that judged nothing": {change: wanting(1, failing(conflict), func(s *scope) { s.verdict, s.current = verdict{}, nil }), have: []string{"new#0 ready"},
			want: standing{"!Pending", "PreviousRevision", working, "Progressing"}},
		"nor the spec that was accepted before": {change: wanting(1, failing(conflict), func(s *scope) {
			s.verdict, s.current = verdict{}, nil
			s.deployment.Status.Conditions = status.Merge(nil, 1, now, status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, ""))
		}), have: []string{"new#0 ready"}, want: standing{"Ready", "Available", working, "Progressing"}},
		"deleted": {change: wanting(1, deleted), have: []string{"new#0 ready"}, want: standing{"!Draining", "!Draining", leaving, "Progressing"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := rolled(tc.change, tc.have...)
			if s.current != nil {
				s.rollout, s.overdue = assess(s)
			}
			s.deployment.Status = deriveStatus(s)
			got := standingOf(t, s.deployment)
			if got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
			c := s.deployment.Status.Conditions
			yes := func(kind string) bool { return condition(c, kind).Status == metav1.ConditionTrue }
			if yes(v1alpha1.ConditionStalled) && (yes(v1alpha1.ConditionReady) || yes(v1alpha1.ConditionReconciling)) ||
				!yes(v1alpha1.ConditionStalled) && !yes(v1alpha1.ConditionReconciling) && !yes(v1alpha1.ConditionReady) {
				t.Errorf("Ready, Reconciling and Stalled do not fit together: %+v", c[:4])
			}
		})
	}
	unseen := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Status: v1alpha1.ModelDeploymentStatus{ObservedGeneration: -1}}
	if got, want := standingOf(t, unseen), (standing{"", "", working, "Progressing"}); got != want {
		t.Errorf("before the operator looked: %+v, want %+v", got, want)
	}
}

// The message is the API server's.
func TestARefusedReplicaIsNotCalledStable(t *testing.T) {
	s := rolled(wanting(2, failing(&createError{"new-1", overQuota})), "new#0 ready")
	next := deriveStatus(s)
	for kind, want := range map[string]metav1.ConditionStatus{v1alpha1.ConditionProgressing: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionTrue, v1alpha1.ConditionStalled: metav1.ConditionTrue} {
		c := condition(next.Conditions, kind)
		if c.Status != want || c.Reason != v1alpha1.ReasonCreateFailed || !strings.Contains(c.Message, "exceeded quota: models") {
			t.Errorf("%+v, want %s and %s", c, want, v1alpha1.ReasonCreateFailed)
		}
	}
	s = rolled(wanting(2), "new#0 ready")
	if c := condition(deriveStatus(s).Conditions, v1alpha1.ConditionProgressing); c.Status != metav1.ConditionTrue {
		t.Errorf("while a replica is missing: %+v", c)
	}
}

// Once for each reason and generation.
func TestAnEventTellsWhyADeploymentStalls(t *testing.T) {
	missing := unaccepted(metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound)
	s := rolled(nil, "new#0 ready")
	for k, tc := range []struct {
		change     func(*scope)
		generation int64
		want       string
	}{
		{wanting(1), 2, ""},
		{wanting(1, missing), 3, v1alpha1.ReasonSourceNotFound},
		{wanting(1, missing), 3, ""},
		{wanting(1, missing), 4, v1alpha1.ReasonSourceNotFound},
		{wanting(1, halt("new", 0)), 5, v1alpha1.ReasonHalted},
		{wanting(1, halt("new", 0)), 5, ""},
		{wanting(1), 6, ""},
	} {
		before := s.deployment.Status
		s = rolled(tc.change, "new#0 ready")
		s.deployment.Generation, s.deployment.Status.Conditions = tc.generation, before.Conditions
		if s.deployment.Status.Rollout.Halt != nil {
			s.rollout.Halt = s.deployment.Status.Rollout.Halt
		}
		next := deriveStatus(s)
		got := ""
		for _, n := range notices(s, next) {
			got += n.Reason
			if !n.Warning || n.About.Name != "d" {
				t.Errorf("%d: %+v", k, n)
			}
		}
		if got != tc.want {
			t.Errorf("%d: %q, want %q", k, got, tc.want)
		}
		s.deployment.Status = next
	}
}

func TestArgoCDSeesWhetherAMacIsThere(t *testing.T) {
	for reason, tc := range map[string]struct {
		status metav1.ConditionStatus
		want   string
	}{
		v1alpha1.ReasonReporting:     {metav1.ConditionTrue, "Healthy"},
		v1alpha1.ReasonNeverReported: {metav1.ConditionFalse, "Progressing"},
		v1alpha1.ReasonMacSilent:     {metav1.ConditionUnknown, "Degraded"},
		v1alpha1.ReasonMacGone:       {metav1.ConditionFalse, "Degraded"},
	} {
		mac := &v1alpha1.MacNode{Status: v1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: tc.status, Reason: reason, Message: "m"}}}}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(mac)
		if err != nil {
			t.Fatal(err)
		}
		if got := argo(t, "MacNode", content); got != tc.want {
			t.Errorf("%s: %s, want %s", reason, got, tc.want)
		}
	}
}
