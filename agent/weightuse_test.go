package agent

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

func TestWhatWeightsAreSpared(t *testing.T) {
	order := func(digest string, desired v1alpha1.DesiredState) v1alpha1.Assignment {
		return v1alpha1.Assignment{Model: model.Record{Digest: digest}, Desired: desired}
	}
	orders := &journal.Desired{
		Assignments:   []v1alpha1.Assignment{order("runs", v1alpha1.DesiredRunning), order("drains", v1alpha1.DesiredDrained)},
		PinnedWeights: []string{"pinned"},
	}
	engines := []journal.Engine{{Config: wire.Config{ModelDigest: "left behind", ModelPath: "/x"}}}
	keep, known := spared(journal.State{Desired: orders, Engines: engines})
	if !known {
		t.Fatal("it is not known what is wanted, although all orders were read")
	}
	for digest, want := range map[string]bool{"runs": true, "drains": true, "pinned": true, "left behind": true, "unknown": false, "": false} {
		if keep(digest) != want {
			t.Errorf("%q is spared: %v", digest, !want)
		}
	}
	if _, known := spared(journal.State{Engines: engines}); known {
		t.Error("without orders it is known what is wanted")
	}
	orders.Invalid = []journal.InvalidAssignment{{ReplicaUID: "u"}}
	if _, known := spared(journal.State{Desired: orders}); known {
		t.Error("an order that cannot be read wants nothing")
	}
}

func TestWhatIsOnlyFetchedIsAhead(t *testing.T) {
	order := func(digest string, desired v1alpha1.DesiredState) v1alpha1.Assignment {
		return v1alpha1.Assignment{Model: model.Record{Digest: digest}, Desired: desired}
	}
	s := journal.State{Desired: &journal.Desired{Assignments: []v1alpha1.Assignment{
		order("ahead", v1alpha1.DesiredDownloaded), order("drains too", v1alpha1.DesiredDrained), order("drains too", v1alpha1.DesiredDownloaded),
		order("runs", v1alpha1.DesiredRunning), order("both", v1alpha1.DesiredDownloaded), order("both", v1alpha1.DesiredRunning), order("drains", v1alpha1.DesiredDrained),
	}}}
	for digest, want := range map[string]bool{"ahead": true, "drains too": true, "runs": false, "both": false, "drains": false, "unknown": false} {
		if ahead(s, digest) != want {
			t.Errorf("%q is ahead: %v", digest, !want)
		}
	}
	if ahead(journal.State{}, "ahead") {
		t.Error("without orders something is ahead")
	}
}

func TestCollectedWeightsAreCounted(t *testing.T) {
	m := newMetrics()
	m.collect(v1alpha1.Collection{Bytes: 40, Reason: v1alpha1.CollectedForMark})
	m.collect(v1alpha1.Collection{Bytes: 2, Reason: v1alpha1.CollectedForMark})
	m.fetch("hf", 3)
	m.fetch("hf", 4)
	wantLines(t, scrape(t, m), `metalfleet_agent_weights_collected_bytes_total{reason="HighMark"} 42`, `metalfleet_agent_weights_collected_total{reason="HighMark"} 2`,
		`metalfleet_agent_weights_fetched_bytes_total{source="hf"} 7`)
}

// TestDownloadsAreThoseOfThePool: with the credential that each part is downloaded with.
func TestDownloadsAreThoseOfThePool(t *testing.T) {
	order := func(desired v1alpha1.DesiredState) v1alpha1.Assignment {
		return v1alpha1.Assignment{Desired: desired, TokenRef: "ref", Model: model.Record{Digest: "model", Source: "hf://org/model", Adapters: []model.Adapter{
			{Digest: "same hub", Source: "hf://org/adapter"}, {Digest: "elsewhere", Source: "s3://bucket/adapter"}}}}
	}
	got := map[string]string{}
	for _, w := range downloadsOf(journal.Desired{Assignments: []v1alpha1.Assignment{order(v1alpha1.DesiredDownloaded)}}) {
		got[w.Record.Digest] = w.TokenRef
	}
	if want := map[string]string{"model": "ref", "same hub": "ref", "elsewhere": ""}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all := downloadsOf(journal.Desired{Assignments: []v1alpha1.Assignment{order(v1alpha1.DesiredDrained)}}); len(all) > 0 {
		t.Errorf("what is drained is downloaded: %v", all)
	}
}

// TestLooksAtAssignmentsCopyNone: each of many downloads that wait for peers looks every two
// seconds, and a status looks several times.
func TestLooksAtAssignmentsCopyNone(t *testing.T) {
	j, err := journal.Open(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	orders := &journal.Desired{}
	for i := range 100 {
		rec := model.Record{Digest: fmt.Sprint(i), Source: "https://host/model"}
		for range 16 {
			rec.Files = append(rec.Files, model.File{Path: "model.safetensors", SHA256: rec.Digest})
		}
		orders.Assignments = append(orders.Assignments, v1alpha1.Assignment{Model: rec})
	}
	if err := j.Update(func(s *journal.State) { s.Desired = orders }); err != nil {
		t.Fatal(err)
	}
	use, last := weightUse{j}, orders.Assignments[99].Model
	for what, look := range map[string]func(){
		"peers": func() { use.peers(last, "") }, "namespaces": func() { use.namespaces(last, "") },
		"ahead": func() { use.ahead(last.Digest) }, "spared": func() { use.spared() },
	} {
		if n := testing.AllocsPerRun(1, look); n > 3*100 {
			t.Errorf("%s: %v allocations for 100 assignments", what, n)
		}
	}
}
