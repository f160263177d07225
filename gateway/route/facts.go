package route

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// DeploymentOf extracts what the table needs.
func DeploymentOf(d *v1alpha1.ModelDeployment) Deployment {
	out := Deployment{
		Key:       Key{d.Namespace, d.Name},
		UID:       string(d.UID),
		Created:   d.CreationTimestamp.Unix(),
		Names:     strings.Join(d.Status.ServedNames, "\n"),
		Adapters:  strings.Join(d.Status.Adapters, "\n"),
		Routing:   routingOf(d.Spec.Routing),
		Context:   d.Spec.Context.MaxTokens,
		Suspended: d.Spec.Suspend,
	}
	if c := d.Status.Context; c != nil { // with the settings of a profile
		out.Context = c.MaxTokens
	}
	if a := d.Status.Autoscaling; a != nil {
		out.Start = time.Duration(a.StartSeconds) * time.Second
	}
	return out
}

// patience is the default of Routing.Patience for a deployment with fallbacks.
const patience = 5 * time.Second

func routingOf(r v1alpha1.RoutingSpec) *Routing {
	if len(r.Split)+len(r.Fallbacks) == 0 {
		return nil
	}
	out := &Routing{SessionAffinity: string(r.SessionAffinity), Fallbacks: r.Fallbacks, Patience: patience}
	if r.FallbackSeconds != nil {
		out.Patience = time.Duration(*r.FallbackSeconds) * time.Second
	}
	for _, s := range r.Split {
		out.Split = append(out.Split, Share{s.Deployment, int(s.Percent)})
	}
	return out
}

// ReplicaOf extracts what the table needs. A replica that is being deleted or drained is
// not ready, regardless of its condition.
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
		Sequences: r.Spec.Context.MaxConcurrentRequests,
		Adapters:  adaptersOf(r.Spec.Model),
		Facts: Facts{
			Context: r.Spec.Context.MaxTokens, Trained: r.Spec.Model.Facts.ContextTokens, Task: taskOf(r.Spec.Model),
			Digest: r.Spec.Model.Digest, Bytes: r.Spec.Model.Facts.WeightBytes, Format: string(r.Spec.Model.Format),
			Architecture: r.Spec.Model.Facts.Architecture, Quantization: r.Spec.Model.Facts.Quantization,
			Sees: r.Spec.Model.Facts.Sees(), Tools: slices.Contains(v1alpha1.FeaturesOf(r.Spec.Model, r.Spec.ChatTemplate), v1alpha1.FeatureTools),
		},
	}
}

// adaptersOf returns the names of a model's adapters, joined by newlines.
func adaptersOf(r model.Record) string {
	names := make([]string, 0, len(r.Adapters))
	for _, a := range r.Adapters {
		names = append(names, a.Name)
	}
	return strings.Join(names, "\n")
}

// taskOf returns the task from a model's record; it is unknown if there is none.
func taskOf(r model.Record) model.Task {
	if r.Digest == "" {
		return ""
	}
	return r.Facts.TaskOf()
}

// Facts describe a deployment's model. Zero values are unknown.
type Facts struct {
	// Context is the maximum length of a request in tokens; Trained is the maximum that the
	// model was trained for.
	Context, Trained int64
	Task             model.Task
	// Digest of the files, and Bytes of the loaded weights.
	Digest string
	Bytes  int64
	// Format, Architecture and Quantization as the model files name them.
	Format, Architecture, Quantization string
	// Sees: the model has image input. Tools: it calls tools.
	Sees, Tools bool
}

// factsOf returns the facts of a deployment: those of its replica with the lowest UID,
// preferring ready ones. The context is the shortest of all ready replicas, because any of
// them may serve the request. Without replicas only the spec is known.
func factsOf(d Deployment, replicas map[string]Replica) Facts {
	var best Replica
	found, context := false, int64(0)
	for _, r := range replicas {
		if r.DeploymentUID != d.UID {
			continue
		}
		if !found || r.Ready && !best.Ready || r.Ready == best.Ready && r.UID < best.UID {
			best, found = r, true
		}
		if n := r.Facts.Context; r.Ready && n > 0 && (context == 0 || n < context) {
			context = n
		}
	}
	f := best.Facts
	f.Context = cmp.Or(context, f.Context, d.Context)
	return f
}

// MacOf extracts what the table needs. Only a Mac that is known to be offline or shutting
// down is closed: the replica's own condition covers the rest.
func MacOf(m *v1alpha1.MacNode) Mac {
	out := Mac{Name: m.Name, UID: string(m.UID), Open: m.DeletionTimestamp.IsZero() && !saysNo(m.Status.Conditions, v1alpha1.ConditionReady) &&
		!saysNo(m.Status.Conditions, v1alpha1.ConditionAccepting)}
	if a := m.Status.Address; a != nil {
		out.Address, out.Reach = net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))), a.Reach
	}
	return out
}

func saysNo(conditions []metav1.Condition, kind string) bool {
	return meta.IsStatusConditionFalse(conditions, kind)
}
