package v1alpha1

import "strconv"

// Decimal is a number of at least 0 with up to 4 decimals, written as a string, for
// example "0.7".
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=8
// +kubebuilder:validation:Pattern=`^[0-9]{1,3}(\.[0-9]{1,4})?$`
type Decimal string

// Float returns the number, or nil if there is none.
func (d Decimal) Float() *float64 {
	v, err := strconv.ParseFloat(string(d), 64)
	if err != nil {
		return nil
	}
	return &v
}

// SamplingSpec sets how tokens are chosen where a request does not state it, and limits
// what a request may state. It has no effect on embedding models and rerankers.
// +kubebuilder:validation:XValidation:rule="!has(self.temperature) || double(self.temperature) <= 2.0",message="sampling.temperature must be from 0 to 2, for example \"0.7\""
// +kubebuilder:validation:XValidation:rule="!has(self.topP) || double(self.topP) <= 1.0",message="sampling.topP must be from 0 to 1, for example \"0.9\""
// +kubebuilder:validation:XValidation:rule="!has(self.minP) || double(self.minP) <= 1.0",message="sampling.minP must be from 0 to 1, for example \"0.05\""
// +kubebuilder:validation:XValidation:rule="!has(self.repetitionPenalty) || double(self.repetitionPenalty) >= 0.01 && double(self.repetitionPenalty) <= 100.0",message="sampling.repetitionPenalty must be from 0.01 to 100, for example \"1.1\""
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.limits.temperature) || !has(self.temperature) || double(self.temperature) <= double(self.limits.temperature)",message="sampling.temperature must not exceed sampling.limits.temperature"
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.limits.maxTokens) || !has(self.maxTokens) || self.maxTokens <= self.limits.maxTokens",message="sampling.maxTokens must not exceed sampling.limits.maxTokens"
type SamplingSpec struct {
	// temperature applies to requests that state none, from 0 (always the most
	// likely token) to 2, for example "0.7". Default: 1.
	// +optional
	Temperature Decimal `json:"temperature,omitempty"`
	// topP applies to requests that state no top_p: only the most likely tokens
	// whose probabilities add up to it are considered, from 0 to 1, for example
	// "0.9". Default: 1, which considers all.
	// +optional
	TopP Decimal `json:"topP,omitempty"`
	// topK applies to requests that state no top_k: only that many of the most
	// likely tokens are considered, for example 40. Default: 0, which considers
	// all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	TopK int32 `json:"topK,omitempty"`
	// minP applies to requests that state no min_p: tokens less likely than this
	// share of the most likely one are not considered, from 0 to 1, for example
	// "0.05". Default: 0, which considers all.
	// +optional
	MinP Decimal `json:"minP,omitempty"`
	// repetitionPenalty applies to requests that state no repetition_penalty.
	// More than 1 makes tokens that occurred before less likely, from 0.01 to
	// 100, for example "1.1". Default: 1.
	// +optional
	RepetitionPenalty Decimal `json:"repetitionPenalty,omitempty"`
	// maxTokens is the maximum length of an answer, in tokens, of requests that
	// state none, for example 1024. Default: as much as context.maxTokens leaves.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10485760
	MaxTokens int64 `json:"maxTokens,omitempty"`
	// limits restrict what requests may state.
	// +optional
	Limits SamplingLimits `json:"limits,omitzero"`
}

// SamplingLimits restrict what requests may state.
// +kubebuilder:validation:XValidation:rule="!has(self.temperature) || double(self.temperature) <= 2.0",message="sampling.limits.temperature must be from 0 to 2, for example \"1.2\""
type SamplingLimits struct {
	// maxTokens is the maximum length of any answer, in tokens, for example
	// 4096. Longer ones are cut there, with the finish reason length. Default:
	// no limit but context.maxTokens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10485760
	MaxTokens int64 `json:"maxTokens,omitempty"`
	// temperature is the highest temperature that a request may state, from 0 to
	// 2, for example "1.2". Requests with a higher one are refused. Default: no
	// limit.
	// +optional
	Temperature Decimal `json:"temperature,omitempty"`
}
