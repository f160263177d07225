package engine

import (
	"reflect"
	"testing"

	"metalfleet.dev/metalfleet/metal/sample"
)

// TestGeneratedTokensAreCountedForPenaltiesOnly: each distinct one takes 18 bytes.
func TestGeneratedTokensAreCountedForPenaltiesOnly(t *testing.T) {
	p := tinyInput(t)
	for name, c := range map[string]struct {
		set  func(*sample.Params)
		want bool
	}{
		"none":       {set: func(*sample.Params) {}},
		"frequency":  {set: func(p *sample.Params) { p.FrequencyPenalty = 0.5 }, want: true},
		"presence":   {set: func(p *sample.Params) { p.PresencePenalty = -0.5 }, want: true},
		"repetition": {set: func(p *sample.Params) { p.RepetitionPenalty = 1.5 }, want: true},
	} {
		params := sample.Greedy()
		c.set(&params)
		s, refusal := p.sequenceOf(t.Context(), Request{Tokens: []int32{5, 6}, Sampling: &params, MaxTokens: 8})
		if refusal != nil {
			t.Fatal(refusal)
		}
		before := reflect.ValueOf(s.counts).FieldByName("n").Len()
		(&loop{shared: new(shared)}).accept(s, sampled{token: 9}, true)
		if counted := reflect.ValueOf(s.counts).FieldByName("n").Len() > before; counted != c.want {
			t.Errorf("%s: counted %v, want %v", name, counted, c.want)
		}
	}
}
