//go:build !race

package plan

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// carries gives a replica weights of a size.
func carries(digest string, bytes int64) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Model = model.Record{Source: "https://host/" + digest, Digest: digest, VouchedBy: []string{model.VoucherPreview}, Files: []model.File{{Bytes: bytes}}}
	}
}

// has puts weights on a Mac, and sets its free disk space.
func has(digest string, bytes, free int64) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) {
		m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest, Bytes: bytes})
		m.Status.Disk.FreeBytes = free
	}
}

// says reports the state of the prefetch for replica r.
func says(reason string) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) {
		s := metav1.ConditionFalse
		if reason == v1alpha1.ReasonVerified {
			s = metav1.ConditionTrue
		}
		m.Status.Assignments = []v1alpha1.AssignmentStatus{{ReplicaUID: "r", Epoch: 1,
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDownloaded, Status: s, Reason: reason}}}}
	}
}

// They are prefetched on the Mac where a replica of the old revision is to be evicted,
// unless the disk has no room for both.
func TestWeightsAreFetchedBeforeARoomIsGiven(t *testing.T) {
	type macs = []v1alpha1.MacNode
	type change = func(*v1alpha1.ModelReplica)
	drains := func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &metav1.Time{Time: now} }
	ahead := func(mac string) change { return func(r *v1alpha1.ModelReplica) { r.Spec.PrefetchNodeName = mac } }
	pinned := func(m *v1alpha1.MacNode) { m.Spec.PinnedWeights = []string{"old"} }
	old := func(name, mac string, more ...change) v1alpha1.ModelReplica {
		return replica(name, 9*gib, append([]change{on(mac), of("d"), revised("old"), carries("old", 4*gib)}, more...)...)
	}
	a := func(free int64, more ...func(*v1alpha1.MacNode)) v1alpha1.MacNode {
		return mac("a", 10*gib, append([]func(*v1alpha1.MacNode){has("old", 4*gib, free)}, more...)...)
	}
	b := func(free int64, more ...func(*v1alpha1.MacNode)) v1alpha1.MacNode {
		m := a(free, more...)
		m.Name = "b"
		return m
	}
	here, gone := []v1alpha1.ModelReplica{old("s", "a", ready)}, []v1alpha1.ModelReplica{old("s", "a", ready, drains)}
	const swap, fetch, noRoom = v1alpha1.ReasonSwapping, v1alpha1.ReasonPrefetching, v1alpha1.ReasonNoRoom
	for name, tc := range map[string]struct {
		macs     macs
		existing []v1alpha1.ModelReplica
		change   []change
		// reason, the victim, the prefetching Mac, and a part of the message.
		reason, victim, fetches, says string
	}{
		"they are not there":              {macs: macs{a(9 * gib)}, existing: here, reason: fetch, fetches: "a", says: "downloading the weights (5.0 GiB) on a before"},
		"they are there, and are kept":    {macs: macs{a(9*gib, has("new", 5*gib, 9*gib))}, existing: here, reason: swap, victim: "s", fetches: "a", says: "drains to make room on a"},
		"they come":                       {macs: macs{a(9*gib, says(v1alpha1.ReasonDownloading))}, existing: here, change: []change{ahead("a")}, reason: fetch, fetches: "a"},
		"they came":                       {macs: macs{a(4*gib, has("new", 5*gib, 4*gib))}, existing: here, change: []change{ahead("a")}, reason: swap, victim: "s", fetches: "a"},
		"their Mac has them elsewhere":    {macs: macs{a(9*gib, says(v1alpha1.ReasonVerified))}, existing: here, change: []change{ahead("a")}, reason: swap, victim: "s", fetches: "a"},
		"what it says of others is not":   {macs: macs{a(9*gib, says(v1alpha1.ReasonVerified))}, existing: here, reason: fetch, fetches: "a"},
		"a download failed":               {macs: macs{a(9*gib, says(v1alpha1.ReasonDownloadFailed))}, existing: here, change: []change{ahead("a")}, reason: fetch, fetches: "a"},
		"the Mac has no room below":       {macs: macs{a(9*gib, says(v1alpha1.ReasonDiskFull))}, existing: here, change: []change{ahead("a")}, reason: swap, victim: "s", fetches: "a", says: "the disk has no space for both models"},
		"they fit only in their place":    {macs: macs{a(2 * gib)}, existing: here, reason: swap, victim: "s", says: "the disk has no space for both models"},
		"and the old one drains":          {macs: macs{a(2 * gib)}, existing: gone, reason: swap, says: "the disk has no space for both models"},
		"they fit not even there":         {macs: macs{a(gib / 2)}, existing: here, reason: noRoom, says: "without disk space"},
		"the old ones are pinned":         {macs: macs{a(2*gib, pinned)}, existing: here, reason: noRoom, says: "without disk space"},
		"others use the old ones":         {macs: macs{a(2 * gib)}, existing: append([]v1alpha1.ModelReplica{replica("t", gib/2, on("a"), carries("old", 4*gib))}, here...), reason: noRoom, says: "without disk space"},
		"the disk is unknown":             {macs: macs{a(0)}, existing: here, reason: noRoom, says: "without disk space"},
		"nor whether less would fit":      {macs: macs{a(0)}, existing: here, change: []change{carries("new", 3*gib)}, reason: noRoom, says: "without disk space"},
		"memory is not what lacks":        {macs: macs{a(2 * gib)}, existing: []v1alpha1.ModelReplica{old("s", "a", ready, func(r *v1alpha1.ModelReplica) { r.Spec.ReservedBytes = gib })}, reason: noRoom, says: "without disk space"},
		"the spread forbids the Mac":      {macs: macs{a(2 * gib)}, existing: here, change: []change{spreadOver("rack", 1, corev1.DoNotSchedule)}, reason: noRoom, says: "without disk space"},
		"files that are used in place":    {macs: macs{a(9 * gib)}, existing: here, change: []change{func(r *v1alpha1.ModelReplica) { r.Spec.Model.Source = "https://x"; r.Spec.Model.Files = nil }}, reason: swap, victim: "s", fetches: "a"},
		"without leave to swap":           {macs: macs{a(9 * gib)}, existing: here, change: []change{ahead("a"), func(r *v1alpha1.ModelReplica) { r.Spec.Swap = false }}, reason: noRoom},
		"a Mac that has them comes first": {macs: macs{a(9 * gib), b(9*gib, has("new", 5*gib, 9*gib))}, existing: []v1alpha1.ModelReplica{old("s", "a"), old("t", "b", ready)}, reason: swap, victim: "t", fetches: "b"},
		"then the one that fetches":       {macs: macs{a(9 * gib), b(9 * gib)}, existing: []v1alpha1.ModelReplica{old("s", "a"), old("t", "b", ready)}, change: []change{ahead("b")}, reason: fetch, fetches: "b"},
		"also where that one has no room": {macs: macs{a(9 * gib), b(9*gib, says(v1alpha1.ReasonDiskFull))}, existing: []v1alpha1.ModelReplica{old("s", "a"), old("t", "b", ready)}, change: []change{ahead("b")}, reason: swap, victim: "t", fetches: "b", says: "no space for both models"},
		"then one with room for them":     {macs: macs{a(2 * gib), b(9 * gib)}, existing: []v1alpha1.ModelReplica{old("s", "a"), old("t", "b", ready)}, reason: fetch, fetches: "b"},
		"its Mac is away, and fetches on": {macs: macs{a(9*gib, silentMac)}, existing: here, change: []change{ahead("a")}, reason: v1alpha1.ReasonNoCandidates, fetches: "a"},
		"its Mac is away, another is not": {macs: macs{a(9*gib, silentMac), b(9 * gib)}, existing: []v1alpha1.ModelReplica{old("s", "a"), old("t", "b", ready)}, change: []change{ahead("a")}, reason: fetch, fetches: "b"},
		"a room elsewhere is waited for":  {macs: macs{a(9 * gib), b(9 * gib)}, existing: []v1alpha1.ModelReplica{old("s", "a", ready), old("t", "b", ready, drains)}, change: []change{ahead("a")}, reason: swap, says: "waiting for room on b"},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica("r", 9*gib, append([]change{of("d"), revised("new"), swaps, carries("new", 5*gib), func(r *v1alpha1.ModelReplica) { r.Spec.Epoch = 1 }}, tc.change...)...)
			d := NewSnapshot(tc.macs, append([]v1alpha1.ModelReplica{r}, tc.existing...), now).Pick(&r)
			victim := ""
			for _, v := range d.Victims {
				victim += v.Name
			}
			if d.Reason != tc.reason || victim != tc.victim || d.FetchesOn(&r) != tc.fetches || !strings.Contains(d.Message, tc.says) || d.Mac != "" {
				t.Errorf("%s, victims %q, fetches on %q: %s", d.Reason, victim, d.FetchesOn(&r), d.Message)
			}
		})
	}
}

