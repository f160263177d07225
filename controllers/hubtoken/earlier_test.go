//go:build !race

package hubtoken

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
)

// TestAReplicaOfAnEarlierSourceKeepsItsCredential: the deployment names a source of another kind now, or
// on another host. Until the new revision serves, a replica of the old one may have to download its
// weights on another Mac.
func TestAReplicaOfAnEarlierSourceKeepsItsCredential(t *testing.T) {
	const earlier = "hf://org/model"
	for name, tc := range map[string]struct {
		secret string // that the deployment names now
		uid    string // of the replica's deployment
		token  string
	}{
		"the same Secret":          {secret: "hub", uid: "d", token: "hf_token"},
		"another Secret":           {secret: "other", uid: "d"},
		"a replica of another one": {secret: "hub", uid: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat", UID: "d"}}
			d.Status.SecretUID, d.Spec.Model.SecretRef, d.Spec.Model.Source = "s", &v1alpha1.SecretReference{Name: "hub"}, earlier
			ref := fleet.TokenRef(d)
			d.Spec.Model.SecretRef.Name, d.Spec.Model.Source = tc.secret, "s3://bucket/model"
			replica := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-1", UID: "r"}}
			replica.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: "chat", UID: tc.uid}
			assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
			assigned.Spec.Assignments = []v1alpha1.Assignment{{Namespace: "team-a", Name: "chat-1", ReplicaUID: "r", TokenRef: ref, Model: model.Record{Source: earlier}}}
			mine := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "metalfleet-system", Name: v1alpha1.AgentObjectName("m1")}}
			theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "hub", UID: types.UID("s")}, Data: map[string][]byte{"token": []byte("hf_token")}}
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(d, replica, assigned, mine, theirs).
				WithIndex(d, fleet.IndexTokenRef, func(o client.Object) []string { return []string{fleet.TokenRef(o.(*v1alpha1.ModelDeployment))} }).Build()
			r := New(c, &hubsecret.Reader{Live: c, Clock: clocktesting.NewFakePassiveClock(metav1.Now().Time)}, "metalfleet-system")
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "m1"}}); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(mine), mine); err != nil {
				t.Fatal(err)
			}
			if got := string(mine.Data[v1alpha1.HubTokenKeyPrefix+ref]); got != tc.token {
				t.Errorf("the Mac gets the token %q, want %q", got, tc.token)
			}
		})
	}
}
