//go:build !race

package system

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// outageLasts is how long operator and API server are away: longer than the 30 s
// after which a Mac counts as silent.
const outageLasts = 35 * time.Second

func ready(r v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
}

func (s *suite) engineKilled(t *testing.T) {
	md := s.deploy(t, fleet.Model{Name: "fragile", File: "slow.gguf", MaxTokens: slowContext})
	s.waitReady(t, md, 1)
	replica := s.replicas(t, md, 1)[0]
	engine := s.engineOf(t, replica)
	seen := s.record(t, "default")
	answer := s.stream(t, "fragile", slowContext-200)
	must(t, engine.Kill())
	broken(t, answer)
	eventually(t, replica.Name+" serves with a new engine", func(ctx context.Context) error {
		now := replica.DeepCopy()
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(now), now); err != nil {
			return err
		}
		if !ready(*now) || now.Status.Restarts < 1 || engine.Alive() {
			return fmt.Errorf("%d restarts; %s", now.Status.Restarts, sentences(now.Status.Conditions))
		}
		return nil
	})
	seen.want(t, replica.Name, "not ready", func(r v1alpha1.ModelReplica) bool { return !ready(r) })
	if _, err := s.ask(t.Context(), "fragile", false); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	s.remove(t, md)
}

// broken wants a stream to end with an error that a client understands.
func broken(t *testing.T, s *fleet.Stream) *openai.Error {
	t.Helper()
	answer, err := end(t, s)
	var typed *openai.Error
	if !errors.As(err, &typed) || typed.Code == "" || typed.Message == "" {
		t.Fatalf("the stream ended with %v, want a typed error", err)
	}
	if answer.Finish != "" {
		t.Errorf("a broken stream has the finish reason %q", answer.Finish)
	}
	return typed
}

func (s *suite) agentKilled(t *testing.T) {
	md := s.deploy(t, fleet.Model{Name: "adopted", File: "slow.gguf"})
	s.waitReady(t, md, 1)
	replica := s.replicas(t, md, 1)[0]
	engine := s.engineOf(t, replica)
	before := s.node(t, replica.Spec.NodeName)
	must(t, s.Agent(before.Name).Kill())
	if !engine.Alive() {
		t.Fatal("the engine died with its agent")
	}
	must(t, s.Agent(before.Name).Start())
	took := eventually(t, "the Mac answers again", func(ctx context.Context) error {
		_, err := s.ask(ctx, "adopted", false)
		return err
	})
	t.Logf("Mac %s answered after %s", before.Name, took)
	if !engine.Alive() || s.engineOf(t, replica).PID != engine.PID {
		t.Errorf("the engine was not adopted: %d lives: %v", engine.PID, engine.Alive())
	}
	// It answers before it has written its first status.
	var after *v1alpha1.MacNode
	eventually(t, "the new agent of "+before.Name+" writes its status", func(context.Context) error {
		if after = s.node(t, before.Name); after.Status.BootID == before.Status.BootID {
			return fmt.Errorf("boot %s still", after.Status.BootID)
		}
		return nil
	})
	if len(after.Status.Reclaims) != len(before.Status.Reclaims) {
		t.Errorf("reclaims %d, then %d", len(before.Status.Reclaims), len(after.Status.Reclaims))
	}
	if now := s.replicas(t, md, 1)[0]; now.UID != replica.UID || now.Status.Restarts != 0 {
		t.Errorf("replica %s has %d restarts, was %s", now.Name, now.Status.Restarts, replica.Name)
	}
	s.remove(t, md)
}

func (s *suite) namespaceDeleted(t *testing.T) {
	ns := s.namespace(t, "tenant")
	md := s.deploy(t, fleet.Model{Namespace: "tenant", Name: "tenants"})
	s.waitReady(t, md, 1)
	engine := s.engineOf(t, s.replicas(t, md, 1)[0])
	s.remove(t, ns)
	if engine.Alive() {
		t.Errorf("engine %d lives", engine.PID)
	}
}

// deadMac deletes a namespace with a replica whose Mac is dead: the replica stays
// until the deletion of the MacNode fences it, the bytes that it freed are then
// unknown, and the namespace ends.
func (s *suite) deadMac(t *testing.T) {
	ns := s.namespace(t, "bereaved")
	md := s.deploy(t, fleet.Model{Namespace: "bereaved", Name: "orphan", Chips: []string{"M4"}})
	s.waitReady(t, md, 1)
	replica := s.replicas(t, md, 1)[0]
	seen := s.record(t, "bereaved")
	must(t, s.Agent(small).Kill())
	must(t, s.Client.Delete(t.Context(), ns))
	eventually(t, "the replica has to drain", func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(&replica), &replica); err != nil {
			return err
		}
		if replica.DeletionTimestamp.IsZero() || replica.Spec.Desired != v1alpha1.DesiredDrained {
			return fmt.Errorf("desired %s, deleted at %v", replica.Spec.Desired, replica.DeletionTimestamp)
		}
		return nil
	})
	s.stays(t, 2*time.Second, "released before its Mac is fenced", "false", func() string {
		now := replica.DeepCopy()
		if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			return err.Error()
		}
		return fmt.Sprint(meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionReleased))
	})
	must(t, s.Client.Delete(t.Context(), s.node(t, small)))
	s.waitGone(t, &replica)
	s.waitGone(t, ns)
	seen.want(t, replica.Name, "released, with an indeterminate amount", func(r v1alpha1.ModelReplica) bool {
		return r.Status.Freed.HostCheck == v1alpha1.HostCheckIndeterminate && r.Status.Freed.Bytes == nil &&
			meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReleased)
	})
	if err := s.Agent(small).Sweep(t.Context()); err != nil {
		t.Error(err)
	}
}

