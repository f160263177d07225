package notice

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestTheSameNoticeIsOneEvent(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	now := time.Unix(1_800_000_000, 0)
	mac := func(uid string) *v1alpha1.MacNode {
		return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: types.UID(uid)}}
	}
	n := Notice{About: Of("MacNode", mac("u")), ID: "1", Reason: "Reclaimed", Message: strings.Repeat("x", 2000), Warning: true}
	remade, later := n, n
	remade.About, later.ID = Of("MacNode", mac("v")), "2"
	for k, tc := range []struct {
		notice Notice
		fresh  bool
	}{{n, true}, {n, false}, {remade, true}, {later, true}, {later, false}} {
		if fresh, err := tc.notice.Post(t.Context(), c, now.Add(time.Duration(k)*time.Minute)); err != nil || fresh != tc.fresh {
			t.Errorf("%d: new %v (%v), want %v", k, fresh, err, tc.fresh)
		}
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil || len(events.Items) != 3 {
		t.Fatalf("%d events (%v), want 3", len(events.Items), err)
	}
	for _, e := range events.Items {
		if e.Namespace != metav1.NamespaceDefault || e.Type != corev1.EventTypeWarning || len(e.Message) != 1024 {
			t.Errorf("%s/%s: %s, %d bytes", e.Namespace, e.Name, e.Type, len(e.Message))
		}
	}
}
