package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// helm is the program and the chart.
type helm struct{ program, chart, root string }

const namespace = "metalfleet-system"

// scalers is where KEDA runs.
const scalers = "scalers"

// variant is a set of values and what must come of it.
type variant struct {
	name string
	set  []string
	// has and lacks are kinds with names, as KIND/NAME.
	has, lacks []string
}

// everything that can be turned on.
var everything = []string{
	"networkPolicies.enabled=true", "monitoring.serviceMonitors.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboards.enabled=true",
	"gateway.apiKeys.enabled=true",
}

func variants() []variant {
	return []variant{
		{name: "default", has: []string{
			"CustomResourceDefinition/modeldeployments.metalfleet.dev", "CustomResourceDefinition/macnodes.metalfleet.dev", "CustomResourceDefinition/modelreplicas.metalfleet.dev",
			"Deployment/metalfleet-operator", "Deployment/metalfleet-gateway", "Service/metalfleet-gateway", "PodDisruptionBudget/metalfleet-gateway",
			"ClusterRole/metalfleet-view", "ClusterRole/metalfleet-edit", "Job/metalfleet-uninstall-guard", "Pod/metalfleet-test",
			"ValidatingAdmissionPolicy/metalfleet-agent-writes", "ValidatingAdmissionPolicyBinding/metalfleet-agent-writes",
			"ValidatingAdmissionPolicy/metalfleet-agent-requests", "ValidatingAdmissionPolicyBinding/metalfleet-agent-tokens",
		}, lacks: []string{"NetworkPolicy/metalfleet-gateway", "ServiceMonitor/metalfleet-gateway", "Namespace/metalfleet-api-keys", "Role/metalfleet-gateway-api-keys",
			"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-keda", "ClusterTriggerAuthentication/metalfleet"}},
		{name: "everything", set: everything, has: []string{
			"NetworkPolicy/metalfleet-gateway", "NetworkPolicy/metalfleet-operator", "ServiceMonitor/metalfleet-gateway", "ServiceMonitor/metalfleet-operator",
			"PrometheusRule/metalfleet", "ConfigMap/metalfleet-dashboard-fleet",
			"Namespace/metalfleet-api-keys", "Role/metalfleet-gateway-api-keys", "RoleBinding/metalfleet-gateway-api-keys",
		}},
		{name: "metrics", set: []string{"operator.externalMetrics.enabled=true", "networkPolicies.enabled=true"}, has: []string{
			"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-metrics-api", "ClusterRole/metalfleet-operator-external-metrics",
		}, lacks: []string{"Service/metalfleet-operator-keda", "Secret/metalfleet-keda"}},
		{name: "keda", set: []string{"operator.keda.enabled=true", "operator.keda.namespace=" + scalers, "networkPolicies.enabled=true"}, has: []string{
			"Service/metalfleet-operator-keda", "Secret/metalfleet-keda", "Role/metalfleet-operator-keda", "RoleBinding/metalfleet-operator-keda",
			"ClusterTriggerAuthentication/metalfleet",
		}, lacks: []string{"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-metrics-api"}},
		{name: "least", set: []string{
			"crds.install=false", "uninstallGuard.enabled=false", "aggregatedRoles.enabled=false", "gateway.podDisruptionBudget.enabled=false",
			"operator.replicas=1", "gateway.replicas=1",
		}, has: []string{"Deployment/metalfleet-operator"}, lacks: []string{
			"CustomResourceDefinition/macnodes.metalfleet.dev", "Job/metalfleet-uninstall-guard", "ClusterRole/metalfleet-view", "PodDisruptionBudget/metalfleet-gateway",
		}},
		{name: "placed", set: []string{
			"image.registry=registry.example/fleet", "image.tag=v1", "imagePullSecrets={pull}", "operator.nodeSelector.disk=ssd",
			"gateway.tolerations[0].key=edge", "gateway.tolerations[0].operator=Exists", "gateway.service.type=LoadBalancer", "gateway.service.port=8000",
			"gateway.service.annotations.team=models", "gateway.verbose=true", "operator.verbose=true", "gateway.drainSeconds=30",
			"operator.certificateLife=10m", "operator.authoritySpread=1m30s",
			"gateway.podDisruptionBudget.maxUnavailable=25%",
		}, has: []string{"Service/metalfleet-gateway"}},
	}
}

