package fleet

import (
	"fmt"
	"reflect"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Workers and watches share what is kept, with lists of different times.
func TestWhatIsKeptIsShared(t *testing.T) {
	var s Inspectors
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 100 {
				var macs []v1alpha1.MacNode
				for n := range 3 {
					m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", n), Labels: map[string]string{"room": fmt.Sprint((i + w + n) % 4)}}}
					m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
					macs = append(macs, m)
				}
				var deployments []v1alpha1.ModelDeployment
				for n := range 3 {
					d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("d", n), UID: types.UID(fmt.Sprint(n * (1 + i%2))), Generation: int64(i % 4)}}
					d.Spec.Model.Source = fmt.Sprint([]string{"file", "hf"}[n%2], "://n/", d.UID)
					d.Spec.Placement.NodeSelector = map[string]string{"room": fmt.Sprint(i % 4)}
					deployments = append(deployments, d)
				}
				macs = macs[:1+i%3]
				if got, want := len(s.Asked(&deployments[1], macs)), len(Asked(&deployments[1], macs)); got != want {
					t.Errorf("%d Macs are asked, want %d", got, want)
				}
				if got, want := s.Inspect(&deployments[0], macs, nil), Inspect(&deployments[0], macs); !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				if got, want := s.Inspections("m0", deployments, macs, nil), Inspections("m0", deployments, macs, nil); !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
		})
	}
	workers.Wait()
}
