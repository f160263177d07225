//go:build !race

package fleet_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// profiled sets every field that a profile can hold.
func profiled() v1alpha1.ModelProfileSpec {
	return v1alpha1.ModelProfileSpec{
		Context: v1alpha1.ContextSpec{MaxTokens: 100, MaxConcurrentRequests: 2, KVCacheTokens: 400},
		Sampling: v1alpha1.SamplingSpec{Temperature: "0.2", TopP: "0.3", TopK: 4, MinP: "0.5", RepetitionPenalty: "0.6", MaxTokens: 7,
			Limits: v1alpha1.SamplingLimits{MaxTokens: 8, Temperature: "0.9"}},
		ChatTemplate: "profile",
		PrefixCache:  v1alpha1.PrefixCacheSpec{DiskLimit: ptr.To(resource.MustParse("1Gi")), SharedPrefixes: []string{"profile"}},
	}
}

// fieldsOf returns every leaf of a struct by its path.
func fieldsOf(v reflect.Value, path string, out map[string]reflect.Value) map[string]reflect.Value {
	for i := range v.NumField() {
		name := path + v.Type().Field(i).Name
		if f := v.Field(i); f.Kind() == reflect.Struct {
			fieldsOf(f, name+".", out)
		} else {
			out[name] = f
		}
	}
	return out
}

// Each field of a profile fills one that the spec does not state, and none that it states. A
// new field of a profile that is not merged fails here.
func TestAProfileFillsWhatTheSpecDoesNotState(t *testing.T) {
	profile := &v1alpha1.ModelProfile{Spec: profiled()}
	profile.Name = "p"
	leaves := fieldsOf(reflect.ValueOf(profiled()), "", map[string]reflect.Value{})
	merged, refusal := fleet.WithProfile(&v1alpha1.ModelDeploymentSpec{ProfileName: "p"}, profile)
	if refusal != nil {
		t.Fatal(refusal)
	}
	for name, want := range leaves {
		if want.IsZero() {
			t.Errorf("this test does not set %s of a profile", name)
		}
		if got := at(merged, name); !reflect.DeepEqual(got.Interface(), want.Interface()) {
			t.Errorf("%s is %v, want %v of the profile", name, got, want)
		}
	}
	own := v1alpha1.ModelDeploymentSpec{ProfileName: "p", ChatTemplate: "own",
		Context: v1alpha1.ContextSpec{MaxTokens: 101, MaxConcurrentRequests: 3, KVCacheTokens: 401},
		Sampling: v1alpha1.SamplingSpec{Temperature: "1.2", TopP: "0.13", TopK: 14, MinP: "0.15", RepetitionPenalty: "1.6", MaxTokens: 17,
			Limits: v1alpha1.SamplingLimits{MaxTokens: 18, Temperature: "1.9"}},
		PrefixCache: v1alpha1.PrefixCacheSpec{DiskLimit: ptr.To(resource.MustParse("2Gi")), SharedPrefixes: []string{"own"}}}
	kept, refusal := fleet.WithProfile(&own, profile)
	if refusal != nil || !reflect.DeepEqual(kept, &own) {
		t.Errorf("a spec that states everything became %+v (%v)", kept, refusal)
	}
}

func at(spec *v1alpha1.ModelDeploymentSpec, path string) reflect.Value {
	v := reflect.ValueOf(spec).Elem()
	for _, name := range strings.Split(path, ".") {
		v = v.FieldByName(name)
	}
	return v
}

// The schema judges one object at a time: what two of them state together is judged here.
func TestAProfileThatContradictsTheSpecIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		spec     v1alpha1.ModelDeploymentSpec
		sentence string
	}{
		"a request longer than the cache":    {v1alpha1.ModelDeploymentSpec{Context: v1alpha1.ContextSpec{MaxTokens: 500}}, "context.kvCacheTokens is 400 and lower than context.maxTokens, which is 500"},
		"a temperature above the limit":      {v1alpha1.ModelDeploymentSpec{Sampling: v1alpha1.SamplingSpec{Temperature: "1.1"}}, "sampling.temperature is 1.1"},
		"an answer longer than the limit":    {v1alpha1.ModelDeploymentSpec{Sampling: v1alpha1.SamplingSpec{MaxTokens: 9}}, "sampling.maxTokens is 9"},
		"a limit below the profile's answer": {v1alpha1.ModelDeploymentSpec{Sampling: v1alpha1.SamplingSpec{Limits: v1alpha1.SamplingLimits{MaxTokens: 6}}}, "sampling.limits.maxTokens, which is 6"},
	} {
		t.Run(name, func(t *testing.T) {
			profile := &v1alpha1.ModelProfile{Spec: profiled()}
			profile.Name, tc.spec.ProfileName = "p", "p"
			spec, refusal := fleet.WithProfile(&tc.spec, profile)
			if refusal == nil || refusal.Reason != v1alpha1.ReasonProfileConflict || !strings.Contains(refusal.Message, tc.sentence) || !strings.Contains(refusal.Message, "ModelProfile p") {
				t.Errorf("refusal %v, want one with %q", refusal, tc.sentence)
			}
			if !reflect.DeepEqual(spec, &tc.spec) {
				t.Errorf("it is refused and merged: %+v", spec)
			}
		})
	}
}

// An undo gives the engine of its revision, also if the profile has changed since.
func TestAPinnedSpecHasWhatItsProfileHad(t *testing.T) {
	profile := &v1alpha1.ModelProfile{Spec: profiled()}
	profile.Name = "p"
	spec := v1alpha1.ModelDeploymentSpec{ProfileName: "p", Sampling: v1alpha1.SamplingSpec{TopK: 3}}
	text, err := fleet.SpecOf(&spec, profile).Encode()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := fleet.DecodeSpec(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var restored v1alpha1.ModelDeploymentSpec
	stored.Pinned().WriteTo(&restored)
	want, _ := fleet.WithProfile(&spec, profile)
	if restored.ProfileName != "" || restored.Context != want.Context || restored.Sampling != want.Sampling || restored.ChatTemplate != want.ChatTemplate ||
		!reflect.DeepEqual(restored.PrefixCache.SharedPrefixes, want.PrefixCache.SharedPrefixes) || restored.PrefixCache.DiskLimit.Cmp(*want.PrefixCache.DiskLimit) != 0 {
		t.Errorf("pinned to %+v, want %+v", restored, want)
	}
	if stored.WriteTo(&restored); restored.ProfileName != "p" || restored.Sampling != spec.Sampling {
		t.Errorf("as it was written: %+v", restored)
	}
}
