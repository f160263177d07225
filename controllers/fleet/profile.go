package fleet

import (
	"cmp"
	"fmt"
	"strconv"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// WithProfile returns a spec with the settings of its profile, which apply to each field that
// the spec does not state; profile is the ModelProfile that the spec names, nil if there is
// none. With a refusal, the spec is returned as it is.
func WithProfile(spec *v1alpha1.ModelDeploymentSpec, profile *v1alpha1.ModelProfile) (*v1alpha1.ModelDeploymentSpec, *Refusal) {
	switch {
	case spec.ProfileName == "":
		return spec, nil
	case profile == nil:
		return spec, &Refusal{v1alpha1.ReasonProfileNotFound,
			"ModelProfile " + spec.ProfileName + " does not exist; `kubectl get modelprofile` lists the existing ones. Create it, or correct or remove spec.profileName"}
	}
	merged := *spec
	fillFrom(&merged, &profile.Spec)
	if conflict := conflictIn(&merged); conflict != "" {
		return spec, &Refusal{v1alpha1.ReasonProfileConflict,
			conflict + ", one stated by the deployment and one by ModelProfile " + profile.Name + "; state both in the deployment, or correct the profile"}
	}
	return &merged, nil
}

// fillFrom sets each field that a spec does not state to that of a profile.
func fillFrom(s *v1alpha1.ModelDeploymentSpec, p *v1alpha1.ModelProfileSpec) {
	s.Context = v1alpha1.ContextSpec{
		MaxTokens:             cmp.Or(s.Context.MaxTokens, p.Context.MaxTokens),
		MaxConcurrentRequests: cmp.Or(s.Context.MaxConcurrentRequests, p.Context.MaxConcurrentRequests),
		KVCacheTokens:         cmp.Or(s.Context.KVCacheTokens, p.Context.KVCacheTokens),
	}
	s.Sampling = v1alpha1.SamplingSpec{
		Temperature:       cmp.Or(s.Sampling.Temperature, p.Sampling.Temperature),
		TopP:              cmp.Or(s.Sampling.TopP, p.Sampling.TopP),
		TopK:              cmp.Or(s.Sampling.TopK, p.Sampling.TopK),
		MinP:              cmp.Or(s.Sampling.MinP, p.Sampling.MinP),
		RepetitionPenalty: cmp.Or(s.Sampling.RepetitionPenalty, p.Sampling.RepetitionPenalty),
		MaxTokens:         cmp.Or(s.Sampling.MaxTokens, p.Sampling.MaxTokens),
		Limits: v1alpha1.SamplingLimits{
			MaxTokens:   cmp.Or(s.Sampling.Limits.MaxTokens, p.Sampling.Limits.MaxTokens),
			Temperature: cmp.Or(s.Sampling.Limits.Temperature, p.Sampling.Limits.Temperature),
		},
	}
	s.ChatTemplate = cmp.Or(s.ChatTemplate, p.ChatTemplate)
	s.PrefixCache.DiskLimit = cmp.Or(s.PrefixCache.DiskLimit, p.PrefixCache.DiskLimit)
	if len(s.PrefixCache.SharedPrefixes) == 0 {
		s.PrefixCache.SharedPrefixes = p.PrefixCache.SharedPrefixes
	}
}

// conflictIn returns which two fields of a merged spec contradict each other; empty if none
// do. The schema checks the same within one object.
func conflictIn(s *v1alpha1.ModelDeploymentSpec) string {
	c, x := s.Context, s.Sampling
	hottest, hot := x.Limits.Temperature.Float(), x.Temperature.Float()
	switch {
	case c.KVCacheTokens > 0 && c.KVCacheTokens < c.MaxTokens:
		return fmt.Sprintf("context.kvCacheTokens is %d and lower than context.maxTokens, which is %d", c.KVCacheTokens, c.MaxTokens)
	case hottest != nil && hot != nil && *hot > *hottest:
		return "sampling.temperature is " + string(x.Temperature) + " and exceeds sampling.limits.temperature, which is " + string(x.Limits.Temperature)
	case x.Limits.MaxTokens > 0 && x.MaxTokens > x.Limits.MaxTokens:
		return "sampling.maxTokens is " + strconv.FormatInt(x.MaxTokens, 10) + " and exceeds sampling.limits.maxTokens, which is " + strconv.FormatInt(x.Limits.MaxTokens, 10)
	}
	return ""
}
