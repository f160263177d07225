package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestARequestThatEndsEnginesIsGivenUp: its client gets the reason, also where another replica,
// or another deployment, could still be tried, and if others refused it before.
func TestARequestThatEndsEnginesIsGivenUp(t *testing.T) {
	busy, ended := openai.RateLimited(time.Second), &openai.Error{Status: 502, Code: agentapi.CodeEngineLost}
	replicas := []string{"r1", "r2", "r3", "r4", "r5"}
	for name, c := range map[string]struct {
		candidates []*route.Model
		first      *openai.Error
		sent       int
	}{
		"at replicas of one deployment": {candidates: []*route.Model{newModel(replicas...)}, sent: 2},
		"at two deployments":            {candidates: []*route.Model{newModel("a"), newModel("b"), newModel("c")}, sent: 2},
		"after a replica was busy":      {candidates: []*route.Model{newModel(replicas...)}, first: busy, sent: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := New(Config{Queue: fairqueue.Limits{Count: 10, Bytes: 1 << 30, Age: 5 * time.Minute}, KeepAlive: time.Minute, Registry: prometheus.NewRegistry()})
				r := &Request{Candidates: c.candidates, Log: logr.Discard, Client: patient{}}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				refusal, sent := c.first, 0
				for {
					lease, err := d.Acquire(ctx, r)
					if err != nil {
						var e *openai.Error
						if !errors.As(err, &e) || e.Code != agentapi.CodeEngineLost {
							t.Errorf("the client gets %v", err)
						}
						break
					}
					sent++
					if refusal == nil {
						refusal = ended
					}
					lease.Release()
					lease.Failed(&Failure{Reason: ReasonRefused, Err: refusal, Refusal: refusal})
					refusal = nil
				}
				if sent != c.sent {
					t.Errorf("it was sent to %d replicas, want %d", sent, c.sent)
				}
			})
		})
	}
}
