// Package keda serves what is asked of each deployment to KEDA, by KEDA's own
// protocol for scalers that are not part of it (package externalscaler), so that a
// ScaledObject scales a ModelDeployment by its scale subresource. A cluster with
// KEDA has KEDA's server of external metrics, and there can be one: an HPA of
// KEDA's asks KEDA, and KEDA asks here.
//
// It owns the protocol, what a trigger may say, and the pass by which KEDA alone is
// let in. Figures, and who is refused them, are those of package external: the
// same numbers, by the same function. It decides nothing.
//
// The namespace of a deployment is that of the ScaledObject, in KEDA's words:
// nobody scales by, or learns, what is asked in another one.
//
// Start reading at Scaler; trigger.go has what a ScaledObject may say, pass.go who
// is let in, server.go the port.
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
	// look is how often a stream looks whether a deployment is active.
	look = time.Second
	// repeat is how often a stream says that it still is: KEDA counts its cooldown
	// from when it last heard so, and hears nothing while it prepares a ScaledObject.
	repeat = 10 * time.Second
	// life of a stream. KEDA waits ever longer, up to a minute, before it asks anew
	// after streams that broke, and forgets them after one that ends well: then it
	// asks again within two seconds.
	life = 5 * time.Minute
)

// Scaler answers KEDA.
type Scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	Source *external.Source
	Clock  clock.WithTicker
}

// GetMetricSpec is what a trigger asks for, and how much of it one replica is for.
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

// GetMetrics is the figure of now, whole or not at all.
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

// valueOf is a figure in both of KEDA's numbers; the whole one is rounded up, as an
// HPA does.
func valueOf(metric string, q *resource.Quantity) *externalscaler.MetricValue {
	return &externalscaler.MetricValue{MetricName: metric, MetricValue: q.Value(), MetricValueFloat: q.AsApproximateFloat64()}
}

// IsActive says whether a deployment is to have a replica at all.
func (s *Scaler) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	active, err := s.active(ctx, ref)
	if err != nil {
		return nil, refusal(err)
	}
	return &externalscaler.IsActiveResponse{Result: active}, nil
}

// StreamIsActive says so at once, when it changes, and now and then while it is
// true. Figures that are not whole are nothing to tell: KEDA goes on as it was.
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

// of is what a trigger says, and the deployment that it names.
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

// refusal is an error as gRPC has it.
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
