package main

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const rendered = `---
# Source: metalfleet/templates/monitoring.yaml
kind: ServiceMonitor
spec:
  selector:
    matchLabels: {app: gateway, release: it}
  endpoints:
  - port: metrics
---
kind: PrometheusRule
spec:
  groups: []
---
kind: ConfigMap
data:
  fleet.json: |
    {"title": "fleet"}
`

func TestMonitoringOfTheChartIsTakenApart(t *testing.T) {
	m, err := parseMonitoring(rendered)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.monitors) != 1 || selector(m.monitors[0].Spec.Selector.MatchLabels) != "app=gateway,release=it" || m.monitors[0].Spec.Endpoints[0].Port != "metrics" {
		t.Errorf("monitors are %+v", m.monitors)
	}
	if string(m.rules) != `{"groups":[]}` || m.dashboards["fleet.json"] != "{\"title\": \"fleet\"}\n" {
		t.Errorf("rules %s, dashboards %q", m.rules, m.dashboards)
	}
	for what, change := range map[string][2]string{
		"a kind that nobody looks at": {"---\nkind: ConfigMap", "---\nkind: PodMonitor\n---\nkind: ConfigMap"},
		"no ServiceMonitor":           {"kind: ServiceMonitor", ""},
		"no rules":                    {"kind: PrometheusRule", ""},
		"no dashboard":                {"kind: ConfigMap", ""},
	} {
		if _, err := parseMonitoring(strings.Replace(rendered, change[0], change[1], 1)); err == nil {
			t.Errorf("%s is no error", what)
		}
	}
}

func TestPodsBehindAPortAreTargets(t *testing.T) {
	name, other, port := "metrics", "http", int32(8080)
	es := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metalfleet-system"},
		Ports:      []discoveryv1.EndpointPort{{Name: &other, Port: &port}, {Name: &name, Port: &port}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}, TargetRef: &corev1.ObjectReference{Name: "gateway-1"}}},
	}
	want := []group{{[]string{"192.0.2.7:8080"}, map[string]string{"job": "gateway-metrics", "service": "gateway-metrics", "namespace": "metalfleet-system", "endpoint": "metrics", "pod": "gateway-1"}}}
	if got := groupsOf("gateway-metrics", "metrics", es); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
