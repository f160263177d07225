package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// watch registers the gauges. Each scrape reads one snapshot, so that its figures
// are consistent; desired provides the names of the replicas.
func (m *metrics) watch(snapshot func() *pool.Snapshot, desired func() *journal.Desired) {
	m.registry.MustRegister(&gauges{
		snapshot: snapshot, desired: desired,
		memory: prometheus.NewDesc("metalfleet_agent_memory_bytes",
			"Memory of this Mac. Reserved is an estimate; ceilings and capacity are limits; all other terms are measured.", []string{"term"}, nil),
		pressure: prometheus.NewDesc("metalfleet_agent_memory_pressure_level",
			"Memory pressure level that the agent acts on: 0 Normal, 1 Soft, 2 Hard, 3 Emergency.", nil, nil),
		condition: prometheus.NewDesc("metalfleet_agent_condition",
			"1 while a condition of this Mac is true, 0 while it is false; absent while it is unknown.", []string{"condition"}, nil),
		replica: prometheus.NewDesc("metalfleet_agent_replica_memory_bytes",
			"Memory of one replica's engine. Reserved is an estimate, limit an upper bound; footprint is the kernel's figure, all other terms are the engine's own.",
			[]string{"namespace", "replica", "term"}, nil),
		guard: prometheus.NewDesc("metalfleet_agent_guard_events_total",
			"Actions of the prefill guard of one replica's engine since that engine started.", []string{"namespace", "replica", "event"}, nil),
		queries: prometheus.NewDesc("metalfleet_agent_prefix_cache_queries_total",
			"Prompt tokens of one replica that were looked up in its in-memory prefix cache, counted as in vllm:prefix_cache_queries.", []string{"namespace", "replica"}, nil),
		hits: prometheus.NewDesc("metalfleet_agent_prefix_cache_hits_total",
			"Prompt tokens of one replica that were found in its prefix cache and not computed, counted as in vllm:prefix_cache_hits.", []string{"namespace", "replica"}, nil),
		cached: prometheus.NewDesc("metalfleet_agent_prefix_cache_bytes",
			"Memory of one replica's prefix cache: held is the engine's figure, budget an upper bound. Absent while the replica has no prefix cache.", []string{"namespace", "replica", "term"}, nil),
	})
}

// gauges reads the newest snapshot when it is scraped.
type gauges struct {
	snapshot func() *pool.Snapshot
	desired  func() *journal.Desired

	memory, pressure, condition, replica, guard, queries, hits, cached *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.memory, g.pressure, g.condition, g.replica, g.guard, g.queries, g.hits, g.cached} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	s := g.snapshot()
	for term, bytes := range terms(&s.Memory) {
		out <- prometheus.MustNewConstMetric(g.memory, prometheus.GaugeValue, float64(bytes), term)
	}
	if level, known := levelOf(s.Memory.PressureLevel); known {
		out <- prometheus.MustNewConstMetric(g.pressure, prometheus.GaugeValue, level)
	}
	for _, c := range s.Conditions {
		switch c.Status {
		case metav1.ConditionTrue:
			out <- prometheus.MustNewConstMetric(g.condition, prometheus.GaugeValue, 1, c.Type)
		case metav1.ConditionFalse:
			out <- prometheus.MustNewConstMetric(g.condition, prometheus.GaugeValue, 0, c.Type)
		}
	}
	names := namesOf(g.desired())
	g.collectReplicas(s, names, out)
	g.collectGuards(s, names, out)
	g.collectRemembered(s, names, out)
}

func (g *gauges) collectReplicas(s *pool.Snapshot, names map[string]replicaName, out chan<- prometheus.Metric) {
	for i := range s.Assignments {
		a := &s.Assignments[i]
		n, known := names[a.ReplicaUID]
		if !known {
			continue // it is being removed and has no name any more
		}
		for term, bytes := range replicaTerms(&a.Memory) {
			out <- prometheus.MustNewConstMetric(g.replica, prometheus.GaugeValue, float64(bytes), n.namespace, n.name, term)
		}
	}
}

