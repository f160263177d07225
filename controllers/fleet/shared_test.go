//go:build !race

package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// longInspection is a deployment whose inspection has about that many bytes.
func longInspection(namespace, name string, bytes int, age time.Duration) v1alpha1.ModelDeployment {
	d := deployment(name, "hf://absent/x"+name, age)
	d.Namespace = namespace
	for left := bytes - 150; left >= 6; {
		n := min(left/6, 250)
		d.Spec.Model.Files = append(d.Spec.Model.Files, strings.Repeat("<", n))
		left -= 6 * n
	}
	return d
}

// TestANamespaceLosesNoInspectionThatOthersAskForToo: another namespace with fewer sources asks for
// the same as the last of its own, which leave no room for it in the share of that namespace or after all
// shares.
func TestANamespaceLosesNoInspectionThatOthersAskForToo(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	const popular = "hf://org/popular"
	var team []v1alpha1.ModelDeployment
	for i := range 13 {
		d := deployment(fmt.Sprint("real-", i), fmt.Sprint("hf://team/model-", i), 100*time.Hour)
		d.Namespace, d.Generation = "team", 1
		d.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1},
			{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
		team = append(team, d)
	}
	fresh := deployment("fresh", popular, time.Minute)
	fresh.Namespace = "team"
	team = append(team, fresh)
	all := slices.Clone(team)
	for i, bytes := range []int{21600, 21600, 21600, 21600, 21600, 11000, 5500, 2700, 1350, 680, 340, 170} {
		all = append(all, longInspection("evil", fmt.Sprint(i), bytes, time.Duration(90-i)*time.Hour))
	}
	twin := deployment("twin", popular, time.Second)
	twin.Namespace = "evil"
	all = append(all, twin)
	for _, m := range macs {
		got := Inspections(m.Name, all, macs, nil)
		for _, d := range team {
			if !slices.ContainsFunc(got, func(in v1alpha1.Inspection) bool { return in.Source == d.Spec.Model.Source }) {
				t.Errorf("Mac %s does not inspect %s, its list has %d inspections and %d bytes", m.Name, d.Spec.Model.Source, len(got), jsonBytes(got))
			}
		}
		if jsonBytes(got) > maxInspectionsBytes+len(got)+1 {
			t.Errorf("Mac %s: %d bytes", m.Name, jsonBytes(got))
		}
	}
}

// TestWhatFitsInTheShareOfANamespaceIsInspected: others ask for random sources, of which some are the same.
func TestWhatFitsInTheShareOfANamespaceIsInspected(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 25))
		namespaces := 2 + rng.IntN(5)
		share := maxInspectionsBytes / namespaces
		var all, team []v1alpha1.ModelDeployment
		for used, i := 0, 0; i < MaxInspections/namespaces; i++ {
			d := longInspection("team", fmt.Sprint("team-", i), 100+rng.IntN(share/4), time.Duration(rng.IntN(100))*time.Hour)
			if used += jsonBytes(inspectionFor(&d, InspectionID(&d))); used > share {
				break
			}
			team = append(team, d)
		}
		for n := 1; n < namespaces; n++ {
			for i := range rng.IntN(40) {
				name := fmt.Sprintf("evil-%d-%d", n, i)
				d := longInspection(fmt.Sprint("evil-", n), name, 100+rng.IntN(share), time.Duration(rng.IntN(100))*time.Hour)
				if rng.IntN(4) == 0 {
					d.Spec.Model = team[rng.IntN(len(team))].Spec.Model
				}
				all = append(all, d)
			}
		}
		all = append(all, team...)
		got := Inspections("a", all, []v1alpha1.MacNode{ready("a")}, nil)
		for _, d := range team {
			if !slices.ContainsFunc(got, func(in v1alpha1.Inspection) bool { return in.ID == InspectionID(&d) }) {
				t.Fatalf("seed %d: %s is not inspected, and there are %d inspections", seed, d.Name, len(got))
			}
		}
	}
}

// TestWhatIsPreemptedDrainsNoLongerThanByDefault: the replica that takes its room waits for it.
func TestWhatIsPreemptedDrainsNoLongerThanByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds, want int32
		reason        string
		serves        bool
	}{
		"a long drain":                      {seconds: 86400, reason: v1alpha1.ReasonPreempted, want: 600},
		"a short one":                       {seconds: 10, reason: v1alpha1.ReasonPreempted, want: 10},
		"makes room for its own revision":   {seconds: 86400, reason: v1alpha1.ReasonSwapping, want: 86400},
		"its deployment is deleted":         {seconds: 86400, want: 86400},
		"it was not deleted after a report": {seconds: 86400, reason: v1alpha1.ReasonPreempted, serves: true, want: 86400},
	} {
		r := v1alpha1.ModelReplica{}
		r.Spec.NodeName, r.Spec.DrainSeconds = "m", tc.seconds
		if !tc.serves {
			r.DeletionTimestamp = &metav1.Time{Time: now}
		}
		if tc.reason != "" {
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: tc.reason}}
		}
		if got := Assignments("m", []v1alpha1.ModelReplica{r}, nil)[0].DrainSeconds; got != tc.want {
			t.Errorf("%s: %d s, want %d", name, got, tc.want)
		}
	}
}
