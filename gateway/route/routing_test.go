package route_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/route"
)

func TestTheOrderOfThoseWhoMayAnswer(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	for _, name := range []string{"a", "b", "c"} {
		table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Names: name})
	}
	table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "other", Name: "d"}, UID: "d", Names: "d\nns/e"})
	for name, tc := range map[string]struct {
		routing *route.Routing
		point   uint64
		want    []string
	}{
		"no routing":                       {want: []string{"a"}},
		"within the split":                 {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 10}}}, want: []string{"b", "a"}},
		"its last point":                   {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 50}}}, point: 1<<63 - 1, want: []string{"b", "a"}},
		"what is left stays":               {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 50}}}, point: 1 << 63, want: []string{"a", "b"}},
		"the second part":                  {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 25}, {Deployment: "c", Percent: 25}}}, point: 1<<62 + 1<<61, want: []string{"c", "a", "b"}},
		"all of it":                        {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 100}}}, point: math.MaxUint64, want: []string{"b", "a"}},
		"no part is none":                  {routing: &route.Routing{Split: []route.Share{{Deployment: "b"}}}, want: []string{"a"}},
		"fallbacks come last":              {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 10}}, Fallbacks: []string{"c"}}, point: math.MaxUint64, want: []string{"a", "b", "c"}},
		"each once":                        {routing: &route.Routing{Split: []route.Share{{Deployment: "b", Percent: 10}}, Fallbacks: []string{"c", "b"}}, want: []string{"b", "a", "c"}},
		"who is not there":                 {routing: &route.Routing{Split: []route.Share{{Deployment: "x", Percent: 100}}, Fallbacks: []string{"y", "c"}}, want: []string{"a", "c"}},
		"nor one that another serves":      {routing: &route.Routing{Split: []route.Share{{Deployment: "e", Percent: 100}}, Fallbacks: []string{"e"}}, want: []string{"a"}},
		"a name of another is none of its": {routing: &route.Routing{Fallbacks: []string{"d"}}, want: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "a"}, UID: "a", Names: "a", Routing: tc.routing})
			m, _ := table.Lookup("a")
			var got []string
			for _, o := range table.Targets(m, "", tc.point) {
				got = append(got, o.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("order %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRoutingIsReadFromADeployment(t *testing.T) {
	d := v1alpha1.ModelDeployment{}
	d.Status.ServedNames = []string{"chat", "ns/d"}
	if got := route.DeploymentOf(&d); got.Routing != nil {
		t.Errorf("%+v", got.Routing)
	}
	d.Spec.Routing = v1alpha1.RoutingSpec{Fallbacks: []string{"b"}}
	if got := route.DeploymentOf(&d).Routing; got == nil || got.Patience != 5*time.Second || got.Fallbacks[0] != "b" {
		t.Errorf("%+v", got)
	}
	d.Spec.Routing = v1alpha1.RoutingSpec{Split: []v1alpha1.RoutingShare{{Deployment: "c", Percent: 7}}, SessionAffinity: v1alpha1.SessionAffinityNone, FallbackSeconds: ptr.To[int32](0)}
	if got := route.DeploymentOf(&d).Routing; got.Patience != 0 || got.Split[0] != (route.Share{Deployment: "c", Percent: 7}) || got.SessionAffinity != "None" {
		t.Errorf("%+v", got)
	}
}

// Callers that hold a Model see the change too.
func TestARoutingThatChangesIsUsedAtOnce(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	d := route.Deployment{Key: route.Key{Namespace: "ns", Name: "a"}, UID: "a", Names: "one\nns/a"}
	table.SetDeployment(d)
	m, _ := table.Lookup("one")
	if m.Routing() != nil || m.DisplayName() != "one" {
		t.Errorf("%+v, shown as %s", m.Routing(), m.DisplayName())
	}
	d.Routing, d.Names = &route.Routing{Fallbacks: []string{"b"}}, "ns/a"
	table.SetDeployment(d)
	if m.Routing() == nil || m.DisplayName() != "ns/a" {
		t.Errorf("%+v, shown as %s", m.Routing(), m.DisplayName())
	}
	d.Routing = &route.Routing{Fallbacks: []string{"c"}}
	table.SetDeployment(d)
	if m.Routing().Fallbacks[0] != "c" {
		t.Errorf("%+v", m.Routing())
	}
}