func (g *gauges) collectGuards(s *pool.Snapshot, names map[string]replicaName, out chan<- prometheus.Metric) {
	reported := map[string]bool{} // a duplicate series would make the whole scrape fail
	for _, c := range s.Guards {
		n, known := names[c.UID]
		if !known || reported[c.UID] {
			continue
		}
		reported[c.UID] = true
		for event, count := range map[string]int64{
			"throttled_chunk": c.ThrottledChunks, "refused_request": c.RefusedRequests, "aborted_prefill": c.AbortedPrefills,
		} {
			out <- prometheus.MustNewConstMetric(g.guard, prometheus.CounterValue, float64(count), n.namespace, n.name, event)
		}
	}
}

func (g *gauges) collectRemembered(s *pool.Snapshot, names map[string]replicaName, out chan<- prometheus.Metric) {
	reported := map[string]bool{} // a duplicate series would make the whole scrape fail
	for _, r := range s.Remembered {
		n, known := names[r.UID]
		if !known || reported[r.UID] {
			continue
		}
		reported[r.UID] = true
		out <- prometheus.MustNewConstMetric(g.queries, prometheus.CounterValue, float64(r.QueriedTokens), n.namespace, n.name)
		out <- prometheus.MustNewConstMetric(g.hits, prometheus.CounterValue, float64(r.RestoredTokens), n.namespace, n.name)
		if r.Held {
			out <- prometheus.MustNewConstMetric(g.cached, prometheus.GaugeValue, float64(r.Bytes), n.namespace, n.name, "held")
			out <- prometheus.MustNewConstMetric(g.cached, prometheus.GaugeValue, float64(r.BudgetBytes), n.namespace, n.name, "budget")
		}
	}
}

// terms are the components of the Mac's ledger, in bytes.
func terms(m *v1alpha1.MacMemory) map[string]int64 {
	return map[string]int64{
		"total": m.TotalBytes, "ceiling": m.CeilingBytes, "dynamic_ceiling": m.DynamicCeilingBytes, "effective_ceiling": m.EffectiveCeilingBytes,
		"capacity": m.CapacityBytes, "reserved": m.ReservedBytes, "footprint": m.FootprintBytes, "active": m.ActiveBytes,
		"accounted": m.AccountedBytes, "pooled": m.PooledBytes, "foreign": m.ForeignBytes, "free": m.FreeBytes,
		"stranded": m.StrandedBytes, "swap": m.SwapUsedBytes,
	}
}

// replicaTerms are the components of an engine's memory, in bytes.
func replicaTerms(m *v1alpha1.EngineMemory) map[string]int64 {
	return map[string]int64{
		"footprint": m.FootprintBytes, "limit": m.LimitBytes, "reserved": m.ReservedBytes, "weights": m.WeightsBytes, "kv": m.KVInUseBytes,
		"active": m.ActiveBytes, "accounted": m.AccountedBytes, "pooled": m.PooledBytes,
	}
}

// levelOf returns a level as a number, so that an alert can compare; false for an
// unknown level.
func levelOf(l v1alpha1.PressureLevel) (float64, bool) {
	switch l {
	case v1alpha1.PressureNormal:
		return 0, true
	case v1alpha1.PressureSoft:
		return 1, true
	case v1alpha1.PressureHard:
		return 2, true
	case v1alpha1.PressureEmergency:
		return 3, true
	}
	return 0, false
}

// replicaName is the name of a replica.
type replicaName struct{ namespace, name string }

// namesOf maps the UIDs of the assigned replicas to their names; desired may be
// nil.
func namesOf(o *journal.Desired) map[string]replicaName {
	names := map[string]replicaName{}
	if o == nil {
		return names
	}
	for i := range o.Assignments {
		a := &o.Assignments[i]
		names[a.ReplicaUID] = replicaName{a.Namespace, a.Name}
	}
	return names
}
