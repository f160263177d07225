//go:build !race

package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// fill sets every field of a value, with one element in each list and map.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.String:
		v.SetString("a")
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	default:
		panic("a placement has no " + v.Kind().String())
	}
}

// changed calls f once for each field under v, with a change of it, and reverts the change.
func changed(v reflect.Value, name string, f func(name string)) {
	before := reflect.New(v.Type()).Elem()
	before.Set(v)
	try := func(after reflect.Value) {
		v.Set(after)
		f(name)
		v.Set(before)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			changed(v.Field(i), name+"."+v.Type().Field(i).Name, f)
		}
		return
	case reflect.Pointer:
		changed(v.Elem(), name, f)
	case reflect.Slice:
		changed(v.Index(0), name+"[0]", f)
		try(reflect.AppendSlice(before, before))
	case reflect.Map:
		other := reflect.MakeMap(v.Type())
		other.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("w"))
		try(other)
	case reflect.String:
		try(reflect.ValueOf("b").Convert(v.Type()))
		return
	default:
		try(reflect.ValueOf(2).Convert(v.Type()))
		return
	}
	try(reflect.Zero(v.Type()))
}

// TestReplicasOfAClassHaveTheSamePlacement: a change of any field makes another class.
func TestReplicasOfAClassHaveTheSamePlacement(t *testing.T) {
	var a, b v1alpha1.ModelReplica
	fill(reflect.ValueOf(&a.Spec.Placement).Elem())
	fill(reflect.ValueOf(&b.Spec.Placement).Elem())
	n := 0
	changed(reflect.ValueOf(&b.Spec.Placement).Elem(), "placement", func(name string) {
		n++
		if sameClass(&a, &b) || sameClass(&b, &a) {
			t.Errorf("a change of %s makes no other class", name)
		}
	})
	if !sameClass(&a, &b) || n < 30 {
		t.Errorf("equal placements make one class: %v; %d changes", sameClass(&a, &b), n)
	}
	a.Spec.Placement, b.Spec.Placement = v1alpha1.PlacementSpec{}, v1alpha1.PlacementSpec{NodeSelector: map[string]string{}, Chips: []string{}, Tolerations: []v1alpha1.Toleration{}}
	if !sameClass(&a, &b) {
		t.Error("absent and empty lists make two classes")
	}
}

// BenchmarkSameClass compares replicas with an affinity of 30 KB, as a pass does for each open one.
func BenchmarkSameClass(b *testing.B) {
	of := func() *v1alpha1.ModelReplica {
		var r v1alpha1.ModelReplica
		var term v1alpha1.NodeSelectorTerm
		for i := range 14 {
			e := v1alpha1.NodeSelectorRequirement{Key: fmt.Sprint("k", i), Operator: "NotIn"}
			for j := range 32 {
				e.Values = append(e.Values, fmt.Sprint(strings.Repeat("x", 50), j))
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		r.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{NodeSelectorTerms: slices.Clone([]v1alpha1.NodeSelectorTerm{term})}}}
		return &r
	}
	one, other := of(), of()
	b.Run("fields", func(b *testing.B) {
		for b.Loop() {
			if !sameClass(one, other) {
				b.Fatal("they differ")
			}
		}
	})
	b.Run("reflection", func(b *testing.B) {
		for b.Loop() {
			if !equality.Semantic.DeepEqual(one.Spec.Placement, other.Spec.Placement) {
				b.Fatal("they differ")
			}
		}
	})
}
