//go:build !race

package modeldeployment

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// servingOf reads lines like "new#0" and "new#1 elsewhere unplaced": replicas of the current
// model, or of another if the line begins with "other".
func servingOf(current *revision, lines []string) (out []v1alpha1.ModelReplica) {
	for _, line := range lines {
		r := have(line)
		r.Spec.Model, r.Spec.Desired = current.engine.Model, v1alpha1.DesiredRunning
		if strings.HasPrefix(line, "other") {
			r.Spec.Model = fleettest.Model("hf://o/other", "x", 1000)
		}
		out = append(out, r)
	}
	return out
}

// prefetchingOf reads the same lines: replicas that have downloaded the weights, unless
// "nofetch" is in the line.
func prefetchingOf(current *revision, lines []string) []v1alpha1.ModelReplica {
	out := servingOf(current, lines)
	for i := range out {
		r := &out[i]
		r.Spec.PrefetchNodeName, r.Spec.NodeName, r.Spec.Desired = r.Spec.NodeName, "", v1alpha1.DesiredDownloaded
		if !strings.Contains(r.Name, "nofetch") {
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDownloaded, Status: metav1.ConditionTrue})
		}
	}
	return out
}

func TestPrefetchingReplicasFillUpToTheNumberOfMacs(t *testing.T) {
	current := &revision{object: &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, engine: fleet.Engine{Model: fleettest.Model("hf://o/n", "m", 1000)}}
	for name, tc := range map[string]struct {
		macs              int
		serving, prefetch []string
		create            string
		remove            string
	}{
		"none are wanted":                     {macs: 0, prefetch: []string{"new#0"}, remove: "new#0"},
		"the first":                           {macs: 2, create: "new#0/1 new#1/1"},
		"as many as there are":                {macs: 2, prefetch: []string{"new#0", "new#1"}},
		"one is missing":                      {macs: 3, prefetch: []string{"new#0", "new#2"}, create: "new#1/1"},
		"one is being deleted":                {macs: 1, prefetch: []string{"new#0 deleting"}, create: "new#0/2"},
		"serving ones count":                  {macs: 3, serving: []string{"new#5", "old#6"}, create: "new#0/1"},
		"unplaced ones do not":                {macs: 1, serving: []string{"new#5 unplaced"}, create: "new#0/1"},
		"nor those of another model":          {macs: 1, serving: []string{"other#5"}, create: "new#0/1"},
		"nor those that drain":                {macs: 1, serving: []string{"new#5 deleting"}, create: "new#0/1"},
		"a Mac serves what it kept":           {macs: 2, serving: []string{"new#0"}, prefetch: []string{"new#0", "new#1"}, remove: "new#0"},
		"of another model":                    {macs: 1, prefetch: []string{"other#0"}, create: "new#0/1", remove: "other#0"},
		"of a revision with the same model":   {macs: 1, prefetch: []string{"old#0"}},
		"too many: the one without a Mac":     {macs: 1, prefetch: []string{"new#0", "new#1 unplaced"}, remove: "new#1 unplaced"},
		"too many: the one that is not there": {macs: 1, prefetch: []string{"new#0 nofetch", "new#1"}, remove: "new#0 nofetch"},
		"too many: the newest":                {macs: 1, prefetch: []string{"new#0", "new#1"}, remove: "new#1"},
	} {
		t.Run(name, func(t *testing.T) {
			create, remove := planPrefetch(tc.macs, maxUnplaced, current, servingOf(current, tc.serving), prefetchingOf(current, tc.prefetch))
			var created, removed []string
			for _, b := range create {
				created = append(created, fmt.Sprintf("%s#%d/%d", b.revision, b.slot, b.epoch))
			}
			for _, r := range remove {
				removed = append(removed, r.Name)
			}
			if got := strings.Join(created, " "); got != tc.create {
				t.Errorf("creates %q, want %q", got, tc.create)
			}
			if got := strings.Join(removed, ","); got != tc.remove {
				t.Errorf("removes %q, want %q", got, tc.remove)
			}
		})
	}
	for room, want := range map[int]int{maxUnplaced: maxUnplacedPrefetchers, 2: 2, 0: 0, -1: 0} {
		if create, _ := planPrefetch(500, room, current, nil, nil); len(create) != want {
			t.Errorf("%d replicas wait for a Mac at once within a room of %d, want %d", len(create), room, want)
		}
	}
}
