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

// Metrics that are served for each deployment.
const (
	// Requests that run or wait, over all gateways.
	Requests = "metalfleet_requests"
	// QueueSeconds is the longest current wait; 0 if no request waits.
	QueueSeconds = "metalfleet_queue_seconds"
)

// Names of all metrics.
func Names() []string { return []string{Requests, QueueSeconds} }

// lately is how long a deployment stays active after a request has ended: a client that
// polls twice a minute would otherwise miss short ones.
const lately = time.Minute

// Source provides the figures of deployments.
type Source struct {
	// Client reads deployments.
	Client client.Reader
	// Figures returns the sum for one deployment, and why it is incomplete; empty if it is
	// complete.
	Figures func(ctx context.Context, of types.NamespacedName) (f demand.Figures, part string, err error)
	Now     func() time.Time
}

// Value returns a metric of a deployment, if the figures are complete.
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

// Active reports whether a deployment is in use: a request runs, waits or did so recently.
// Incomplete figures are enough for true, because missing ones could only add to it; false
// needs complete ones.
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

// figures returns those of a deployment that others may scale; part is the error of
// incomplete figures.
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
