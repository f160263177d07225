package dispatch

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of a wait, which are metric labels.
const (
	waitServed = "served"
	waitFull   = "full"  // refused: other keys use the whole queue
	waitShare  = "share" // refused or displaced: its key already has as large a share as any other
	waitLate   = "late"
	waitLeft   = "left" // the client disconnected, or the gateway is shutting down
	waitGone   = "gone" // the model was deleted
)

// Reasons to pass a request on to the next deployment, which are metric labels.
const (
	passedNone    = "none_ready" // there is no ready replica
	passedRefused = "refused"    // the replicas refused, or failed
	passedBusy    = "busy"       // they are busy, and the wait would be too long
)

type metrics struct {
	waits     *prometheus.CounterVec
	waited    prometheus.Histogram
	passed    *prometheus.CounterVec
	suspected prometheus.Counter
	ejected   prometheus.Counter
}

var waitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

func newMetrics(r prometheus.Registerer) *metrics {
	const prefix = "metalfleet_gateway_"
	m := &metrics{
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "waits_total",
			Help: "Waits for a replica that ended, by outcome: served, full, share, late, left, gone."}, []string{"outcome"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "wait_seconds",
			Help: "Time that queued requests waited for a replica.", Buckets: waitBuckets}),
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "fallbacks_total",
			Help: "Requests passed on to the next deployment of a route, by the reason why the previous one could not answer: none_ready, refused, busy."}, []string{"reason"}),
		suspected: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "macs_suspected_total",
			Help: "Times the gateway stopped preferring a Mac because its connection failed."}),
		ejected: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "replicas_ejected_total",
			Help: "Times the gateway stopped preferring a replica because its requests failed."}),
	}
	r.MustRegister(m.waits, m.waited, m.passed, m.suspected, m.ejected)
	// Series start at 0: rate() and increase() ignore the first value of a series.
	for _, outcome := range []string{waitServed, waitFull, waitShare, waitLate, waitLeft, waitGone} {
		m.waits.WithLabelValues(outcome)
	}
	for _, reason := range []string{passedNone, passedRefused, passedBusy} {
		m.passed.WithLabelValues(reason)
	}
	return m
}

// census counts requests by model when metrics are collected. Its labels are the
// deployments that this gateway received requests for. Autoscaling reads it; the first two
// metrics have vLLM's names, which other tools know.
type census struct{ queue *queue }

var (
	runningDesc = prometheus.NewDesc("vllm:num_requests_running", "Requests that this gateway has sent to replicas and that have not finished, by deployment.", []string{"model_name"}, nil)
	waitingDesc = prometheus.NewDesc("vllm:num_requests_waiting", "Requests that wait at this gateway for a replica, by deployment.", []string{"model_name"}, nil)
	oldestDesc  = prometheus.NewDesc("metalfleet_gateway_queue_oldest_seconds", "Waiting time of the request that has waited longest, by deployment.", []string{"model_name"}, nil)
)

// Describe implements prometheus.Collector.
func (census) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningDesc, waitingDesc, oldestDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c census) Collect(to chan<- prometheus.Metric) {
	for name, f := range c.queue.figures() {
		to <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(f.running), name)
		to <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(f.waiting), name)
		to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, f.oldest.Seconds(), name)
	}
}
