// Package external serves what is asked of each deployment as external metrics
// of Kubernetes (external.metrics.k8s.io), for a HorizontalPodAutoscaler that
// drives the scale subresource.
//
// It owns two metrics, their discovery, and who may read them: whom the API
// server vouches for, and the API server's own rules let. It refuses figures that
// are not whole, so that nobody scales by a part of them; what names no
// deployment, so that a misspelt name is no zero; and a deployment that scales
// itself by spec.autoscaling, with which others would fight. It decides nothing.
//
// By hand and not with k8s.io/apiserver: two paths to read do not need what a
// whole API server brings (storage, admission, etcd's client).
//
// Start reading at Handler.ServeHTTP; source.go has the figures, which package
// keda tells as well, delegated.go who may read, server.go how it is found.
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

// label of a metric that says whose it is.
const label = "deployment"

// root is the path of the group's version.
var root = "/apis/" + metrics.SchemeGroupVersion.String()

// Handler answers the API server.
type Handler struct {
	Source
	// Allow says who asks, or refuses.
	Allow func(r *http.Request) (Caller, error)
	// May says whether a user may read a metric.
	May func(ctx context.Context, u Caller, namespace, metric string) error
	Log logr.Logger
}

// ServeHTTP answers one request.
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

// statusOf is an error as the API has it.
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
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
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

// values are those of the deployments that a selector names: all of them, or
// none and why.
func (h *Handler) values(ctx context.Context, namespace, metric string, selector labels.Selector) (*metrics.ExternalMetricValueList, error) {
	var deployments v1alpha1.ModelDeploymentList
	if err := h.Client.List(ctx, &deployments, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list deployments: %w", err)
	}
	out := &metrics.ExternalMetricValueList{TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: metrics.SchemeGroupVersion.String()}}
	for i := range deployments.Items {
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
