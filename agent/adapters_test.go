package agent

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/inspect"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// TestAnAdapterAnswersUnderItsName: one engine answers NAME and NAME:ADAPTER, each in its
// own way, also after the agent was started again.
func TestAnAdapterAnswersUnderItsName(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	c := tinymodel.Default()
	if err := tinymodel.WriteFolder(filepath.Join(m.root, "model"), c, tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	var adapters []v1alpha1.AdapterSpec
	for seed, name := range map[uint64]string{1: "one", 2: "two"} {
		if err := (tinymodel.Adapter{Seed: seed, Rank: 4, Alpha: 64}).Write(filepath.Join(m.root, name), c); err != nil {
			t.Fatal(err)
		}
		adapters = append(adapters, v1alpha1.AdapterSpec{Name: name, Source: "file://" + name})
	}
	root, err := store.OpenRoot(m.root, filepath.Join(t.TempDir(), "notes"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if m.record, err = (&inspect.Resolver{Root: root}).Resolve(t.Context(), v1alpha1.Inspection{Source: "file://model", Adapters: adapters}); err != nil {
		t.Fatal(err)
	}
	m.giveIdentity()
	m.boot()
	a := m.assignment()
	a.ServedNames = []string{"tiny", "tiny:one", "default/tiny:one", "tiny:two", "default/tiny:two", "default/tiny"}
	m.orders.next <- ordersOf(1, a)
	pid := m.waitFor(v1alpha1.ConditionServing, "True/Serving").Assignments[0].PID
	answers := map[string]string{}
	for _, name := range a.ServedNames {
		answers[name] = m.content(t, name)
	}
	if answers["tiny"] != answers["default/tiny"] || answers["tiny:one"] != answers["default/tiny:one"] {
		t.Errorf("one model under two names: %q", answers)
	}
	if x, y, z := answers["tiny"], answers["tiny:one"], answers["tiny:two"]; x == y || y == z || x == z {
		t.Errorf("the model and its adapters answer alike: %q", answers)
	}
	m.halt()
	m.boot()
	m.orders.next <- ordersOf(1, a)
	if s := m.waitFor(v1alpha1.ConditionServing, "True/Serving"); s.Assignments[0].PID != pid {
		t.Errorf("process %d was replaced by %d", pid, s.Assignments[0].PID)
	}
	if got := m.content(t, "tiny:one"); got != answers["tiny:one"] {
		t.Errorf("the adopted engine answers %q, before %q", got, answers["tiny:one"])
	}
}

// content is what a model answers.
func (m *mac) content(t *testing.T, name string) string {
	t.Helper()
	var got struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if text := m.ask(t, name, nil); json.Unmarshal([]byte(text), &got) != nil || len(got.Choices) != 1 {
		t.Fatalf("%s answers %s", name, text)
	}
	return got.Choices[0].Message.Content
}

// NAMESPACE/NAME:ADAPTER is listed where NAMESPACE/NAME is.
func TestAdaptersAreListedUnderTheNamesOfTheirModel(t *testing.T) {
	for name, c := range map[string]struct{ names, want []string }{
		"a name of its own": {[]string{"m", "m:one", "ns/m:one", "ns/m"}, []string{"m", "m:one"}},
		"none":              {[]string{"ns/m:one", "ns/m"}, []string{"ns/m", "ns/m:one"}},
	} {
		var want []openai.Model
		for _, n := range c.want {
			want = append(want, openai.NewModel(n, unknownAge, "ns"))
		}
		got := listed([]pool.Endpoint{{Namespace: "ns", ServedNames: c.names}})
		if x, y := must(t, got), must(t, want); x != y {
			t.Errorf("%s: %s, want %s", name, x, y)
		}
	}
}

func must(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
