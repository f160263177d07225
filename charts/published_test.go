//go:build stories

package charts

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// as returns the object KIND/NAME as its type.
func as[T any](t *testing.T, objects map[string]*unstructured.Unstructured, name string) *T {
	t.Helper()
	o := objects[name]
	if o == nil {
		t.Fatalf("there is no %s", name)
	}
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// published renders the variant of that name.
func published(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	all := variants()
	v := all[slices.IndexFunc(all, func(v variant) bool { return v.name == "published" })]
	objects, err := byName(v.render(t))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestPodsHaveWhatTheValuesAdd(t *testing.T) {
	objects := published(t)
	for _, program := range []string{"operator", "gateway"} {
		pod := as[appsv1.Deployment](t, objects, "Deployment/fleet-"+program).Spec.Template
		container := pod.Spec.Containers[0]
		for what, ok := range map[string]bool{
			"digest":              filepath.Base(container.Image) == program+"@sha256:"+map[string]string{"operator": ones, "gateway": twos}[program],
			"priorityClassName":   pod.Spec.PriorityClassName == "system-cluster-critical",
			"podAnnotations":      pod.Annotations["example.com/scan"] == "true",
			"podLabels":           pod.Labels["team"] == "platform" && pod.Labels["app.kubernetes.io/component"] == program,
			"extraEnv":            len(container.Env) == 1 && container.Env[0].Value == "50",
			"extraVolumes":        len(pod.Spec.Volumes) == 1 && pod.Spec.Volumes[0].Name == "roots",
			"extraVolumeMounts":   len(container.VolumeMounts) == 1 && container.VolumeMounts[0].MountPath == "/etc/ssl/certs",
			"topologySpread":      len(pod.Spec.TopologySpreadConstraints) == 1 && pod.Spec.TopologySpreadConstraints[0].TopologyKey == corev1.LabelTopologyZone,
			"fixed account":       pod.Spec.ServiceAccountName == "metalfleet-"+program,
			"account annotations": objects["ServiceAccount/metalfleet-"+program].GetAnnotations()["example.com/role"] == "fleet",
		} {
			if !ok {
				t.Errorf("%s: %s is not as in the values", program, what)
			}
		}
	}
	if args := as[appsv1.Deployment](t, objects, "Deployment/fleet-operator").Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--gateway-service=fleet-gateway") {
		t.Errorf("the operator does not know the gateways' Service: %q", args)
	}
}

var ones, twos = "1111111111111111111111111111111111111111111111111111111111111111", "2222222222222222222222222222222222222222222222222222222222222222"

// TestAnAutoscalerOwnsReplicas: an upgrade of the chart must not reset them.
func TestAnAutoscalerOwnsReplicas(t *testing.T) {
	objects := published(t)
	deployment := as[appsv1.Deployment](t, objects, "Deployment/fleet-gateway")
	if deployment.Spec.Replicas != nil {
		t.Errorf("the Deployment sets %d replicas", *deployment.Spec.Replicas)
	}
	spec := as[autoscalingv2.HorizontalPodAutoscaler](t, objects, "HorizontalPodAutoscaler/fleet-gateway").Spec
	if *spec.MinReplicas != 3 || spec.MaxReplicas != 12 || spec.ScaleTargetRef.Name != deployment.Name || *spec.Metrics[0].Resource.Target.AverageUtilization != 80 || *spec.Behavior.ScaleDown.StabilizationWindowSeconds != 600 {
		t.Errorf("the autoscaler has %+v", spec)
	}
}

func TestRoutesLeadToTheGatewayService(t *testing.T) {
	objects := published(t)
	service := as[corev1.Service](t, objects, "Service/fleet-gateway")
	if *service.Spec.LoadBalancerClass != "example.com/internal" || len(service.Spec.LoadBalancerSourceRanges) != 2 || service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("the Service has %+v", service.Spec)
	}
	tunnels := as[corev1.Service](t, objects, "Service/fleet-gateway-tunnels").Spec
	if !slices.Equal(tunnels.LoadBalancerSourceRanges, []string{"192.168.0.0/16"}) {
		t.Errorf("the tunnels may be opened from %q", tunnels.LoadBalancerSourceRanges)
	}
	if tunnels.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("strangers share the limits of Macs: the addresses of clients are hidden by the policy %q", tunnels.ExternalTrafficPolicy)
	}
	ingress := as[networkingv1.Ingress](t, objects, "Ingress/fleet-gateway").Spec
	backend := ingress.Rules[0].HTTP.Paths[0].Backend.Service
	if *ingress.IngressClassName != "nginx" || ingress.TLS[0].SecretName != "models-tls" || backend.Name != service.Name || backend.Port.Name != service.Spec.Ports[0].Name {
		t.Errorf("the Ingress has %+v", ingress)
	}
	operator := as[appsv1.Deployment](t, objects, "Deployment/fleet-operator").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(operator, "--public-url=https://models.example.com/v1") || !slices.Contains(operator, "--gateway-url=http://fleet-gateway.metalfleet-system.svc:8080/v1") {
		t.Errorf("deployments state other addresses: the operator has %q", operator)
	}
	rules, _, _ := unstructured.NestedSlice(objects["HTTPRoute/fleet-gateway"].Object, "spec", "rules")
	backends, _, _ := unstructured.NestedSlice(rules[0].(map[string]any), "backendRefs")
	to := backends[0].(map[string]any)
	if timeout, _, _ := unstructured.NestedString(rules[0].(map[string]any), "timeouts", "request"); timeout != "0s" || to["name"] != service.Name || fmt.Sprint(to["port"]) != fmt.Sprint(service.Spec.Ports[0].Port) {
		t.Errorf("the HTTPRoute has %v", rules)
	}
}

// TestPoliciesFollowTheValues: source ranges replace the whole internet, and egress is
// limited for both programs, with Macs for gateways alone.
func TestPoliciesFollowTheValues(t *testing.T) {
	objects := published(t)
	gateway := as[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/fleet-gateway").Spec
	var cidrs []string
	for _, from := range gateway.Ingress[0].From {
		if from.IPBlock != nil {
			cidrs = append(cidrs, from.IPBlock.CIDR)
		}
	}
	if !slices.Equal(cidrs, []string{"10.0.0.0/8", "fd00::/8"}) {
		t.Errorf("clients may come from %q", cidrs)
	}
	ports := func(rules []networkingv1.NetworkPolicyEgressRule) (out []string) {
		for _, r := range rules {
			for _, p := range r.Ports {
				out = append(out, p.Port.String())
			}
		}
		return out
	}
	operator := as[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/fleet-operator").Spec
	both := []string{"53", "53", "443", "6443", "4317"}
	for got, want := range map[*networkingv1.NetworkPolicySpec][]string{&operator: both, &gateway: slices.Concat(both, []string{"demand", "7443", "7500"})} {
		if !slices.Contains(got.PolicyTypes, networkingv1.PolicyTypeEgress) || !slices.Equal(ports(got.Egress), want) {
			t.Errorf("%v may connect to ports %q, want %q", got.PodSelector.MatchLabels, ports(got.Egress), want)
		}
	}
}
