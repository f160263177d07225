//go:build !race

package fleet_test

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// Every field of a deployment's spec, by its path, with a value that differs from the
// initial one. A field that is in neither list fails the test: a new field must be
// classified as part of the engine or not.
var (
	makesAnother = map[string]func(*v1alpha1.ModelDeploymentSpec){
		"Model.Source": func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "hf://other/name" },
		"Adapters": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Adapters = []v1alpha1.AdapterSpec{{Name: "one", Source: "hf://o/one"}}
		},
		"Model.Revision": func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Revision = "v2" },
		"Model.Files":    func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Files = []string{"*Q8_0.gguf"} },
		"Model.HuggingFace": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Model.HuggingFace = "", &v1alpha1.HuggingFaceSource{Repo: "o/n", Revision: "v2"}
		},
		"Model.S3": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Model.S3 = "", &v1alpha1.S3Source{Bucket: "b"}
		},
		"Model.OCI": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Model.OCI = "", &v1alpha1.OCISource{Reference: "r.example/m:v1"}
		},
		"Model.HTTPS": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Model.HTTPS = "", &v1alpha1.HTTPSSource{URL: "https://h/m.gguf"}
		},
		"Model.Local": func(s *v1alpha1.ModelDeploymentSpec) {
			s.Model.Source, s.Model.Local = "", &v1alpha1.LocalSource{Path: "m.gguf"}
		},
		"Model.SHA256":                  func(s *v1alpha1.ModelDeploymentSpec) { s.Model.SHA256 = "00ff" },
		"Context.MaxTokens":             func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 },
		"Context.MaxConcurrentRequests": func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxConcurrentRequests = 2 },
		"Context.KVCacheTokens":         func(s *v1alpha1.ModelDeploymentSpec) { s.Context.KVCacheTokens = 20000 },
		"Memory.Limit":                  func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = ptr.To(resource.MustParse("40Gi")) },
		// The presence of a cache on disk reserves memory; its size does not.
		"PrefixCache.DiskLimit":      func(s *v1alpha1.ModelDeploymentSpec) { s.PrefixCache.DiskLimit = ptr.To(resource.MustParse("1Gi")) },
		"Rollout.RestartedAt":        func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.RestartedAt = ptr.To(metav1.Unix(1_800_000_000, 0)) },
		"PrefixCache.SharedPrefixes": func(s *v1alpha1.ModelDeploymentSpec) { s.PrefixCache.SharedPrefixes = []string{"You are helpful."} },
		"Sampling":                   func(s *v1alpha1.ModelDeploymentSpec) { s.Sampling.Temperature = "0.7" },
		"ChatTemplate":               func(s *v1alpha1.ModelDeploymentSpec) { s.ChatTemplate = "{{ messages }}" },
	}
	makesNone = map[string]func(*v1alpha1.ModelDeploymentSpec){
		"Model.SecretRef": func(s *v1alpha1.ModelDeploymentSpec) { s.Model.SecretRef = &v1alpha1.SecretReference{Name: "token"} },
		// What the profile holds is judged with it, see profile_test.go.
		"ProfileName":   func(s *v1alpha1.ModelDeploymentSpec) { s.ProfileName = "large" },
		"Prefetch.Macs": func(s *v1alpha1.ModelDeploymentSpec) { s.Prefetch.Macs = 3 },
		"ReplicaMetadata.Labels": func(s *v1alpha1.ModelDeploymentSpec) {
			s.ReplicaMetadata.Labels = map[string]v1alpha1.MetadataValue{"a": "b"}
		},
		"ReplicaMetadata.Annotations": func(s *v1alpha1.ModelDeploymentSpec) {
			s.ReplicaMetadata.Annotations = map[string]v1alpha1.MetadataValue{"a": "b"}
		},
		"ServedNames":                     func(s *v1alpha1.ModelDeploymentSpec) { s.ServedNames = []string{"chat"} },
		"Suspend":                         func(s *v1alpha1.ModelDeploymentSpec) { s.Suspend = true },
		"Replicas":                        func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](7) },
		"Residency":                       func(s *v1alpha1.ModelDeploymentSpec) { s.Residency.Policy = v1alpha1.ResidencyOnDemand },
		"Placement":                       func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.Chips = []string{"M4Max"} },
		"PriorityClassName":               func(s *v1alpha1.ModelDeploymentSpec) { s.PriorityClassName = "high" },
		"Rollout.MaxSurge":                func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.MaxSurge = ptr.To(intstr.FromInt32(2)) },
		"Rollout.MaxUnavailable":          func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.MaxUnavailable = ptr.To(intstr.FromInt32(2)) },
		"Rollout.OnInsufficientMemory":    func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.OnInsufficientMemory = "Wait" },
		"Rollout.DrainSeconds":            func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.DrainSeconds = ptr.To[int32](7) },
		"Rollout.ProgressDeadlineSeconds": func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.ProgressDeadlineSeconds = ptr.To[int32](7) },
		"Rollout.Paused":                  func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.Paused = true },
		"Rollout.RetryGeneration":         func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.RetryGeneration = 3 },
		"Autoscaling":                     func(s *v1alpha1.ModelDeploymentSpec) { s.Autoscaling = &v1alpha1.AutoscalingSpec{} },
		"Routing":                         func(s *v1alpha1.ModelDeploymentSpec) { s.Routing.Fallbacks = []string{"other"} },
		"RevisionHistoryLimit":            func(s *v1alpha1.ModelDeploymentSpec) { s.RevisionHistoryLimit = ptr.To[int32](2) },
	}
)

