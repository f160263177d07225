package keda

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Keys of a trigger's metadata.
const (
	keyDeployment = "deployment" // the deployment
	keyMetric     = "metric"     // the metric; requests by default
	keyTarget     = "target"     // the target per replica
)

// ofKEDA returns the keys that KEDA itself reads there.
func ofKEDA() []string {
	return []string{"scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile"}
}

// trigger is the parsed metadata of a ScaledObject.
type trigger struct {
	of     types.NamespacedName
	metric string
	target float64 // 0: the deployment's default
}

// parse parses the metadata of a trigger, and rejects unknown keys.
func parse(ref *externalscaler.ScaledObjectRef) (trigger, error) {
	said := ref.GetScalerMetadata()
	t := trigger{of: types.NamespacedName{Namespace: ref.GetNamespace(), Name: said[keyDeployment]}, metric: external.Requests}
	known := append([]string{keyDeployment, keyMetric, keyTarget}, ofKEDA()...)
	var strange []string
	for key := range said {
		if !slices.Contains(known, key) {
			strange = append(strange, key)
		}
	}
	slices.Sort(strange)
	switch {
	case t.of.Namespace == "":
		return t, status.Error(codes.InvalidArgument, "the ScaledObject has no namespace")
	case t.of.Name == "":
		return t, status.Errorf(codes.InvalidArgument, "metadata of the trigger has no %s: set it to the name of the ModelDeployment to scale", keyDeployment)
	case len(strange) > 0:
		return t, status.Errorf(codes.InvalidArgument, "metadata of the trigger: unknown key %s; valid keys are %s, %s and %s", strings.Join(strange, ", "), keyDeployment, keyMetric, keyTarget)
	}
	if metric, ok := said[keyMetric]; ok {
		t.metric = metric
	}
	if !slices.Contains(external.Names(), t.metric) {
		return t, status.Errorf(codes.InvalidArgument, "metadata of the trigger: unknown %s %q; valid values are %s", keyMetric, t.metric, strings.Join(external.Names(), " and "))
	}
	if target, ok := said[keyTarget]; ok {
		n, err := strconv.ParseFloat(target, 64)
		// KEDA passes thousandths to the HPA.
		if err != nil || !(n >= 0.001 && n <= math.MaxInt32) {
			return t, status.Errorf(codes.InvalidArgument, "metadata of the trigger: %s is %q, want a number from 0.001 to %d", keyTarget, target, math.MaxInt32)
		}
		t.target = n
	}
	return t, nil
}

// targetOf returns the target per replica: by default the number of concurrent requests, as
// in spec.autoscaling.
func (t trigger) targetOf(d *v1alpha1.ModelDeployment) (float64, error) {
	switch {
	case t.target > 0:
		return t.target, nil
	case t.metric == external.Requests && fleet.Concurrency(d) > 0:
		return float64(fleet.Concurrency(d)), nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "metadata of the trigger has no %s: set it to the target of %s for each replica", keyTarget, t.metric)
}
