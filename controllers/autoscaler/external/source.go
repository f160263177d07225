package external

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
)

// Metrics that are served, for each deployment.
const (
	// Requests that run and wait, at all gateways together.
	Requests = "metalfleet_requests"
	// QueueSeconds is how long the one waits that waits longest; 0 where none does.
	QueueSeconds = "metalfleet_queue_seconds"
)

// Names of all metrics.
func Names() []string { return []string{Requests, QueueSeconds} }

// lately is how long a request that ended still makes its deployment active: who
// looks twice a minute would else take short ones for silence.
const lately = time.Minute

// Source is where the figures of deployments come from, whoever asks for them.
type Source struct {
	// Client reads deployments.
	Client client.Reader
	// Figures are the sum for one deployment, and why they are not whole; empty
	// where they are.
	Figures func(ctx context.Context, of types.NamespacedName) (f demand.Figures, part string, err error)
	Now     func() time.Time
}

// Value is a metric of a deployment, of figures that are whole.
func (s *Source) Value(ctx context.Context, d *v1alpha1.ModelDeployment, metric string) (*resource.Quantity, error) {
	f, part, err := s.figures(ctx, d)
	if err != nil {
		return nil, err
	}
	if part != nil {
		return nil, part
	}
	if metric == QueueSeconds {
		return resource.NewMilliQuantity(f.Oldest.Milliseconds(), resource.DecimalSI), nil
	}
	return resource.NewQuantity(int64(f.Running+f.Waiting), resource.DecimalSI), nil
}

// Active says whether a deployment is wanted at all: a request runs, waits or did
// so lately. One that is known is enough for yes, for others could only add to it;
// no needs figures that are whole.
func (s *Source) Active(ctx context.Context, d *v1alpha1.ModelDeployment) (bool, error) {
	f, part, err := s.figures(ctx, d)
	if err != nil {
		return false, err
	}
	if f.Running+f.Waiting > 0 || !f.Asked.IsZero() && s.Now().Sub(f.Asked) < lately {
		return true, nil
	}
	return false, part
}

// figures are those of a deployment that others may scale; part is the error of
// figures that are not whole.
func (s *Source) figures(ctx context.Context, d *v1alpha1.ModelDeployment) (f demand.Figures, part, err error) {
	if d.Spec.Autoscaling != nil {
		return f, nil, apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("modeldeployments").GroupResource(), d.Name,
			fmt.Errorf("spec.autoscaling is set, and two autoscalers would conflict: remove spec.autoscaling, or the HPA or ScaledObject that uses this metric"))
	}
	f, why, err := s.Figures(ctx, types.NamespacedName{Namespace: d.Namespace, Name: d.Name})
	if err == nil && why != "" {
		part = apierrors.NewServiceUnavailable("the demand for " + d.Namespace + "/" + d.Name + " is incomplete and is not reported: " + why)
	}
	return f, part, err
}