func TestEveryFieldOfTheSpecMakesAnotherEngineOrNone(t *testing.T) {
	record := fleettest.Model("hf://o/n", "m", 98_000_000)
	record.Format = model.FormatSafetensors // as adapters need
	hash := func(change func(*v1alpha1.ModelDeploymentSpec)) string {
		t.Helper()
		spec := v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "hf://o/n"}}
		if change != nil {
			change(&spec)
		}
		e, refusal := fleet.Resolve(&spec, record)
		if refusal != nil {
			t.Fatal(refusal)
		}
		out, err := e.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	base := hash(nil)
	known := map[string]bool{}
	for field, change := range makesAnother {
		known[field] = true
		if hash(change) == base {
			t.Errorf("%s is changed, and the engine is the same", field)
		}
	}
	for field, change := range makesNone {
		known[field] = true
		if hash(change) != base {
			t.Errorf("%s is changed, and every engine would be replaced", field)
		}
	}
	unclassified(t, reflect.TypeFor[v1alpha1.ModelDeploymentSpec](), "", known)
	for field := range known {
		t.Errorf("the spec has no field %s", field)
	}
}

// unclassified walks a struct down to the known fields, and removes them from known.
func unclassified(t *testing.T, of reflect.Type, path string, known map[string]bool) {
	t.Helper()
	for f := range of.Fields() {
		name := path + f.Name
		switch {
		case known[name]:
			delete(known, name)
		case f.Type.Kind() == reflect.Struct:
			unclassified(t, f.Type, name+".", known)
		default:
			t.Errorf("%s is not classified: add it to makesAnother or makesNone", name)
		}
	}
}

// The part of a spec that a revision stores gives the same engine again, regardless of
// later changes of the spec.
func TestAnUndoWritesWhatMadeTheEngine(t *testing.T) {
	record := fleettest.Model("hf://o/n", "m", 98_000_000)
	record.Format = model.FormatSafetensors // as adapters need
	for field, change := range makesAnother {
		spec := v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "hf://o/n", SecretRef: &v1alpha1.SecretReference{Name: "token"}}}
		change(&spec)
		text, err := fleet.SpecOf(&spec, nil).Encode()
		if err != nil {
			t.Fatal(err)
		}
		kept, err := fleet.DecodeSpec(string(text))
		if err != nil {
			t.Fatal(err)
		}
		other := v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "hf://x/y", Revision: "z"}, Replicas: ptr.To[int32](4)}
		other.PrefixCache.DiskLimit, other.Memory.Limit, other.Context.MaxTokens = ptr.To(resource.MustParse("3Gi")), ptr.To(resource.MustParse("50Gi")), 100
		kept.WriteTo(&other)
		before, refusal := fleet.Resolve(&spec, record)
		if refusal != nil {
			t.Fatal(refusal)
		}
		after, refusal := fleet.Resolve(&other, record)
		if refusal != nil {
			t.Fatal(refusal)
		}
		a, _ := before.Hash()
		b, _ := after.Hash()
		if a != b || *other.Replicas != 4 || other.Model.SecretRef == nil {
			t.Errorf("%s: %+v became %+v", field, spec, other)
		}
	}
	if _, err := fleet.DecodeSpec("{"); err == nil {
		t.Error("half a spec is read")
	}
}
