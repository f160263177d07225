package signal

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var (
	macConditionDesc = prometheus.NewDesc("metalfleet_operator_mac_condition",
		"1 if the condition of a Mac is True, else 0. A Mac whose agent has not joined yet has no Ready, and one to which no gateway tried to connect no Reachable.", []string{"mac", "condition"}, nil)
	problemsDesc = prometheus.NewDesc("metalfleet_operator_problems",
		"Number of objects that a person has to look at, by kind and reason.", []string{"kind", "reason"}, nil)
)

// macConditions are the conditions of a Mac that are exported.
var macConditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReachable, v1alpha1.ConditionMemoryPressure, v1alpha1.ConditionWiredStranded,
	v1alpha1.ConditionMemoryDiverged, v1alpha1.ConditionGuardInactive, v1alpha1.ConditionIdentityClash,
	v1alpha1.ConditionWritesSuspended,
}

// problem is a reason of a condition that is not True and counts an object. The list is
// closed, because Macs choose the reasons that they report.
type problem struct{ kind, condition, reason string }

const (
	kindMac        = "MacNode"
	kindReplica    = "ModelReplica"
	kindDeployment = "ModelDeployment"
)

var problems = []problem{
	{kindMac, v1alpha1.ConditionAgentCurrent, v1alpha1.ReasonAgentRolledBack},
	{kindMac, v1alpha1.ConditionAgentCurrent, v1alpha1.ReasonAgentRefused},
	{kindReplica, v1alpha1.ConditionDownloaded, v1alpha1.ReasonDiskFull},
	{kindReplica, v1alpha1.ConditionDownloaded, v1alpha1.ReasonDownloadFailed},
	{kindReplica, v1alpha1.ConditionLoaded, v1alpha1.ReasonLoadFailed},
	{kindReplica, v1alpha1.ConditionLoaded, v1alpha1.ReasonBackOff},
	{kindReplica, v1alpha1.ConditionServing, v1alpha1.ReasonCanaryFailed},
	{kindDeployment, v1alpha1.ConditionProgressing, v1alpha1.ReasonHalted},
}

// conditions exports the conditions of Macs, and counts the objects with a problem, at each
// scrape, which waits for no writes. Macs are few and named by an administrator, so that each has its own series;
// replicas and deployments, which tenants create, are only counted.
type conditions struct{ reader client.Reader }

// Describe implements prometheus.Collector.
func (conditions) Describe(out chan<- *prometheus.Desc) {
	out <- macConditionDesc
	out <- problemsDesc
}

// Collect implements prometheus.Collector. Kinds that the cache cannot list yet
// have no series.
func (c conditions) Collect(out chan<- prometheus.Metric) {
	var macs v1alpha1.MacNodeList
	if c.reader.List(context.Background(), &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency) == nil {
		count := counted(kindMac)
		for i := range macs.Items {
			collectMac(&macs.Items[i], out)
			count.add(macs.Items[i].Status.Conditions)
		}
		count.collect(out)
	}
	var replicas v1alpha1.ModelReplicaList
	if c.reader.List(context.Background(), &replicas, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency) == nil {
		count := counted(kindReplica)
		for i := range replicas.Items {
			count.add(replicas.Items[i].Status.Conditions)
		}
		count.collect(out)
	}
	var deployments v1alpha1.ModelDeploymentList
	if c.reader.List(context.Background(), &deployments, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency) == nil {
		count := counted(kindDeployment)
		for i := range deployments.Items {
			count.add(deployments.Items[i].Status.Conditions)
		}
		count.collect(out)
	}
}

func collectMac(mac *v1alpha1.MacNode, out chan<- prometheus.Metric) {
	for _, kind := range macConditions {
		c := meta.FindStatusCondition(mac.Status.Conditions, kind)
		if kind == v1alpha1.ConditionReady && (c == nil || c.Reason == v1alpha1.ReasonNeverReported) || kind == v1alpha1.ConditionReachable && c == nil {
			continue
		}
		var value float64
		if c != nil && c.Status == metav1.ConditionTrue {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(macConditionDesc, prometheus.GaugeValue, value, mac.Name, kind)
	}
}

// count is the number of objects of one kind, by problem; it contains all problems of the
// kind.
type count map[problem]int

func counted(kind string) count {
	n := count{}
	for _, p := range problems {
		if p.kind == kind {
			n[p] = 0
		}
	}
	return n
}

func (n count) add(conditions []metav1.Condition) {
	for p := range n {
		c := meta.FindStatusCondition(conditions, p.condition)
		if c != nil && c.Status != metav1.ConditionTrue && c.Reason == p.reason {
			n[p]++
		}
	}
}

func (n count) collect(out chan<- prometheus.Metric) {
	for p, objects := range n {
		out <- prometheus.MustNewConstMetric(problemsDesc, prometheus.GaugeValue, float64(objects), p.kind, p.reason)
	}
}
