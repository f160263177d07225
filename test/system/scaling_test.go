//go:build stories

package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// TestScaling has a deployment scale itself: to zero, from zero by a request that
// waits and is served, up under load, down again while the operator is killed, and
// to zero. No stream is cut, and no request refused.
func TestScaling(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	s := &scaling{world: start(t, fleet.Options{Macs: []fleet.Mac{
		{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}, {Name: "macbook", Chip: "M4Max", Memory: "64Gi"}, {Name: "mini", Chip: "M4", Memory: "16Gi"},
	}}, models())}
	s.md = s.deploy(t, fleet.Model{Name: "chat", File: "slow.gguf", MaxTokens: slowContext, DrainSeconds: 120}, func(spec *v1alpha1.ModelDeploymentSpec) {
		spec.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: ptr.To[int32](0), MaxReplicas: 3, TargetConcurrency: 2,
			ScaleDownDelaySeconds: ptr.To[int32](10), ScaleToZeroDelaySeconds: ptr.To[int32](10)}
	})
	sequence(t,
		step{name: "the first replica starts without a request", do: func(t *testing.T) { s.hasScaled(t, 1) }},
		step{name: "to zero", do: func(t *testing.T) { s.hasScaled(t, 0) }},
		step{name: "from zero", do: s.fromZero},
		step{name: "six streams: up to three", do: s.up},
		step{name: "one stream, and the operator is killed: down to one", do: s.down},
		step{name: "to zero again", do: func(t *testing.T) { s.hasScaled(t, 0) }},
		step{name: "an Event for each direction and reason", do: func(t *testing.T) {
			for _, reason := range []string{"(Idle)", "(FromZero)", "(Demand)", "(LowDemand)"} {
				s.wantEvent(t, "ModelDeployment", "chat", "Scaled", reason)
			}
		}},
	)
	must(t, s.Failed())
}

type scaling struct {
	*world
	md *v1alpha1.ModelDeployment
}

// hasScaled waits until n replicas are wanted, exist and serve.
func (s *scaling) hasScaled(t *testing.T, n int32) {
	t.Helper()
	last := ""
	eventually(t, fmt.Sprintf("%d replicas are ready", n), func(ctx context.Context) error {
		md, err := s.read(ctx, s.md)
		if err != nil {
			return err
		}
		a := md.Status.Autoscaling
		if a == nil {
			return errors.New("no decision")
		}
		now := fmt.Sprintf("%d wanted, %d of %d ready (%s %s)", a.DesiredReplicas, md.Status.ReadyReplicas, md.Status.Replicas, a.Reason, a.Message)
		if now != last {
			t.Log(now)
		}
		if last = now; a.DesiredReplicas != n || md.Status.ReadyReplicas != n || md.Status.Replicas != n {
			return errors.New(now)
		}
		return nil
	})
}

// fromZero sends one request that finds no replica: it waits, gets an estimate of
// its waiting time, and is answered.
func (s *scaling) fromZero(t *testing.T) {
	began := time.Now()
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(`{"model":"chat","max_tokens":8,"messages":[{"role":"user","content":"Hello"}]}`)))
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the first request found no replica and got %s %s (%v)", resp.Status, text, err)
	}
	eta := resp.Header.Get(agentapi.HeaderQueueETA)
	if n, err := strconv.Atoi(eta); err != nil || n < 1 {
		t.Errorf("the estimate of its waiting time is %q", eta)
	}
	t.Logf("answered after %.1f s; the estimate was %s s", time.Since(began).Seconds(), eta)
}

// streams starts a load of long streams.
func (s *scaling) streams(t *testing.T, n int) *fleet.Load {
	t.Helper()
	clients := make([]fleet.Question, n)
	for i := range clients {
		clients[i] = fleet.Question{Model: "chat", Stream: true, MaxTokens: 1200}
	}
	load := s.StartLoad(t.Context(), fleet.LoadOptions{Clients: clients, Limit: patience})
	t.Cleanup(func() { load.End() })
	return load
}

func (s *scaling) up(t *testing.T) {
	six := s.streams(t, 6)
	s.hasScaled(t, 3)
	wantWhole(t, six)
}

func (s *scaling) down(t *testing.T) {
	one := s.streams(t, 1)
	must(t, s.Operator.Kill())
	must(t, s.Operator.Start(t.Context()))
	s.hasScaled(t, 1)
	wantWhole(t, one)
}
