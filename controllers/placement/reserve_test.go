package placement

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// deployed is a crowd with deployments.
type deployed struct {
	*crowd
	deployments []v1alpha1.ModelDeployment
	rules       *v1alpha1.NamespaceRules
}

func (c *deployed) Get(ctx context.Context, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if rules, is := o.(*v1alpha1.NamespaceRules); is && c.rules != nil {
		*rules = *c.rules
		return nil
	}
	return c.crowd.Get(ctx, k, o, opts...)
}

func (c *deployed) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.replicas {
		if c.replicas[i].Name == o.GetName() {
			c.replicas[i].Spec.Residency = o.(*v1alpha1.ModelReplica).Spec.Residency
		}
	}
	return nil
}

func (c *deployed) Status() client.SubResourceWriter { return deployedStatus{c.crowd.Status(), c} }

type deployedStatus struct {
	client.SubResourceWriter
	c *deployed
}

func (s deployedStatus) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	s.c.mu.Lock()
	applied := o.(*ac.ModelReplicaApplyConfiguration)
	for i := range s.c.replicas {
		if r := &s.c.replicas[i]; r.Name == *applied.Name {
			r.Status.Conditions = nil
			for _, x := range applied.Status.Conditions {
				r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: *x.Type, Status: *x.Status, Reason: *x.Reason, Message: *x.Message})
			}
		}
	}
	s.c.mu.Unlock()
	return s.SubResourceWriter.Apply(ctx, o, opts...)
}

func (c *deployed) List(ctx context.Context, l client.ObjectList, o ...client.ListOption) error {
	if l, is := l.(*v1alpha1.ModelDeploymentList); is {
		l.Items = c.deployments
	}
	return c.crowd.List(ctx, l, o...)
}

// always adds a deployment that is to be Always, with OnDemand replicas on the Mac, which has no room.
func (c *deployed) always(namespace string, replicas int) {
	d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "d"}}
	for i := range replicas {
		name := fmt.Sprint(namespace, "-", i)
		c.add(namespace, name, 100*gib, time.Hour, 0)
		r := &c.replicas[len(c.replicas)-1]
		r.Spec.NodeName, r.Spec.Residency = "m", v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPlaced, Message: "placed on m"}}
		d.UID = r.UID
		r.Spec.DeploymentRef.UID = string(d.UID)
		c.deployments = append(c.deployments, d)
	}
}

// TestResidenciesOfANamespaceDelayNoPass: an edit of one deployment concerns thousands of replicas, and
// the pass places those of all.
func TestResidenciesOfANamespaceDelayNoPass(t *testing.T) {
	c := &deployed{crowd: crowded()}
	c.replicas = nil
	c.always("large", 3000)
	c.always("small", 1)
	r := &Reconciler{Client: c, Clock: clock.RealClock{}}
	result, err := r.Reconcile(t.Context(), pass)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.reported) > maxResidencyWrites || c.reported["small-0"] != 1 || result.RequeueAfter != time.Millisecond {
		t.Errorf("a pass reports on %d replicas, on that of another namespace %d times, and another pass follows after %s", len(c.reported), c.reported["small-0"], result.RequeueAfter)
	}
}

// TestReasonsOfBoundReplicasAreRepeatedSlowly: one replica more or less changes the figures in the
// messages of all that would have another residency.
func TestReasonsOfBoundReplicasAreRepeatedSlowly(t *testing.T) {
	c, clock := &deployed{crowd: crowded()}, &slowClock{now: time.Unix(1_800_000_000, 0)}
	c.replicas = nil
	c.always("large", 1000)
	c.always("small", 1)
	for i := range c.replicas {
		c.replicas[i].Status.Conditions[0].Message = "placed on m; it stays OnDemand: other figures"
	}
	r := &Reconciler{Client: c, Clock: clock}
	for passes, again := 0, time.Duration(0); again != repeatAgain; passes++ {
		result, err := r.Reconcile(t.Context(), pass)
		if err != nil || passes == 20 {
			t.Fatalf("pass %d: %v; %d replicas are reported, and another pass follows after %s", passes, err, len(c.reported), result.RequeueAfter)
		}
		again = result.RequeueAfter
	}
	if len(c.reported) != maxReports+1 || c.reported["small-0"] != 1 {
		t.Errorf("%d replicas are reported at once, want %d and one of another namespace", len(c.reported), maxReports)
	}
}

// TestReplicasThatBecomeOnDemandAskTheRules: whichever way a namespace takes to OnDemand replicas, it
// has no more of them than its rules allow, and the others report why they stay Always.
func TestReplicasThatBecomeOnDemandAskTheRules(t *testing.T) {
	for name, c := range map[string]struct {
		spec     v1alpha1.NamespaceRulesSpec
		others   int64 // OnDemand on the Mac
		unplaced bool  // the Mac is known, and the condition not written yet
		want     int
	}{
		"no limit":                {want: 3},
		"room for those":          {spec: v1alpha1.NamespaceRulesSpec{OnDemandOvercommitPercent: 200}, others: 20 * gib, want: 3},
		"overcommitment":          {spec: v1alpha1.NamespaceRulesSpec{OnDemandOvercommitPercent: 200}, others: 35 * gib},
		"share of the disk":       {spec: v1alpha1.NamespaceRulesSpec{Default: v1alpha1.NamespaceRule{ReplicasPerMac: 32}}, want: 1},
		"not reported as placed":  {unplaced: true, want: 3},
		"nor that, and too large": {spec: v1alpha1.NamespaceRulesSpec{Default: v1alpha1.NamespaceRule{ReplicasPerMac: 32}}, unplaced: true, want: 1},
	} {
		w := &deployed{crowd: crowded(), rules: &v1alpha1.NamespaceRules{Spec: c.spec}}
		w.replicas = nil
		for i := range 3 {
			w.always(fmt.Sprint("ns", i), 1)
			r, n := &w.replicas[i], []int64{30 * gib, 30 * gib, 4 * gib}[i]
			r.Namespace, r.Spec.ReservedBytes, r.Spec.Residency = "ns", n, v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}
			r.Spec.Model.Digest, r.Spec.Model.Files = fmt.Sprint("sha256:", i), []model.File{{Path: "m.gguf", Bytes: 30 * gib}}
			if c.unplaced {
				r.Status.Conditions = nil
			}
			w.deployments[i].Spec.Residency.Policy = v1alpha1.ResidencyOnDemand
		}
		w.always("other", 1)
		w.replicas[3].Spec.ReservedBytes, w.deployments[3].Spec.Residency.Policy = c.others, v1alpha1.ResidencyOnDemand
		w.macs[0].Status.Disk.FreeBytes, w.macs[0].Status.Disk.WeightsBytes = 10*gib, 90*gib
		r, again := &Reconciler{Client: w, Clock: clock.RealClock{}}, true
		for passes := 0; again && passes < 10; passes++ {
			result, err := r.Reconcile(t.Context(), pass)
			if err != nil {
				t.Fatal(err)
			}
			again = result.RequeueAfter > 0
		}
		n, reasons := 0, 0
		for _, r := range w.replicas[:3] {
			if r.Spec.Residency.OnDemand() {
				n++
			} else if strings.Contains(r.Status.Conditions[0].Message, "; it stays Always: ") {
				reasons++
			}
		}
		if n != c.want || reasons != 3-c.want || again {
			t.Errorf("%s: %d replicas are OnDemand, want %d; %d report why not; another pass is due: %t", name, n, c.want, reasons, again)
		}
	}
}
