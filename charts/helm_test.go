//go:build stories

package charts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"metalfleet.dev/metalfleet/test/testenv"
)

// root is the folder of the module, whose bin has the programs.
const root = ".."

var chartDir = filepath.Join(root, "charts", "metalfleet")

const namespace = "metalfleet-system"

// built are the values that a chart which is not of a release needs: the images that
// config/ names too.
var built = []string{"image.tag=0.1.0"}

// scalers is where KEDA runs.
const scalers = "scalers"

// variant is a set of values and what it must render.
type variant struct {
	name string
	set  []string
	file string // in testdata, with more values
	// has and lacks are kinds with names, as KIND/NAME.
	has, lacks []string
}

// everything that can be turned on.
var everything = []string{
	"metrics.readers[0].name=prometheus", "metrics.readers[0].namespace=monitoring", "operator.secretNamespaces={restricted}", "placement.onDemandOvercommit=4",
	"tenants.namespaces.restricted.names={assistant}", "tenants.namespaces.restricted.memory=256Gi", "monitoring.serviceMonitors.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboards.enabled=true",
	"gateway.apiKeys.enabled=true",
}

func variants() []variant {
	return []variant{
		{name: "default", has: []string{
			"CustomResourceDefinition/modeldeployments.metalfleet.dev", "CustomResourceDefinition/macnodes.metalfleet.dev", "CustomResourceDefinition/modelreplicas.metalfleet.dev",
			"Deployment/metalfleet-operator", "Deployment/metalfleet-gateway", "Service/metalfleet-gateway", "PodDisruptionBudget/metalfleet-gateway",
			"ClusterRole/metalfleet-view", "ClusterRole/metalfleet-edit", "ConfigMap/metalfleet-uninstall-guard", "ValidatingAdmissionPolicyBinding/metalfleet-uninstall-guard", "Pod/metalfleet-test",
			"ValidatingAdmissionPolicy/metalfleet-agent-writes", "ValidatingAdmissionPolicyBinding/metalfleet-agent-writes",
			"ValidatingAdmissionPolicy/metalfleet-agent-requests", "ValidatingAdmissionPolicy/metalfleet-enrolment-requests", "ValidatingAdmissionPolicyBinding/metalfleet-agent-tokens",
			"ValidatingAdmissionPolicyBinding/metalfleet-macnode-writes", "ValidatingAdmissionPolicyBinding/metalfleet-operator-rights",
			"ValidatingAdmissionPolicyBinding/metalfleet-mac-addresses", "ValidatingAdmissionPolicyBinding/metalfleet-tenants",
			"NamespaceRules/metalfleet", "CustomResourceDefinition/namespacerules.metalfleet.dev", "CustomResourceDefinition/macclasses.metalfleet.dev", "CustomResourceDefinition/modelprofiles.metalfleet.dev", "ClusterRole/metalfleet-profiles", "ClusterRole/metalfleet-profiles-view", "ClusterRole/metalfleet-classes", "NetworkPolicy/metalfleet-gateway", "NetworkPolicy/metalfleet-operator", "ClusterRole/metalfleet-cordon",
		}, lacks: []string{"ClusterRoleBinding/metalfleet-operator-secrets", "ClusterRoleBinding/metalfleet-metrics-readers", "ServiceMonitor/metalfleet-gateway", "Namespace/metalfleet-api-keys", "Role/metalfleet-gateway-api-keys",
			"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-keda", "ClusterTriggerAuthentication/metalfleet",
			"HorizontalPodAutoscaler/metalfleet-gateway", "Ingress/metalfleet-gateway", "HTTPRoute/metalfleet-gateway"}},
		{name: "everything", set: everything, has: []string{
			"NetworkPolicy/metalfleet-gateway", "NetworkPolicy/metalfleet-operator", "ServiceMonitor/metalfleet-gateway", "ServiceMonitor/metalfleet-operator",
			"PrometheusRule/metalfleet", "ConfigMap/metalfleet-dashboard-fleet", "RoleBinding/metalfleet-operator-secrets", "ClusterRoleBinding/metalfleet-metrics-readers",
			"Namespace/metalfleet-api-keys", "Role/metalfleet-gateway-api-keys", "RoleBinding/metalfleet-gateway-api-keys",
		}},
		{name: "metrics", set: []string{"operator.externalMetrics.enabled=true"}, has: []string{
			"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-metrics-api", "ClusterRole/metalfleet-operator-external-metrics",
		}, lacks: []string{"Service/metalfleet-operator-keda", "Secret/metalfleet-keda"}},
		{name: "keda", set: []string{"operator.keda.enabled=true", "operator.keda.namespace=" + scalers}, has: []string{
			"Service/metalfleet-operator-keda", "Secret/metalfleet-keda", "Role/metalfleet-operator-keda", "RoleBinding/metalfleet-operator-keda",
			"ClusterTriggerAuthentication/metalfleet",
		}, lacks: []string{"APIService/v1beta1.external.metrics.k8s.io", "Service/metalfleet-operator-metrics-api"}},
		{name: "least", set: []string{
			"crds.install=false", "uninstallGuard.enabled=false", "aggregatedRoles.enabled=false", "gateway.podDisruptionBudget.enabled=false", "operator.podDisruptionBudget.enabled=false",
			"operator.replicas=1", "gateway.replicas=1",
		}, has: []string{"Deployment/metalfleet-operator"}, lacks: []string{
			"CustomResourceDefinition/macnodes.metalfleet.dev", "ConfigMap/metalfleet-uninstall-guard", "ValidatingAdmissionPolicy/metalfleet-uninstall-guard", "ClusterRole/metalfleet-view", "PodDisruptionBudget/metalfleet-gateway", "PodDisruptionBudget/metalfleet-operator",
		}},
		{name: "open", set: []string{"tenants.open=true", "macs.allowLocalAddresses=true", "networkPolicies.enabled=false", "operator.secretNamespaces={*}"}, has: []string{
			"ClusterRoleBinding/metalfleet-operator-secrets", "ValidatingAdmissionPolicyBinding/metalfleet-macnode-writes",
		}, lacks: []string{"ValidatingAdmissionPolicyBinding/metalfleet-tenants", "NamespaceRules/metalfleet",
			"ValidatingAdmissionPolicyBinding/metalfleet-mac-addresses", "NetworkPolicy/metalfleet-gateway"}},
		{name: "namespaced", set: []string{"watchNamespaces={restricted,default}"}, has: []string{
			"RoleBinding/metalfleet-operator-models", "RoleBinding/metalfleet-gateway-models", "ClusterRole/metalfleet-operator-models",
		}},
		{name: "placed", set: []string{
			"image.registry=registry.example/fleet", "image.tag=v1", "imagePullSecrets={pull}", "operator.nodeSelector.disk=ssd",
			"gateway.tolerations[0].key=edge", "gateway.tolerations[0].operator=Exists", "gateway.service.type=LoadBalancer", "gateway.service.port=8000",
			"gateway.service.annotations.team=models", "gateway.verbose=true", "gateway.logFormat=json", "gateway.strictFields=true", "operator.verbose=true", "operator.logFormat=json", "gateway.drainSeconds=30",
			"operator.certificateLife=10m", "operator.authoritySpread=1m30s",
			"gateway.podDisruptionBudget.maxUnavailable=25%",
		}, has: []string{"Service/metalfleet-gateway"}},
		{name: "published", file: "published.yaml", has: []string{
			"Deployment/fleet-operator", "Deployment/fleet-gateway", "Service/fleet-gateway", "Service/fleet-gateway-tunnels", "Service/fleet-operator-demand",
			"PodDisruptionBudget/fleet-operator", "NetworkPolicy/fleet-gateway", "Pod/fleet-test",
			"HorizontalPodAutoscaler/fleet-gateway", "Ingress/fleet-gateway", "HTTPRoute/fleet-gateway",
			"ServiceAccount/metalfleet-operator", "ServiceAccount/metalfleet-gateway",
		}, lacks: []string{"Deployment/metalfleet-gateway", "Service/metalfleet-gateway", "PodDisruptionBudget/fleet-gateway"}},
	}
}

