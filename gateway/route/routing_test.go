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
	for _, name := range []string{"a", "b", "c"} {
		table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Names: name})
	}
	table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "other", Name: "d"}, UID: "d", Names: "d"})
	for name, tc := range map[string]struct {
		routing *route.Routing
		point   uint64
		want    []string
	}{
		"no routing":                       {nil, 0, []string{"a"}},
		"within the split":                 {&route.Routing{Split: []route.Share{{"b", 10}}}, 0, []string{"b", "a"}},
		"its last point":                   {&route.Routing{Split: []route.Share{{"b", 50}}}, 1<<63 - 1, []string{"b", "a"}},
		"what is left stays":               {&route.Routing{Split: []route.Share{{"b", 50}}}, 1 << 63, []string{"a", "b"}},
		"the second part":                  {&route.Routing{Split: []route.Share{{"b", 25}, {"c", 25}}}, 1<<62 + 1<<61, []string{"c", "a", "b"}},
		"all of it":                        {&route.Routing{Split: []route.Share{{"b", 100}}}, math.MaxUint64, []string{"b", "a"}},
		"no part is none":                  {&route.Routing{Split: []route.Share{{"b", 0}}}, 0, []string{"a"}},
		"fallbacks come last":              {&route.Routing{Split: []route.Share{{"b", 10}}, Fallbacks: []string{"c"}}, math.MaxUint64, []string{"a", "b", "c"}},
		"each once":                        {&route.Routing{Split: []route.Share{{"b", 10}}, Fallbacks: []string{"c", "b"}}, 0, []string{"b", "a", "c"}},
		"who is not there":                 {&route.Routing{Split: []route.Share{{"x", 100}}, Fallbacks: []string{"y", "c"}}, 0, []string{"a", "c"}},
		"a name of another is none of its": {&route.Routing{Fallbacks: []string{"d"}}, 0, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "a"}, UID: "a", Names: "a", Routing: tc.routing})
			m, _ := table.Lookup("a")
			var got []string
			for _, o := range table.Order(m, tc.point) {
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
	d.Spec.Routing = v1alpha1.RoutingSpec{Split: []v1alpha1.RoutingShare{{Deployment: "c", Percent: 7}}, Sticky: v1alpha1.StickyNone, FallbackSeconds: ptr.To[int32](0)}
	if got := route.DeploymentOf(&d).Routing; got.Patience != 0 || got.Split[0] != (route.Share{Deployment: "c", Percent: 7}) || got.Sticky != "None" {
		t.Errorf("%+v", got)
	}
}

// TestARoutingThatChangesIsUsedAtOnce, also by who holds the model already.
func TestARoutingThatChangesIsUsedAtOnce(t *testing.T) {
	table := route.NewTable()
	d := route.Deployment{Key: route.Key{Namespace: "ns", Name: "a"}, UID: "a", Names: "one\nns/a"}
	table.SetDeployment(d)
	m, _ := table.Lookup("one")
	if m.Routing() != nil || m.Shown() != "one" {
		t.Errorf("%+v, shown as %s", m.Routing(), m.Shown())
	}
	d.Routing, d.Names = &route.Routing{Fallbacks: []string{"b"}}, "ns/a"
	table.SetDeployment(d)
	if m.Routing() == nil || m.Shown() != "ns/a" {
		t.Errorf("%+v, shown as %s", m.Routing(), m.Shown())
	}
	d.Routing = &route.Routing{Fallbacks: []string{"c"}}
	table.SetDeployment(d)
	if m.Routing().Fallbacks[0] != "c" {
		t.Errorf("%+v", m.Routing())
	}
}