// refused are values that must not be taken, and what the refusal names.
func refused() map[string]string {
	return map[string]string{
		"gateway.replica=2":                                                "replica",
		"gateway.replicas=0":                                               "replicas",
		"gateway.replicas=many":                                            "replicas",
		"gateway.service.type=Public":                                      "type",
		"gateway.service.port=99999":                                       "port",
		"operator.extraArgs={-x}":                                          "extraArgs",
		"operator.certificateLife=a day":                                   "certificateLife",
		"operator.authoritySpread=":                                        "authoritySpread",
		"monitoring.serviceMonitors.interval=often":                        "interval",
		"networkPolicies=true":                                             "networkPolicies",
		"image.pullPolicy=Sometimes":                                       "pullPolicy",
		"gateway.drainSeconds=-1":                                          "drainSeconds",
		"gateway.apiKeys.enabled=yes":                                      "enabled",
		"gateway.apiKeys.namespace=Keys":                                   "namespace",
		"operator.keda.namespace=Keda":                                     "namespace",
		"operator.keda.enabled=true,operator.externalMetrics.enabled=true": "mutually exclusive",
		"gateway.apiKeys.enabled=true,gateway.apiKeys.namespace=default":   "namespace of the release",
	}
}

// refusals has every wrong value refused, by name.
func (h helm) refusals(ctx context.Context) (string, error) {
	var wrong []error
	for set, name := range refused() {
		_, err := h.run(ctx, "template", "metalfleet", h.chart, "--set", set)
		if err == nil || !strings.Contains(err.Error(), name) {
			wrong = append(wrong, fmt.Errorf("--set %s: %v, want a refusal that names %s", set, err, name))
		}
	}
	if _, err := h.run(ctx, "template", "metalfleet", h.chart, "--kube-version", "1.31.0"); err == nil || !strings.Contains(err.Error(), "1.32") {
		wrong = append(wrong, fmt.Errorf("version 1.31 of Kubernetes: %v, want a refusal that names 1.32", err))
	}
	return fmt.Sprintf("%d wrong ones are refused by name, and Kubernetes 1.31", len(refused())), errors.Join(wrong...)
}

func (v variant) flags() []string {
	var out []string
	for _, s := range v.set {
		out = append(out, "--set", s)
	}
	return out
}

// render is the variant's objects, as YAML.
func (h helm) render(ctx context.Context, v variant) ([]byte, error) {
	if _, err := h.run(ctx, append([]string{"lint", "--strict", "--quiet", h.chart}, v.flags()...)...); err != nil {
		return nil, err
	}
	return h.run(ctx, append([]string{"template", "metalfleet", h.chart, "--namespace", namespace, "--kube-version", "1.32.0"}, v.flags()...)...)
}

// variants renders all of them and shows each to the API server.
func (h helm) variants(ctx context.Context) error {
	c, err := newCluster(ctx, h.root)
	if err != nil {
		return err
	}
	var failed error
	for _, v := range variants() {
		failed = errors.Join(failed, step(v.name, func() (string, error) {
			text, err := h.render(ctx, v)
			if err != nil {
				return "", err
			}
			return c.judge(ctx, v, text)
		}))
	}
	return errors.Join(failed, c.stop())
}

func (h helm) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, h.program, args...)
	scratch := filepath.Join(h.root, ".cache", "helm") // nothing of the user's own is read or written
	cmd.Env = slices.Concat(cmd.Environ(), []string{"HELM_CACHE_HOME=" + scratch, "HELM_CONFIG_HOME=" + scratch, "HELM_DATA_HOME=" + scratch})
	return output(cmd)
}

// output is what a program printed; what it complained of is in the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s%s", filepath.Base(cmd.Path), cmd.Args[1], err, complaint.String(), out.String())
	}
	return out.Bytes(), nil
}
