package controllers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"metalfleet.dev/metalfleet/controllers"
)

// externalMetrics returns what the chart creates for the registration.
func externalMetrics() []client.Object {
	const name = "test-external-metrics"
	operator := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "metalfleet-operator", Namespace: system}}
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, ResourceNames: []string{"v1beta1.external.metrics.k8s.io"}, Verbs: []string{"get", "patch"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: operator,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": "v1beta1.external.metrics.k8s.io"},
			"spec": map[string]any{"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
				"service": map[string]any{"namespace": system, "name": "metalfleet-operator-metrics-api", "port": int64(443)}}}},
	}
}

// TestTheOperatorRegistersAsServerOfExternalMetrics: the permissions of the chart suffice.
func TestTheOperatorRegistersAsServerOfExternalMetrics(t *testing.T) {
	cl := newCluster(t)
	for _, o := range externalMetrics() {
		cl.must(cl.c.Create(cl.ctx, o))
		t.Cleanup(func() { cl.must(cl.c.Delete(context.Background(), o)) })
	}
	o := controllers.ManagerOptions(system)
	o.Metrics = metricsserver.Options{BindAddress: "0"}
	o.Controller.SkipNameValidation = ptr.To(true)
	mgr, err := ctrl.NewManager(asOperator(), o)
	cl.must(err)
	ctx, stop := context.WithCancel(context.Background())
	cl.must(controllers.Setup(ctx, mgr, controllers.Config{Namespace: system, Clock: clock.RealClock{}, CertificateLife: controllers.DefaultCertificateLife,
		AuthoritySpread: authoritySpread, Metrics: prometheus.NewRegistry(), DemandAddress: "127.0.0.1:0", MetricsAPIAddress: "127.0.0.1:0"}))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		stop()
		cl.must(<-ended)
	}()
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	cl.eventually("the operator registers", func() error {
		err := cl.c.Get(cl.ctx, client.ObjectKey{Name: "v1beta1.external.metrics.k8s.io"}, service)
		if bundle, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle"); err == nil && bundle == "" {
			err = errors.New("no CA bundle")
		}
		return err
	})
}
