package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
)

// large is a status with every list full, and with about this number of bytes of paths and
// messages.
func large(paths, messages int) v1alpha1.MacNodeStatus {
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	zeros := func(n int) string { return strings.Repeat("0", n) }
	s := v1alpha1.MacNodeStatus{AgentVersion: zeros(64), BootID: zeros(64), Chip: zeros(32)}
	for i := range 256 {
		s.Weights = append(s.Weights, v1alpha1.StoredWeights{Digest: fmt.Sprintf("sha256:%064d", i), Bytes: 1 << 50, ReclaimableBytes: 1 << 50})
	}
	each := messages / (128 * 6)
	for i := range 128 {
		a := v1alpha1.AssignmentStatus{ReplicaUID: fmt.Sprintf("%064d", i), Epoch: 1 << 50, PID: 1 << 20, Restarts: 1 << 20,
			LastFailure: &v1alpha1.EngineFailure{Reason: "EngineCrashed", Message: zeros(each), Time: now},
			Activity:    &v1alpha1.EngineActivity{Running: 1 << 40, Queued: 1 << 40, PromptTokensTotal: 1 << 50, GeneratedTokensTotal: 1 << 50, CacheBytes: 1 << 50},
			Memory: v1alpha1.EngineMemory{ReservedBytes: 1 << 50, LimitBytes: 1 << 50, FootprintBytes: 1 << 50, WeightsBytes: 1 << 50,
				ActiveBytes: 1 << 50, PooledBytes: 1 << 50, AccountedBytes: 1 << 50, MeasuredAt: &now}}
		for _, stage := range []string{"Downloaded", "Admitted", "Loaded", "Serving", "Released"} {
			a.Conditions = append(a.Conditions, metav1.Condition{Type: stage, Status: metav1.ConditionFalse, Reason: "Reason", Message: zeros(each), LastTransitionTime: now, ObservedGeneration: 1 << 50})
		}
		s.Assignments = append(s.Assignments, a)
	}
	for i := range 64 {
		in := v1alpha1.InspectionStatus{ID: fmt.Sprintf("%064d", i), Source: "hf://a/b", State: v1alpha1.InspectionResolved,
			Model: &model.Record{Source: "hf://a/b", Format: model.FormatSafetensors, Digest: "sha256:" + zeros(64), Facts: model.Facts{Architecture: "llama"}}}
		for k := 0; k == 0 || k < 256 && paths > 0; k++ {
			n := min(500, paths)
			paths -= n
			in.Model.Files = append(in.Model.Files, model.File{Path: fmt.Sprintf("%03d", k) + zeros(n), Bytes: 1 << 50, SHA256: zeros(64)})
		}
		s.Inspections = append(s.Inspections, in)
	}
	return s
}

// TestAttackAMacNodeThatIsTooLargeToChange: a Mac that was taken over fills the status of its
// MacNode up to what etcd stores, so that nothing can be added to it, which its deletion and
// the report of its silence do.
func TestAttackAMacNodeThatIsTooLargeToChange(t *testing.T) {
	w := newWorld(t)
	evil := w.mac("mac-evil", holding(60*gib))
	w.eventually("it reports", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonReporting) })
	evil.Stop()
	as := rest.CopyConfig(env.Config())
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":mac-mac-evil",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"}}
	c, err := client.New(as, client.Options{Scheme: controllers.Scheme()})
	w.must(err)
	write := func(s v1alpha1.MacNodeStatus, manager string) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			var mac v1alpha1.MacNode
			w.must(c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac))
			s.Conditions = mac.Status.Conditions
			mac.Status = s
			return c.Status().Update(w.ctx, &mac, client.FieldOwner(manager))
		})
	}
	for _, c := range []struct {
		paths, messages int
		manager, want   string
	}{
		{paths: 140_000, manager: v1alpha1.ManagerAgent, want: "400 KiB of sources, messages and files"},
		{messages: 300_000, manager: v1alpha1.ManagerAgent, want: "256 KiB of messages"},
		{manager: "other", want: "field manager"},
	} {
		if err := write(large(c.paths, c.messages), c.manager); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want one of %s", err, c.want)
		}
	}
	w.must(write(large(110_000, 250_000), v1alpha1.ManagerAgent)) // as much as is allowed
	w.must(w.declareLost("mac-evil"))
	w.pass(10 * time.Minute)
	w.eventually("its silence is reported", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonMacGone) })
	w.must(w.c.Delete(w.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-evil"}}))
}
