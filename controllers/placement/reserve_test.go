package placement

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// deployed is a crowd with deployments.
type deployed struct {
	*crowd
	deployments []v1alpha1.ModelDeployment
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