// zeros is the hash in a digest.
var zeros = strings.Repeat("0", 64)

// refused are values that must not be taken, and what the refusal names.
func refused() map[string]string {
	return map[string]string{
		"gateway.replica=2":                                                   "replica",
		"gateway.replicas=0":                                                  "replicas",
		"gateway.replicas=many":                                               "replicas",
		"gateway.service.type=Public":                                         "type",
		"gateway.service.port=99999":                                          "port",
		"operator.extraArgs={-x}":                                             "extraArgs",
		"operator.certificateLife=a day":                                      "certificateLife",
		"operator.authoritySpread=":                                           "authoritySpread",
		"monitoring.serviceMonitors.interval=often":                           "interval",
		"networkPolicies=true":                                                "networkPolicies",
		"tenants.open=maybe":                                                  "open",
		"tenants.default.names={a b}":                                         "names",
		"tenants.default.memory=much":                                         "memory",
		"tenants.default.replicasPerMac=65":                                   "replicasPerMac",
		"tenants.default.residencyPriority=high":                              "residencyPriority",
		"tenants.namespaces.team-a.name={a}":                                  "team-a",
		"watchNamespaces={Team}":                                              "watchNamespaces",
		"operator.secretNamespaces={Team}":                                    "secretNamespaces",
		"networkPolicies.clients={}":                                          "clients",
		"image.pullPolicy=Sometimes":                                          "pullPolicy",
		"image.tag=":                                                          "Build and push both images",
		"image.tag=,image.digest.gateway=sha256:" + zeros:                     "Build and push both images",
		"image.digest.operator=v1":                                            "digest",
		"fullnameOverride=Fleet":                                              "fullnameOverride",
		"gateway.podLabels.app\\.kubernetes\\.io/name=x":                      "podLabels",
		"gateway.extraEnv[0].value=x":                                         "extraEnv",
		"gateway.autoscaling.enabled=true,gateway.autoscaling.minReplicas=11": "minReplicas is more than",
		"gateway.service.loadBalancerSourceRanges={10.0.0.0}":                 "loadBalancerSourceRanges",
		"gateway.ingress.enabled=true":                                        "gateway.ingress.hosts is empty",
		"gateway.ingress.hosts={https://a}":                                   "hosts",
		"gateway.httpRoute.enabled=true":                                      "gateway.httpRoute.parentRefs is empty",
		"gateway.httpRoute.requestTimeout=never":                              "requestTimeout",
		"networkPolicies.egress.macPorts={}":                                  "macPorts",
		"gateway.strictFields=maybe":                                          "strictFields",
		"gateway.drainSeconds=-1":                                             "drainSeconds",
		"gateway.apiKeys.enabled=yes":                                         "enabled",
		"gateway.apiKeys.namespace=Keys":                                      "namespace",
		"gateway.corsOrigins={chat.example.com}":                              "corsOrigins",
		"gateway.corsOrigins={https://chat.example.com/}":                     "corsOrigins",
		"operator.keda.namespace=Keda":                                        "namespace",
		"operator.keda.enabled=true,operator.externalMetrics.enabled=true":    "mutually exclusive",
		"gateway.apiKeys.enabled=true,gateway.apiKeys.namespace=default":      "namespace of the release",
	}
}

