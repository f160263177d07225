package server

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/wire"
)

// obey applies the policy of a deployment to a request: it fills what the request leaves
// out, shortens an answer that would be longer than the limit, and refuses a temperature
// above the limit, which would change what is answered. A nil policy does nothing.
func obey(p *wire.SamplingPolicy, r *wire.GenerateRequest) *engine.Refusal {
	if p == nil {
		return nil
	}
	if r.Sampling == nil {
		r.Sampling = &wire.Sampling{}
	}
	s := r.Sampling
	for _, f := range []struct {
		to   **float32
		from *float64
	}{{&s.Temperature, p.Temperature}, {&s.TopP, p.TopP}, {&s.MinP, p.MinP}, {&s.RepetitionPenalty, p.RepetitionPenalty}} {
		if *f.to == nil && f.from != nil {
			v := float32(*f.from)
			*f.to = &v
		}
	}
	if s.TopK == nil {
		s.TopK = p.TopK
	}
	if r.MaxTokens == 0 {
		r.MaxTokens = p.MaxTokens
	}
	if p.LimitTokens > 0 && (r.MaxTokens == 0 || r.MaxTokens > p.LimitTokens) {
		r.MaxTokens = p.LimitTokens
	}
	if p.LimitTemperature == nil {
		return nil
	}
	switch most := float32(*p.LimitTemperature); {
	case s.Temperature == nil && most < float32(sample.Neutral().Temperature):
		s.Temperature = &most
	case s.Temperature != nil && *s.Temperature > most:
		return &engine.Refusal{Kind: engine.Invalid, Param: "temperature",
			Message: fmt.Sprintf("temperature is %v, but this model allows at most %v; lower temperature", *s.Temperature, most)}
	}
	return nil
}