// Both within a pass and after it.
func TestADiskIsNotPromisedTwiceToWhatIsFetchedAhead(t *testing.T) {
	one := mac("a", 20*gib, has("old", gib, 9*gib))
	who := func(name, mac string) v1alpha1.ModelReplica {
		r := replica(name, 9*gib, of("d"+name), revised("new"), swaps, carries("new-"+name, 5*gib))
		r.Spec.PrefetchNodeName = mac
		return r
	}
	there := func(name string) v1alpha1.ModelReplica {
		return replica("old-"+name, 9*gib, on("a"), of("d"+name), revised("old"), carries("old", gib), ready)
	}
	olds := []v1alpha1.ModelReplica{there("r"), there("s")}
	first, second := who("r", ""), who("s", "")
	s := NewSnapshot([]v1alpha1.MacNode{one}, olds, now)
	d := s.Pick(&first)
	if d.Reason != v1alpha1.ReasonPrefetching {
		t.Fatalf("%s: %s", d.Reason, d.Message)
	}
	s.Fetch(&first, d.FetchesOn(&first))
	if d := s.Pick(&second); d.Reason == v1alpha1.ReasonPrefetching || d.Awaits != "" {
		t.Errorf("in the same pass: %s: %s", d.Reason, d.Message)
	}
	s = NewSnapshot([]v1alpha1.MacNode{one}, append(olds, who("r", "a")), now)
	if d := s.Pick(&second); d.Reason == v1alpha1.ReasonPrefetching || d.Awaits != "" {
		t.Errorf("in the next: %s: %s", d.Reason, d.Message)
	}
	partly := who("r", "a")
	partly.Status.Progress = v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: 4 * gib, BytesTotal: 5 * gib}
	if d := NewSnapshot([]v1alpha1.MacNode{one}, append(olds, partly), now).Pick(&second); d.Reason != v1alpha1.ReasonPrefetching {
		t.Errorf("with one that is nearly complete: %s: %s", d.Reason, d.Message)
	}
	complete := mac("a", 20*gib, has("old", gib, 9*gib), has("new-r", 5*gib, 9*gib))
	if d := NewSnapshot([]v1alpha1.MacNode{complete}, append(olds, who("r", "a")), now).Pick(&second); d.Reason != v1alpha1.ReasonPrefetching {
		t.Errorf("with one that is complete: %s: %s", d.Reason, d.Message)
	}
	gone := who("r", "a")
	gone.DeletionTimestamp = &metav1.Time{Time: now}
	s = NewSnapshot([]v1alpha1.MacNode{one}, append(olds, gone), now)
	if d := s.Pick(&second); d.Reason != v1alpha1.ReasonPrefetching {
		t.Errorf("once it is let go: %s: %s", d.Reason, d.Message)
	}
}