func TestWrongValuesAreRefusedByName(t *testing.T) {
	for set, name := range refused() {
		t.Run(set, func(t *testing.T) {
			_, err := helm(t.Context(), "template", "metalfleet", chartDir, "--set", strings.Join(built, ","), "--set", set)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, want a refusal that names %s", err, name)
			}
		})
	}
	if _, err := helm(t.Context(), "template", "metalfleet", chartDir, "--kube-version", "1.31.0"); err == nil || !strings.Contains(err.Error(), "1.32") {
		t.Errorf("Kubernetes 1.31: error %v, want a refusal that names 1.32", err)
	}
}

// A comma in one origin would become two, so each is an item of a list.
func TestOriginsBecomeOneFlag(t *testing.T) {
	for set, want := range map[string]string{
		"":                        "",
		"gateway.corsOrigins={*}": `- "--cors-origins=*"`,
		"gateway.corsOrigins={https://a.example.com,app://obsidian.md}": `- "--cors-origins=https://a.example.com,app://obsidian.md"`,
	} {
		out, err := helm(t.Context(), "template", "metalfleet", chartDir, "--show-only", "templates/gateway.yaml", "--set", strings.Join(built, ","), "--set", set)
		if err != nil || want == "" && strings.Contains(string(out), "cors-origins") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
}

// TestEveryVariantIsValid lints and renders each variant and has the API server
// validate every object.
func TestEveryVariantIsValid(t *testing.T) {
	c := newCluster(t, filepath.Join(root, "config", "crd", "metalfleet.dev_namespacerules.yaml"))
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) { c.judge(t, v, v.render(t)) })
	}
}

