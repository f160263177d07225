package controllers

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAttackManyReplicasThatRepeatALargeSpec: the cache has each large part once, and every object
// as it was stored.
func TestAttackManyReplicasThatRepeatALargeSpec(t *testing.T) {
	const many = 1000
	replica := func(deployment string) *v1alpha1.ModelReplica {
		r := &v1alpha1.ModelReplica{}
		for i := range 20 {
			r.Spec.Model.Files = append(r.Spec.Model.Files, model.File{Path: fmt.Sprintf("%s-%05d-of-00020.safetensors", deployment, i), Bytes: int64(i)})
		}
		r.Spec.ChatTemplate, r.Spec.SharedPrefixes = strings.Repeat(deployment, 2000), []string{strings.Repeat("p"+deployment, 500)}
		expression := v1alpha1.NodeSelectorRequirement{Key: "room", Operator: corev1.NodeSelectorOpNotIn}
		for i := range 32 {
			expression.Values = append(expression.Values, fmt.Sprint(deployment, i))
		}
		r.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{
			NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{expression, expression}}}}}}
		return r
	}
	assignment := func(of *v1alpha1.ModelReplica) *v1alpha1.MacAssignment {
		a := &v1alpha1.MacAssignment{}
		a.Spec.Assignments = []v1alpha1.Assignment{{Model: of.Spec.Model, ChatTemplate: of.Spec.ChatTemplate, SharedPrefixes: of.Spec.SharedPrefixes}}
		return a
	}
	var texts []string
	for _, name := range []string{"a", "b"} {
		for _, o := range []any{replica(name), assignment(replica(name))} {
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(b))
		}
	}
	p := newParts()
	kept := make([]any, 0, 4*many)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range many {
		for i, text := range texts {
			o := any(&v1alpha1.ModelReplica{})
			if i%2 == 1 {
				o = &v1alpha1.MacAssignment{}
			}
			if err := json.Unmarshal([]byte(text), o); err != nil {
				t.Fatal(err)
			}
			o, err := p.share(o)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, o)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / (4 * many); each > 1800 {
		t.Errorf("%d bytes for each object, want at most 1,800", each)
	}
	for i, o := range kept {
		if b, err := json.Marshal(o); err != nil || string(b) != texts[i%4] {
			t.Fatalf("an object of the cache is %s, and was %s (%v)", b, texts[i%4], err)
		}
	}
}