// The decision for a sibling that may not swap does not apply to one that may.
func TestALeaveToSwapIsNotAnsweredWithASiblingsWord(t *testing.T) {
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib)}, []v1alpha1.ModelReplica{replica("s", 9*gib, on("a"), of("d"), revised("old"))}, now)
	sibling, r := replica("q", 9*gib, of("d"), revised("new")), replica("r", 9*gib, of("d"), revised("new"), swaps)
	sibling.UID, r.UID = types.UID("q"), types.UID("r")
	if d := s.Pick(&sibling); d.Reason != v1alpha1.ReasonNoRoom {
		t.Fatalf("%s: %s", d.Reason, d.Message)
	}
	if d := s.Pick(&r); d.Reason != v1alpha1.ReasonSwapping {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
}

// TestPrefetchesBeforeSwapsCountForTheirNamespace: one swap at a time may always prefetch, and others
// wait, with replicas that serve, until the rules allow their weights too.
func TestPrefetchesBeforeSwapsCountForTheirNamespace(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 48*gib), mac("b", 48*gib)}
	full := replica("full", 48*gib, on("b"), func(r *v1alpha1.ModelReplica) { r.Namespace = "other" })
	next := func(i int) v1alpha1.ModelReplica {
		return replica(fmt.Sprint("new", i), 15*gib, of(fmt.Sprint("d", i)), revised("new"), swaps, carries(fmt.Sprint("w", i), 30*gib))
	}
	for name, c := range map[string]struct {
		limit string
		kept  int64 // by spec.prefetch
		ahead []string
	}{
		"no limit":               {ahead: []string{"a", "a", "a", "a"}},
		"a limit of 0":           {limit: "0", ahead: []string{"a", "", "", ""}},
		"a limit for two":        {limit: "60Gi", ahead: []string{"a", "a", "", ""}},
		"one byte less":          {limit: "64424509439", ahead: []string{"a", "", "", ""}},
		"spec.prefetch counts":   {limit: "60Gi", kept: 10 * gib, ahead: []string{"a", "", "", ""}},
		"spec.prefetch takes it": {limit: "60Gi", kept: 60 * gib, ahead: []string{"a", "", "", ""}},
	} {
		rules := Rules{}
		if c.limit != "" {
			rules = rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: ptr.To(resource.MustParse(c.limit))})
		}
		all := []v1alpha1.ModelReplica{full, replica("kept", gib, keeps("b"), carries("kept", c.kept))}
		for i := range c.ahead {
			all = append(all, replica(fmt.Sprint("old", i), 10*gib, on("a"), of(fmt.Sprint("d", i)), revised("old"), carries("tiny", 1), ready))
		}
		one := NewSnapshot(macs, all, now).Under(rules)
		for i, want := range c.ahead {
			r, again := next(i), next(i)
			d := NewSnapshot(macs, all, now).Under(rules).Pick(&r)
			if got := d.FetchesOn(&r); got != want || d.Reason != v1alpha1.ReasonPrefetching || len(d.Victims) > 0 || (got == "") != strings.Contains(d.Message, "prefetchLimit") {
				t.Errorf("%s: swap %d prefetches on %q, want %q: %s: %s", name, i, got, want, d.Reason, d.Message)
			}
			r.Spec.PrefetchNodeName = want
			all = append(all, r)
			if got := one.Pick(&again).FetchesOn(&again); got != want {
				t.Errorf("%s: in one pass swap %d prefetches on %q, want %q", name, i, got, want)
			}
			one.FetchAhead(&again, want)
		}
		s := NewSnapshot(macs, all, now).Under(rules)
		if d := s.Pick(&all[len(c.ahead)+2]); d.Prefetch != "a" {
			t.Errorf("%s: the first swap does not continue: %s: %s", name, d.Reason, d.Message)
		}
		standing := replica("standing", gib, keeps(""), carries("s", 30*gib))
		if d := s.PickPrefetch(&standing); (d.Prefetch == "") != (c.limit != "") {
			t.Errorf("%s: spec.prefetch on %q: %s", name, d.Prefetch, d.Message)
		}
	}
}