// TestConfigIsWhatTheChartRenders: both ways of installing make the same objects.
func TestConfigIsWhatTheChartRenders(t *testing.T) {
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	kustomized, err := output(exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), "kustomize", filepath.Join(root, "config")))
	if err != nil {
		t.Fatalf("%v; make kube builds kubectl", err)
	}
	same, err := compare(kustomized, variants()[0].render(t))
	if err != nil || same < 10 {
		t.Errorf("%d objects are the same: %v", same, err)
	}
}

// render returns the variant's objects as YAML.
func (v variant) render(t *testing.T) []byte {
	t.Helper()
	var flags []string
	if v.file != "" {
		flags = append(flags, "--values", filepath.Join("testdata", v.file))
	} else {
		flags = append(flags, "--set", strings.Join(built, ","))
	}
	for _, s := range v.set {
		flags = append(flags, "--set", s)
	}
	if _, err := helm(t.Context(), append([]string{"lint", "--strict", "--quiet", chartDir}, flags...)...); err != nil {
		t.Fatal(err)
	}
	text, err := helm(t.Context(), append([]string{"template", "metalfleet", chartDir, "--namespace", namespace, "--kube-version", "1.32.0"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// helm runs Helm without the user's own configuration.
func helm(ctx context.Context, args ...string) ([]byte, error) {
	program := filepath.Join(root, "bin", "kube", "helm")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("helm is not built, run hack/helm.sh: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	scratch := filepath.Join(root, ".cache", "helm")
	cmd.Env = slices.Concat(cmd.Environ(), []string{"HELM_CACHE_HOME=" + scratch, "HELM_CONFIG_HOME=" + scratch, "HELM_DATA_HOME=" + scratch})
	return output(cmd)
}

// output returns what a program printed; its error has what it complained of.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s%s", filepath.Base(cmd.Path), cmd.Args[1], err, complaint.String(), out.String())
	}
	return out.Bytes(), nil
}

// TestANamespacedInstallationReadsNoModelsElsewhere: its rights in the whole
// cluster are those to objects that are in no namespace.
func TestANamespacedInstallationReadsNoModelsElsewhere(t *testing.T) {
	text, err := helm(t.Context(), "template", "metalfleet", chartDir, "--set", strings.Join(built, ","), "--set", "watchNamespaces={a,b}")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var bound []string
	for _, o := range objects {
		if o.GetKind() == "ClusterRoleBinding" {
			name, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
			bound = append(bound, name)
		}
	}
	for _, o := range objects {
		if o.GetKind() != "ClusterRole" || !slices.Contains(bound, o.GetName()) {
			continue
		}
		rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
		for _, r := range rules {
			if text := fmt.Sprint(r); strings.Contains(text, "modeldeployments") || strings.Contains(text, "modelreplicas") || strings.Contains(text, "secrets") {
				t.Errorf("%s may do in all namespaces: %s", o.GetName(), text)
			}
		}
	}
	if len(bound) < 2 {
		t.Errorf("bound in the whole cluster are %q", bound)
	}
}
