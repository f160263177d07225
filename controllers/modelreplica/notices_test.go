//go:build !race

package modelreplica

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Each is emitted once, for reports in the order in which a Mac sends them.
func TestEventsTellWhatAMacDid(t *testing.T) {
	const downloaded, loaded = v1alpha1.ConditionDownloaded, v1alpha1.ConditionLoaded
	r := bound()
	var before []metav1.Condition
	ids := map[string]bool{}
	for k, tc := range []struct {
		report []metav1.Condition
		want   string
	}{
		{nil, ""},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonWaiting), is(loaded, "False", v1alpha1.ReasonWaiting)}, ""},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonDownloading)}, "Downloading"},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonDownloading)}, ""},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonDownloadFailed)}, "DownloadFailed!"},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonDownloadFailed)}, ""},
		{[]metav1.Condition{is(downloaded, "False", v1alpha1.ReasonDiskFull)}, "DiskFull!"},
		{[]metav1.Condition{is(downloaded, "True", v1alpha1.ReasonVerified), is(loaded, "False", v1alpha1.ReasonLoading)}, "Downloaded"},
		{[]metav1.Condition{is(downloaded, "True", v1alpha1.ReasonVerified), is(loaded, "True", v1alpha1.ReasonLoaded)}, "Loaded"},
		{[]metav1.Condition{is(downloaded, "True", v1alpha1.ReasonVerified), is(loaded, "True", v1alpha1.ReasonLoaded)}, ""},
		{[]metav1.Condition{is(downloaded, "True", v1alpha1.ReasonVerified), is(loaded, "False", v1alpha1.ReasonOnDemand)}, ""},
		{[]metav1.Condition{is(downloaded, "True", v1alpha1.ReasonVerified), is(loaded, "True", v1alpha1.ReasonLoaded)}, "Loaded"},
	} {
		for i := range tc.report {
			tc.report[i].LastTransitionTime = metav1.NewTime(now.Add(time.Duration(k) * time.Minute))
		}
		var got []string
		for _, n := range notices(r, before, tc.report) {
			word := n.Reason
			if n.Warning {
				word += "!"
			}
			got = append(got, word)
			if id := n.Reason + n.ID; ids[id] || n.Message == "" || n.About.Name != "r" {
				t.Errorf("%d: %+v is the same Event as one before, or says nothing", k, n)
			} else {
				ids[id] = true
			}
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%d: %q, want %q", k, s, tc.want)
		}
		before = tc.report
	}
}

// TestAttackAMacLoadsAllTheTime: a Mac reports another load of a model with each write.
func TestAttackAMacLoadsAllTheTime(t *testing.T) {
	r := bound()
	r.Namespace = "ns"
	c := world(t, r)
	reconciler := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}
	for i := range 400 {
		var is v1alpha1.ModelReplica
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(r), &is); err != nil {
			t.Fatal(err)
		}
		load := metav1.Condition{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionStatus([]string{"True", "False"}[i%2]), Reason: v1alpha1.ReasonLoaded,
			LastTransitionTime: metav1.NewTime(now.Add(time.Duration(i) * time.Second))}
		if err := reconciler.report(t.Context(), &is, v1alpha1.ModelReplicaStatus{Conditions: []metav1.Condition{load}}); err != nil {
			t.Fatal(err)
		}
	}
	var list corev1.EventList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 128 {
		t.Errorf("200 loads made %d Events, want 128", len(list.Items))
	}
}
