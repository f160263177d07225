//go:build !race

package plan

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAttackManyDeploymentsInOnePass: replicas of many deployments come in turns, and what is
// known of a deployment is neither forgotten at once nor kept without a bound.
func TestAttackManyDeploymentsInOnePass(t *testing.T) {
	for _, c := range []struct{ macs, deployments, least, most int }{
		{macs: 1, deployments: 1000, least: 1000, most: 1000},
		{macs: 1, deployments: maxClasses + 100, least: maxClasses, most: maxClasses},
		{macs: 3000, deployments: 120, least: 64, most: 110},
	} {
		macs := make([]v1alpha1.MacNode, c.macs)
		for i := range macs {
			macs[i] = v1alpha1.MacNode{}
			macs[i].Name = fmt.Sprint("m", i)
		}
		s := NewSnapshot(macs, nil, v1alpha1.MacNode{}.CreationTimestamp.Time)
		for i := range c.deployments {
			r := &v1alpha1.ModelReplica{}
			r.Spec.DeploymentRef.UID = fmt.Sprint("d", i)
			s.class(r)
		}
		if n := len(s.classes); n < c.least || n > c.most {
			t.Errorf("%d Macs: of %d deployments %d are known, want %d to %d", c.macs, c.deployments, n, c.least, c.most)
		}
	}
}
