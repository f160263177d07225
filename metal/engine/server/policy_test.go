package server

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/wire"
)

// What a request states counts, what it leaves out is the policy's, and the limits hold.
func TestRequestsObeyThePolicyOfTheirDeployment(t *testing.T) {
	defaults := &wire.SamplingPolicy{Temperature: of(0.25), TopP: of(0.5), TopK: of(int32(40)), MinP: of(0.125), RepetitionPenalty: of(1.5), MaxTokens: 100}
	limits := &wire.SamplingPolicy{LimitTokens: 50, LimitTemperature: of(0.75)}
	full := &wire.Sampling{Temperature: of(float32(2)), TopP: of(float32(1)), TopK: of(int32(0)), MinP: of(float32(0)), RepetitionPenalty: of(float32(1))}
	for name, tc := range map[string]struct {
		policy  *wire.SamplingPolicy
		in      *wire.GenerateRequest
		want    *wire.GenerateRequest
		refused string
	}{
		"no policy": {in: &wire.GenerateRequest{MaxTokens: 7}, want: &wire.GenerateRequest{MaxTokens: 7}},
		"nothing is stated": {policy: defaults, in: &wire.GenerateRequest{}, want: &wire.GenerateRequest{MaxTokens: 100,
			Sampling: &wire.Sampling{Temperature: of(float32(0.25)), TopP: of(float32(0.5)), TopK: of(int32(40)), MinP: of(float32(0.125)), RepetitionPenalty: of(float32(1.5))}}},
		"everything is stated": {policy: defaults, in: &wire.GenerateRequest{MaxTokens: 7, Sampling: full}, want: &wire.GenerateRequest{MaxTokens: 7, Sampling: full}},
		"a part is stated": {policy: &wire.SamplingPolicy{Temperature: of(0.25), TopP: of(0.5)}, in: &wire.GenerateRequest{Sampling: &wire.Sampling{Temperature: of(float32(0)), Seed: of(int64(3))}},
			want: &wire.GenerateRequest{Sampling: &wire.Sampling{Temperature: of(float32(0)), TopP: of(float32(0.5)), Seed: of(int64(3))}}},
		"within the limits": {policy: limits, in: &wire.GenerateRequest{MaxTokens: 49, Sampling: &wire.Sampling{Temperature: of(float32(0.75))}},
			want: &wire.GenerateRequest{MaxTokens: 49, Sampling: &wire.Sampling{Temperature: of(float32(0.75))}}},
		"too long, and without a temperature": {policy: limits, in: &wire.GenerateRequest{MaxTokens: 51},
			want: &wire.GenerateRequest{MaxTokens: 50, Sampling: &wire.Sampling{Temperature: of(float32(0.75))}}},
		"without a length": {policy: limits, in: &wire.GenerateRequest{Sampling: &wire.Sampling{Temperature: of(float32(0))}},
			want: &wire.GenerateRequest{MaxTokens: 50, Sampling: &wire.Sampling{Temperature: of(float32(0))}}},
		"a limit above the neutral temperature": {policy: &wire.SamplingPolicy{LimitTemperature: of(1.5)}, in: &wire.GenerateRequest{}, want: &wire.GenerateRequest{Sampling: &wire.Sampling{}}},
		"too hot":                               {policy: limits, in: &wire.GenerateRequest{Sampling: &wire.Sampling{Temperature: of(float32(0.8))}}, refused: "temperature"},
	} {
		got := proto.Clone(tc.in).(*wire.GenerateRequest)
		refusal := obey(tc.policy, got)
		switch {
		case tc.refused != "":
			if refusal == nil || refusal.Param != tc.refused {
				t.Errorf("%s: refused with %v", name, refusal)
			}
		case refusal != nil:
			t.Errorf("%s: refused with %v", name, refusal)
		case !proto.Equal(got, tc.want):
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func of[T any](v T) *T { return &v }
