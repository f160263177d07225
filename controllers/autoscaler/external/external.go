// Package external serves the load of each deployment as external metrics of Kubernetes
// (external.metrics.k8s.io), for a HorizontalPodAutoscaler that uses the scale subresource.
//
// It owns two metrics, their discovery, and authorization: the API server authenticates the
// user and its RBAC decides. It refuses incomplete figures, so that nothing scales by a
// part of the load; a selector that matches no deployment, so that a misspelt name is not a
// zero; and a deployment with spec.autoscaling, which an HPA would fight with. It decides
// nothing.
//
// It does not use k8s.io/apiserver: two read-only paths do not need storage, admission and
// etcd's client.
//
// Start reading at Handler.ServeHTTP; source.go has the figures, which package keda serves
// as well, delegated.go the authorization, server.go the registration.
package external

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// label of a metric that names its deployment.
const label = "deployment"

// A selector is compared with each deployment of a namespace, and a metric has one label.
const (
	maxSelector     = 4 << 10
	maxRequirements = 8
)

// root is the path of the API group version.
var root = "/apis/" + metrics.SchemeGroupVersion.String()

// Handler serves the API.
type Handler struct {
	Source
	// Allow authenticates the user.
	Allow func(r *http.Request) (Caller, error)
	// May authorizes a user to read a metric.
	May func(ctx context.Context, u Caller, namespace, metric string) error
	Log logr.Logger
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, err := h.answer(r)
	code := http.StatusOK
	if err != nil {
		status := statusOf(err)
		out, code = status, int(status.Code)
		h.Log.V(1).Info("Rejected a request for an external metric", "path", r.URL.Path, "reason", err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(out); err != nil {
		h.Log.V(1).Info("send response", "reason", err.Error())
	}
}

// statusOf converts an error to the API's format.
func statusOf(err error) *metav1.Status {
	status := apierrors.NewInternalError(err).Status()
	if known, ok := err.(apierrors.APIStatus); ok {
		status = known.Status()
	}
	status.Kind, status.APIVersion = "Status", "v1"
	return &status
}

func (h *Handler) answer(r *http.Request) (any, error) {
	u, err := h.Allow(r)
	if err != nil {
		return nil, err
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	if r.Method != http.MethodGet {
		return nil, apierrors.NewMethodNotSupported(metrics.Resource("externalmetrics"), r.Method)
	}
	if path == root {
		return discovery(), nil
	}
	rest, ok := strings.CutPrefix(path, root+"/namespaces/")
	namespace, metric, two := strings.Cut(rest, "/")
	if !ok || !two || namespace == "" || !slices.Contains(Names(), metric) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: metrics.GroupName, Resource: "externalmetrics"}, rest)
	}
	if err := h.May(r.Context(), u, namespace, metric); err != nil {
		return nil, err
	}
	text := r.URL.Query().Get("labelSelector")
	if len(text) > maxSelector {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector has %d bytes, at most %d are allowed", len(text), maxSelector))
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	if of, _ := selector.Requirements(); len(of) > maxRequirements {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector has %d requirements, at most %d are allowed; select by %s", len(of), maxRequirements, label))
	}
	return h.values(r.Context(), namespace, metric, selector)
}

func discovery() *metav1.APIResourceList {
	out := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: metrics.SchemeGroupVersion.String()}
	for _, name := range Names() {
		out.APIResources = append(out.APIResources, metav1.APIResource{Name: name, Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get", "list"}})
	}
	return out
}

// values returns the values of the deployments that a selector matches: all of them, or an
// error.
func (h *Handler) values(ctx context.Context, namespace, metric string, selector labels.Selector) (*metrics.ExternalMetricValueList, error) {
	var deployments v1alpha1.ModelDeploymentList // of the cache's own objects: read only
	if err := h.Client.List(ctx, &deployments, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list deployments: %w", err)
	}
	out := &metrics.ExternalMetricValueList{TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: metrics.SchemeGroupVersion.String()}}
	for i := range deployments.Items {
		if err := ctx.Err(); err != nil { // the API server no longer waits
			return nil, err
		}
		d := &deployments.Items[i]
		of := map[string]string{label: d.Name}
		if !d.DeletionTimestamp.IsZero() || !selector.Matches(labels.Set(of)) {
			continue
		}
		value, err := h.Value(ctx, d, metric)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, metrics.ExternalMetricValue{MetricName: metric, MetricLabels: of, Timestamp: metav1.NewTime(h.Now()), Value: *value})
	}
	if len(out.Items) == 0 {
		return nil, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("modeldeployments").GroupResource(),
			fmt.Sprintf("for %s=%q in namespace %s", label, selector, namespace))
	}
	return out, nil
}
