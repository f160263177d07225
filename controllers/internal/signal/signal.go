// Package signal holds the operator's own metrics.
//
// It owns their names and the closed sets of their labels. The only label that
// names an object names a Mac; replicas and namespaces are in the objects' status.
//
// Start reading at New.
package signal

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Metrics of the operator.
type Metrics struct {
	reclaims *prometheus.CounterVec
	freed    *prometheus.CounterVec
	scaled   *prometheus.CounterVec
	// of the authority that signs certificates
	stage       *prometheus.GaugeVec
	expires     prometheus.Gauge
	unconfirmed prometheus.Gauge
}

// New creates and registers the metrics. reader serves each scrape from the cache.
func New(registry prometheus.Registerer, reader client.Reader) (*Metrics, error) {
	m := &Metrics{
		reclaims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_operator_reclaims_total",
			Help: "Number of engines that ended, as reported by the Macs.",
		}, []string{"reason", "host_check"}),
		freed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_operator_freed_bytes_total",
			Help: "Memory in bytes that the Macs measured as freed.",
		}, []string{"reason"}),
		scaled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_operator_scaled_total",
			Help: "Number of times that the autoscaler changed the number of replicas of a deployment, by reason.",
		}, []string{"reason"}),
		stage: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "metalfleet_operator_authority_stage",
			Help: "1 for the current stage of the rotation of the authority, 0 for the others.",
		}, []string{"stage"}),
		expires: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metalfleet_operator_authority_expires_timestamp_seconds",
			Help: "Expiry time of the root that signs certificates, in seconds since 1970.",
		}),
		unconfirmed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "metalfleet_operator_authority_unconfirmed_macs",
			Help: "Number of live Macs that have not confirmed that they trust the next root.",
		}),
	}
	for _, c := range []prometheus.Collector{m.reclaims, m.freed, m.scaled, m.stage, m.expires, m.unconfirmed, replicas{reader}, conditions{reader}} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metric: %w", err)
		}
	}
	for _, r := range reasons {
		m.freed.WithLabelValues(string(r)) // series start at 0: increase() ignores the first value of a series
	}
	return m, nil
}

// Demand starts the series of scaling reasons at 0, and registers the number of gateways
// that report.
func (m *Metrics) Demand(registry prometheus.Registerer, gateways func() int, whys ...string) error {
	for _, r := range whys {
		m.scaled.WithLabelValues(r)
	}
	g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "metalfleet_operator_demand_gateways",
		Help: "Number of gateways that report their demand to this operator, if it is the leader.",
	}, func() float64 { return float64(gateways()) })
	if err := registry.Register(g); err != nil {
		return fmt.Errorf("register metric: %w", err)
	}
	return nil
}

// Scaled counts a change by the autoscaler.
func (m *Metrics) Scaled(reason string) { m.scaled.WithLabelValues(reason).Inc() }

// reasons are all reclaim reasons.
var reasons = []v1alpha1.ReclaimReason{
	v1alpha1.ReclaimDrained, v1alpha1.ReclaimCrashed, v1alpha1.ReclaimLoadFailed, v1alpha1.ReclaimReplaced, v1alpha1.ReclaimUnassigned,
	v1alpha1.ReclaimIdle, v1alpha1.ReclaimMadeRoom, v1alpha1.ReclaimHeadroom, v1alpha1.ReclaimSoftPressure, v1alpha1.ReclaimHardPressure,
	v1alpha1.ReclaimEmergency, v1alpha1.ReclaimOverLimit, v1alpha1.ReclaimLoadCancelled,
}

// Reclaimed counts a reclaim.
func (m *Metrics) Reclaimed(r *v1alpha1.Reclaim) {
	m.reclaims.WithLabelValues(string(r.Reason), string(r.HostCheck)).Inc()
	if r.FreedBytes != nil {
		m.freed.WithLabelValues(string(r.Reason)).Add(float64(*r.FreedBytes))
	}
}

// Authority sets the stage of the authority's rotation. Only the leader has these series.
func (m *Metrics) Authority(stage string, all []string, expires time.Time, unconfirmed int) {
	for _, s := range all {
		m.stage.WithLabelValues(s).Set(0)
	}
	m.stage.WithLabelValues(stage).Set(1)
	m.expires.Set(float64(expires.Unix()))
	m.unconfirmed.Set(float64(unconfirmed))
}

// replicas counts replicas by state at each scrape.
type replicas struct{ reader client.Reader }

var replicasDesc = prometheus.NewDesc("metalfleet_operator_replicas",
	"Number of replicas by state: unplaced, starting, ready, silent, draining, prefetch.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (replicas) Describe(out chan<- *prometheus.Desc) { out <- replicasDesc }

// Collect implements prometheus.Collector. A cache that is not synced gives no figures
// rather than zeros.
func (r replicas) Collect(out chan<- prometheus.Metric) {
	var list v1alpha1.ModelReplicaList
	if err := r.reader.List(context.Background(), &list, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return
	}
	count := map[string]int{"unplaced": 0, "starting": 0, "ready": 0, "silent": 0, "draining": 0, "prefetch": 0}
	for i := range list.Items {
		count[stateOf(&list.Items[i])]++
	}
	for state, n := range count {
		out <- prometheus.MustNewConstMetric(replicasDesc, prometheus.GaugeValue, float64(n), state)
	}
}

func stateOf(r *v1alpha1.ModelReplica) string {
	ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case !r.DeletionTimestamp.IsZero():
		return "draining"
	case fleet.Prefetches(r):
		return "prefetch"
	case r.Spec.NodeName == "":
		return "unplaced"
	case fleet.ReplicaReady(r):
		return "ready"
	case ready != nil && (ready.Reason == v1alpha1.ReasonMacSilent || ready.Reason == v1alpha1.ReasonMacGone):
		return "silent"
	default:
		return "starting"
	}
}
