// Package keda serves the load of each deployment to KEDA, with KEDA's protocol for
// external scalers (package externalscaler), so that a ScaledObject scales a
// ModelDeployment by its scale subresource. In a cluster with KEDA, KEDA is the only server
// of external metrics: KEDA's HPA asks KEDA, and KEDA asks this package.
//
// It owns the protocol, the metadata of a trigger, and the client certificate by which only
// KEDA is accepted. The figures, and who is refused them, are those of package external. It
// decides nothing.
//
// The namespace of a deployment is that of the ScaledObject, as KEDA reports it: no
// ScaledObject can read or scale by the load of another namespace.
//
// Start reading at Scaler; trigger.go has the metadata, pass.go the client certificate,
// server.go the port.
package keda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
)

const (
	// look is the interval at which a stream checks whether a deployment is active.
	look = time.Second
	// repeat is how often a stream repeats that it still is: KEDA counts its cooldown from
	// the last such message, and misses those sent while it prepares a ScaledObject.
	repeat = 10 * time.Second
	// life of a stream. After a broken stream KEDA waits increasingly long, up to a minute,
	// before it reconnects. After one that ends regularly it reconnects within two seconds.
	life = 5 * time.Minute
)

// Scaler implements KEDA's service.
type Scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	Source *external.Source
	Clock  clock.WithTicker
}

// GetMetricSpec returns the metric of a trigger, and its target per replica.
func (s *Scaler) GetMetricSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	t, d, err := s.of(ctx, ref)
	if err != nil {
		return nil, refusal(err)
	}
	target, err := t.targetOf(d)
	if err != nil {
		return nil, refusal(err)
	}
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{
		{MetricName: t.metric, TargetSize: int64(math.Ceil(target)), TargetSizeFloat: target},
	}}, nil
}

// GetMetrics returns the current figure if it is complete.
func (s *Scaler) GetMetrics(ctx context.Context, r *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	t, d, err := s.of(ctx, r.GetScaledObjectRef())
	if err != nil {
		return nil, refusal(err)
	}
	if r.GetMetricName() != t.metric {
		return nil, status.Errorf(codes.InvalidArgument, "the request is for metric %q, but the trigger of ScaledObject %s/%s has metric %q", r.GetMetricName(), t.of.Namespace, r.GetScaledObjectRef().GetName(), t.metric)
	}
	value, err := s.Source.Value(ctx, d, t.metric)
	if err != nil {
		return nil, refusal(err)
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{valueOf(t.metric, value)}}, nil
}

// valueOf returns a figure in both of KEDA's types; the integer is rounded up, as an HPA
// does.
func valueOf(metric string, q *resource.Quantity) *externalscaler.MetricValue {
	return &externalscaler.MetricValue{MetricName: metric, MetricValue: q.Value(), MetricValueFloat: q.AsApproximateFloat64()}
}

// IsActive reports whether a deployment needs a replica at all.
func (s *Scaler) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	active, err := s.active(ctx, ref)
	if err != nil {
		return nil, refusal(err)
	}
	return &externalscaler.IsActiveResponse{Result: active}, nil
}

// StreamIsActive sends the same at once, on changes, and regularly while it is true. It
// sends nothing while figures are incomplete: KEDA keeps the previous state.
func (s *Scaler) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	ctx, began := stream.Context(), s.Clock.Now()
	tick := s.Clock.NewTicker(look)
	defer tick.Stop()
	var told *bool
	var at time.Time
	for s.Clock.Since(began) < life {
		active, err := s.active(ctx, ref)
		switch now := s.Clock.Now(); {
		case apierrors.IsServiceUnavailable(err):
		case err != nil:
			return refusal(err)
		case told == nil || *told != active || active && now.Sub(at) >= repeat:
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: active}); err != nil {
				return err
			}
			told, at = &active, now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
	return nil
}

func (s *Scaler) active(ctx context.Context, ref *externalscaler.ScaledObjectRef) (bool, error) {
	_, d, err := s.of(ctx, ref)
	if err != nil {
		return false, err
	}
	return s.Source.Active(ctx, d)
}

// of returns the parsed trigger and its deployment.
func (s *Scaler) of(ctx context.Context, ref *externalscaler.ScaledObjectRef) (trigger, *v1alpha1.ModelDeployment, error) {
	t, err := parse(ref)
	if err != nil {
		return t, nil, err
	}
	d := &v1alpha1.ModelDeployment{}
	err = s.Source.Client.Get(ctx, t.of, d)
	if err == nil && !d.DeletionTimestamp.IsZero() {
		err = apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("modeldeployments").GroupResource(), t.of.Name)
	}
	if client.IgnoreNotFound(err) != nil {
		return t, nil, fmt.Errorf("read deployment %s: %w", t.of, err)
	}
	if err != nil {
		return t, nil, status.Errorf(codes.NotFound, "namespace %s has no ModelDeployment %q, which the trigger of ScaledObject %s refers to", t.of.Namespace, t.of.Name, ref.GetName())
	}
	return t, d, nil
}

// refusal converts an error to gRPC's format.
func refusal(err error) error {
	var known apierrors.APIStatus
	switch _, said := status.FromError(err); {
	case said:
		return err
	case !errors.As(err, &known):
		return status.Error(codes.Internal, err.Error())
	}
	code := codes.Internal
	switch known.Status().Code {
	case http.StatusConflict:
		code = codes.FailedPrecondition
	case http.StatusServiceUnavailable:
		code = codes.Unavailable
	}
	return status.Error(code, err.Error())
}
