package route

import (
	"net"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// DeploymentOf reads what the table needs.
func DeploymentOf(d *v1alpha1.ModelDeployment) Deployment {
	out := Deployment{
		Key:     Key{d.Namespace, d.Name},
		UID:     string(d.UID),
		Created: d.CreationTimestamp.Unix(),
		Names:   strings.Join(d.Status.ServedNames, "\n"),
		Routing: routingOf(d.Spec.Routing),
	}
	if a := d.Status.Autoscaling; a != nil {
		out.Start = time.Duration(a.StartSeconds) * time.Second
	}
	return out
}

// patience is how long a request waits for a deployment that has a fallback,
// where its routing does not say.
const patience = 5 * time.Second

func routingOf(r v1alpha1.RoutingSpec) *Routing {
	if len(r.Split)+len(r.Fallbacks) == 0 {
		return nil
	}
	out := &Routing{Sticky: string(r.Sticky), Fallbacks: r.Fallbacks, Patience: patience}
	if r.FallbackSeconds != nil {
		out.Patience = time.Duration(*r.FallbackSeconds) * time.Second
	}
	for _, s := range r.Split {
		out.Split = append(out.Split, Share{s.Deployment, int(s.Percent)})
	}
	return out
}

// ReplicaOf reads what the table needs. A replica that is going, or was told
// to drain, is not ready, whatever its condition still says.
func ReplicaOf(r *v1alpha1.ModelReplica) Replica {
	return Replica{
		UID:           string(r.UID),
		Epoch:         r.Spec.Epoch,
		Deployment:    Key{r.Namespace, r.Spec.DeploymentRef.Name},
		DeploymentUID: r.Spec.DeploymentRef.UID,
		Mac:           r.Spec.NodeName,
		Ready: r.DeletionTimestamp.IsZero() && r.Spec.Desired == v1alpha1.DesiredRunning &&
			meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady),
		Cold:      saysNo(r.Status.Conditions, v1alpha1.ConditionLoaded),
		Retiring:  r.Annotations[v1alpha1.AnnotationRetiring] != "",
		Sequences: r.Spec.Context.Sequences,
	}
}

// MacOf reads what the table needs. Only a Mac that is known to be away or
// known to shut down is closed: the replica's own condition covers the rest.
func MacOf(m *v1alpha1.MacNode) Mac {
	out := Mac{Name: m.Name, Open: m.DeletionTimestamp.IsZero() && !saysNo(m.Status.Conditions, v1alpha1.ConditionReady) &&
		!saysNo(m.Status.Conditions, v1alpha1.ConditionAccepting)}
	if a := m.Status.Address; a != nil {
		out.Address, out.Reach = net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))), a.Reach
	}
	return out
}

func saysNo(conditions []metav1.Condition, kind string) bool {
	return meta.IsStatusConditionFalse(conditions, kind)
}
