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

// TestOneMacsRefusalEndsNoWait: a request that one Mac refused for good, at once, waits for another that
// is full. It is sent to the first no more. Two Macs are believed.
func TestOneMacsRefusalEndsNoWait(t *testing.T) {
	for name, c := range map[string]struct {
		macs, full []string
		onlyMac    string
		by         string // the Mac that serves it
	}{
		"another is full":                 {macs: []string{"a", "b"}, full: []string{"b"}, by: "b"},
		"another one refused it, as well": {macs: []string{"a", "b", "c"}, full: []string{"c"}},
		"there is no other":               {macs: []string{"a"}},
		"it may use no other":             {macs: []string{"a", "b"}, full: []string{"b"}, onlyMac: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model, d := busyModel(c.macs...)
				d.keepAlive = time.Hour
				for _, mac := range c.full {
					for range slotsPerSequence * 2 {
						lease, err := d.Acquire(t.Context(), &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: "other", OnlyMac: mac})
						if err != nil {
							t.Fatal(err)
						}
						time.AfterFunc(20*time.Second, lease.Release)
					}
				}
				refusal, sent := &openai.Error{Status: 507}, map[string]int{}
				r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, OnlyMac: c.onlyMac}
				for {
					lease, err := d.Acquire(t.Context(), r)
					if err != nil {
						var e *openai.Error
						if c.by != "" || !errors.As(err, &e) || e.Status != refusal.Status {
							t.Errorf("the client gets %v", err)
						}
						break
					}
					lease.Release()
					if sent[lease.Mac]++; lease.Mac == c.by {
						break
					}
					lease.Failed(&Failure{Reason: ReasonRefused, Err: refusal, Refusal: refusal})
				}
				for mac, n := range sent {
					if n > 1 {
						t.Errorf("it was sent to %s %d times", mac, n)
					}
				}
			})
		})
	}
}