// stays wants the same to be seen for as long as a mistaken operator would need to
// change it.
func (s *suite) stays(t *testing.T, long time.Duration, what, want string, look func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < long; <-tick.C {
		if now := look(); now != want {
			t.Fatalf("%s: %s, want %s", what, now, want)
		}
	}
}

// look describes what must be the same after an outage as before: the replicas of
// the model with their Macs, the engines, and the number of reclaims.
func (s *suite) look(t *testing.T) string {
	t.Helper()
	all, err := s.replicasOf(t.Context(), s.slow)
	must(t, err)
	replicas := map[string]string{}
	for _, r := range all {
		replicas[string(r.UID)] = r.Spec.NodeName
	}
	text := fmt.Sprint(replicas)
	for _, name := range []string{middle, large} {
		text += fmt.Sprint(" ", name, s.pids(t, name), len(s.node(t, name).Status.Reclaims))
	}
	return text
}

// outage stops operator and API server under load; meanwhile an agent dies and
// comes back, with nothing but its journal.
func (s *suite) outage(t *testing.T) {
	before := s.look(t)
	engines := s.pids(t, middle)
	must(t, s.Operator.Stop(t.Context()))
	must(t, s.Env.StopAPIServer())
	began := time.Now()
	question := fleet.Question{Model: "slow", MaxTokens: 8}
	streamed := question
	streamed.Stream = true
	load := s.StartLoad(t.Context(), fleet.LoadOptions{Clients: []fleet.Question{question, streamed}, Pause: 200 * time.Millisecond})
	must(t, s.Agent(middle).Kill())
	must(t, s.Agent(middle).Start())
	eventually(t, "the outage has lasted long enough", func(context.Context) error {
		if time.Since(began) < outageLasts {
			return errors.New("not yet")
		}
		return nil
	})
	if got := s.pids(t, middle); fmt.Sprint(got) != fmt.Sprint(engines) {
		t.Errorf("engines of %s are %v, were %v", middle, got, engines)
	}
	must(t, s.Env.StartAPIServer(t.Context()))
	must(t, s.Operator.Start(t.Context()))
	for _, name := range []string{middle, large} {
		must(t, s.WaitMacReady(t.Context(), name))
	}
	s.waitReady(t, s.slow, 2)
	s.stays(t, 3*time.Second, "the fleet after the outage", before, func() string { return s.look(t) })
	requests := load.End()
	if err := fleet.WantWhole(requests); err != nil || len(requests) < 20 {
		t.Errorf("during the outage: %s: %v", fleet.Summary(requests), err)
	}
}

// unreachable: a Mac whose agent advertises an address at which nothing listens joins, and
// gets no replica.
func (s *suite) unreachable(t *testing.T) {
	const walled = "walled"
	must(t, s.Add(t.Context(), fleet.Mac{Name: walled, Chip: "M4", Memory: "16Gi", Flags: []string{"--advertise=127.0.0.1:1"}}))
	must(t, s.WaitMac(t.Context(), walled, "no gateway reaches it", time.Minute, func(mac *v1alpha1.MacNode) error {
		return errors.Join(wantCondition(mac.Status.Conditions, v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonMacUnreachable, "127.0.0.1:1"),
			wantCondition(mac.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReporting, ""))
	}))
	if err := wantCondition(s.node(t, large).Status.Conditions, v1alpha1.ConditionReachable, metav1.ConditionTrue, v1alpha1.ReasonReached, ""); err != nil {
		t.Error(err)
	}
	md := s.deploy(t, fleet.Model{Name: "walled", Mac: walled})
	eventually(t, "nothing is placed there", func(ctx context.Context) error {
		replica, err := s.Replica(ctx, md.Name)
		if err != nil {
			return err
		}
		return wantCondition(replica.Status.Conditions, v1alpha1.ConditionPlaced, metav1.ConditionFalse, "", "not reachable by any gateway")
	})
	s.remove(t, md)
	must(t, s.Agent(walled).Stop(t.Context()))
	must(t, s.Client.Delete(t.Context(), s.node(t, walled)))
}

// wantCondition compares a condition; an empty reason or part of the message is any.
func wantCondition(all []metav1.Condition, kind string, want metav1.ConditionStatus, reason, part string) error {
	c := meta.FindStatusCondition(all, kind)
	if c == nil || c.Status != want || reason != "" && c.Reason != reason || !strings.Contains(c.Message, part) {
		return fmt.Errorf("%s is %+v, want %s %s with %q", kind, c, want, reason, part)
	}
	return nil
}
