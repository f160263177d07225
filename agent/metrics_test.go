package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// scrape reads what a scraper reads.
func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	s := httptest.NewServer(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s (%v): %s", r.Status, err, b)
	}
	return string(b)
}

// wantLines checks whole lines of a scrape.
func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+text, "\n"+l+"\n") {
			t.Errorf("the scrape lacks %q", l)
		}
	}
}

func noOrders() *journal.Desired { return nil }

func TestFreedBytesAreCountedByReason(t *testing.T) {
	m := newMetrics()
	m.watch(func() *pool.Snapshot { return &pool.Snapshot{} }, noOrders)
	freed := int64(100)
	m.reclaimed(v1alpha1.Reclaim{Reason: v1alpha1.ReclaimMadeRoom, HostCheck: v1alpha1.HostCheckVerified, FreedBytes: &freed})
	m.reclaimed(v1alpha1.Reclaim{Reason: v1alpha1.ReclaimMadeRoom, HostCheck: v1alpha1.HostCheckIndeterminate})
	wantLines(t, scrape(t, m),
		`metalfleet_agent_freed_bytes_total{reason="MadeRoom"} 100`,
		`metalfleet_agent_reclaims_total{host_check="Verified",reason="MadeRoom"} 1`,
		`metalfleet_agent_reclaims_total{host_check="Indeterminate",reason="MadeRoom"} 1`)
}

func TestToolCallsReturnedAsTextAreCounted(t *testing.T) {
	m := newMetrics()
	m.watch(func() *pool.Snapshot { return &pool.Snapshot{} }, noOrders)
	wantLines(t, scrape(t, m), "metalfleet_agent_tool_calls_text_total 0")
	m.textCall(3)
	wantLines(t, scrape(t, m), "metalfleet_agent_tool_calls_text_total 3")
}

func TestMetricsExposeEveryLedgerTerm(t *testing.T) {
	m := newMetrics()
	memory := v1alpha1.MacMemory{
		TotalBytes: 1, CeilingBytes: 2, DynamicCeilingBytes: 3, EffectiveCeilingBytes: 4, CapacityBytes: 5, ReservedBytes: 6, FootprintBytes: 7,
		ActiveBytes: 8, AccountedBytes: 9, PooledBytes: 10, ForeignBytes: 11, FreeBytes: 12, StrandedBytes: 13, SwapUsedBytes: 14,
		PressureLevel: v1alpha1.PressureHard,
	}
	m.watch(func() *pool.Snapshot { return &pool.Snapshot{Memory: memory} }, noOrders)
	text := scrape(t, m)
	for i, term := range []string{"total", "ceiling", "dynamic_ceiling", "effective_ceiling", "capacity", "reserved", "footprint",
		"active", "accounted", "pooled", "foreign", "free", "stranded", "swap"} {
		wantLines(t, text, "metalfleet_agent_memory_bytes{term=\""+term+"\"} "+[]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"}[i])
	}
	wantLines(t, text, "metalfleet_agent_memory_pressure_level 2")
}

func TestAScrapeTellsAGuardThatCannotAct(t *testing.T) {
	m := newMetrics()
	conditions := []metav1.Condition{
		{Type: v1alpha1.ConditionGuardInactive, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionMemoryPressure, Status: metav1.ConditionFalse},
		{Type: v1alpha1.ConditionWiredStranded, Status: metav1.ConditionUnknown},
	}
	m.watch(func() *pool.Snapshot { return &pool.Snapshot{Conditions: conditions} }, noOrders)
	text := scrape(t, m)
	wantLines(t, text, `metalfleet_agent_condition{condition="GuardInactive"} 1`, `metalfleet_agent_condition{condition="MemoryPressure"} 0`)
	if strings.Contains(text, `condition="WiredStranded"`) {
		t.Error("an unknown value has a figure")
	}
	if strings.Contains(text, "\nmetalfleet_agent_memory_pressure_level ") {
		t.Error("an unknown level has a number")
	}
}

func TestEachReplicasMemoryIsScrapedByItsName(t *testing.T) {
	m := newMetrics()
	snapshot := &pool.Snapshot{
		Assignments: []v1alpha1.AssignmentStatus{
			{ReplicaUID: "u", Memory: v1alpha1.EngineMemory{FootprintBytes: 1, LimitBytes: 2, ReservedBytes: 3, WeightsBytes: 4, KVInUseBytes: 5, ActiveBytes: 6, AccountedBytes: 7, PooledBytes: 8}},
			{ReplicaUID: "unassigned", Memory: v1alpha1.EngineMemory{FootprintBytes: 987654321}},
		},
		Guards: []pool.GuardCounters{{UID: "u", ThrottledChunks: 11, RefusedRequests: 12, AbortedPrefills: 13}, {UID: "unassigned", ThrottledChunks: 987654321},
			{UID: "u", ThrottledChunks: 987654321}}, // an engine of an older epoch that still ends
		Remembered: []pool.Remembered{{UID: "u", Held: true, Bytes: 21, BudgetBytes: 22, QueriedTokens: 23, RestoredTokens: 24},
			{UID: "unassigned", Held: true, Bytes: 987654321}, {UID: "u", QueriedTokens: 987654321}, {UID: "v", QueriedTokens: 25}},
	}
	orders := &journal.Desired{Assignments: []v1alpha1.Assignment{{ReplicaUID: "u", Namespace: "ns", Name: "chat-1"}, {ReplicaUID: "v", Namespace: "ns", Name: "chat-2"}}}
	m.watch(func() *pool.Snapshot { return snapshot }, func() *journal.Desired { return orders })
	text := scrape(t, m)
	for term, want := range map[string]string{"footprint": "1", "limit": "2", "reserved": "3", "weights": "4", "kv": "5", "active": "6", "accounted": "7", "pooled": "8"} {
		wantLines(t, text, `metalfleet_agent_replica_memory_bytes{namespace="ns",replica="chat-1",term="`+term+`"} `+want)
	}
	for event, want := range map[string]string{"throttled_chunk": "11", "refused_request": "12", "aborted_prefill": "13"} {
		wantLines(t, text, `metalfleet_agent_guard_events_total{event="`+event+`",namespace="ns",replica="chat-1"} `+want)
	}
	of := `{namespace="ns",replica="chat-1"`
	wantLines(t, text, "metalfleet_agent_prefix_cache_queries_total"+of+"} 23", "metalfleet_agent_prefix_cache_hits_total"+of+"} 24",
		"metalfleet_agent_prefix_cache_bytes"+of+`,term="held"} 21`, "metalfleet_agent_prefix_cache_bytes"+of+`,term="budget"} 22`,
		`metalfleet_agent_prefix_cache_queries_total{namespace="ns",replica="chat-2"} 25`)
	if strings.Contains(text, `prefix_cache_bytes{namespace="ns",replica="chat-2"`) {
		t.Error("a cache that no engine has was scraped")
	}
	if strings.Contains(text, " 9.87654321e+08\n") { // no figure of the process, such as its open files, is that
		t.Error("a replica without a name was scraped")
	}
}
