package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// outageLasts is how long operator and API server are away.
const outageLasts = 60 * time.Second

func containsWords(s, words string) bool { return strings.Contains(s, words) }

func jsonBody(t *testing.T, v any) io.Reader {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

func ready(r v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
}

// onlyReplica is the one replica of a deployment.
func (s *suite) onlyReplica(t *testing.T, namespace, name string) v1alpha1.ModelReplica {
	t.Helper()
	all := s.replicasOf(t, namespace, name)
	if len(all) != 1 {
		t.Fatalf("%d replicas of %s, want 1", len(all), name)
	}
	return all[0]
}

// longAnswer begins a long streamed answer and returns once its first text is
// there; the channel tells how it ended.
func (s *suite) longAnswer(t *testing.T, model string) <-chan error {
	t.Helper()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		_, err := fleet.Ask(t.Context(), s.URL, fleet.Question{
			Model: model, Text: "Tell a long story", Stream: true, MaxTokens: slowContext - 200,
			OnText: func(string) {
				if first {
					first = false
					close(begun)
				}
			},
		})
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the long answer ended before it began: %v", err)
	case <-time.After(patience):
		t.Fatal("the long answer does not begin")
	}
	return ended
}

func (s *suite) engineKilled(t *testing.T) {
	md := s.deploy(t, "default", "fragile", source("slow.gguf"), tokens(slowContext))
	s.waitReady(t, "default", "fragile", 1)
	replica := s.onlyReplica(t, "default", "fragile")
	engine := s.engineOf(t, replica)
	seen := s.record(t, "default")
	answer := s.longAnswer(t, "fragile")
	if err := engine.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answer:
		var typed *openai.Error
		if !errors.As(err, &typed) || typed.Code == "" || typed.Message == "" {
			t.Errorf("the running request ended with %v, want a typed error", err)
		}
	case <-time.After(patience):
		t.Fatal("the running request does not end")
	}
	s.waitRestarted(t, replica, engine)
	seen.wait(t, replica.Name, "not ready", func(r v1alpha1.ModelReplica) bool { return !ready(r) })
	if _, err := s.ask(t.Context(), "fragile", false); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	s.remove(t, md)
}

// waitRestarted waits until a replica serves with another engine.
func (s *suite) waitRestarted(t *testing.T, replica v1alpha1.ModelReplica, old fleet.Engine) {
	t.Helper()
	eventually(t, replica.Name+" serves with a new engine", patience, func(ctx context.Context) error {
		now := replica.DeepCopy()
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(now), now); err != nil {
			return err
		}
		if !ready(*now) || now.Status.Restarts < 1 {
			return fmt.Errorf("%d restarts; %s", now.Status.Restarts, sentences(now.Status.Conditions))
		}
		engines, err := s.MacEngines(now.Spec.NodeName)
		if err != nil {
			return err
		}
		for _, e := range engines {
			if e.PID == old.PID {
				return fmt.Errorf("engine %d lives", old.PID)
			}
		}
		return nil
	})
}

func (s *suite) agentKilled(t *testing.T) {
	md := s.deploy(t, "default", "adopted", source("slow.gguf"))
	s.waitReady(t, "default", "adopted", 1)
	replica := s.onlyReplica(t, "default", "adopted")
	engine := s.engineOf(t, replica)
	before := s.mac(t, replica.Spec.NodeName)
	if err := s.KillAgent(before.Name); err != nil {
		t.Fatal(err)
	}
	if !engine.Alive() {
		t.Fatal("the engine died with its agent")
	}
	s.returns(t, before.Name, "adopted")
	if !engine.Alive() || s.engineOf(t, replica).PID != engine.PID {
		t.Errorf("the engine was not adopted: %d lives: %v", engine.PID, engine.Alive())
	}
	// It answers before it has written its first status.
	var after *v1alpha1.MacNode
	eventually(t, "the new agent of "+before.Name+" writes its status", patience, func(context.Context) error {
		if after = s.mac(t, before.Name); after.Status.BootID == before.Status.BootID {
			return fmt.Errorf("boot %s still", after.Status.BootID)
		}
		return nil
	})
	if len(after.Status.Reclaims) != len(before.Status.Reclaims) {
		t.Errorf("reclaims %d, then %d", len(before.Status.Reclaims), len(after.Status.Reclaims))
	}
	if now := s.onlyReplica(t, "default", "adopted"); now.UID != replica.UID || now.Status.Restarts != 0 {
		t.Errorf("replica %s has %d restarts, was %s", now.Name, now.Status.Restarts, replica.Name)
	}
	s.remove(t, md)
}

// returns starts an agent and wants an answer of a model that only its Mac holds.
func (s *suite) returns(t *testing.T, mac, model string) {
	t.Helper()
	if err := s.StartAgent(mac); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, "Mac "+mac+" answers for "+model+" again", patience, func(ctx context.Context) error {
		_, err := s.ask(ctx, model, false)
		return err
	})
	t.Logf("Mac %s served %s after %s", mac, model, took)
}

// world is what must be the same after an outage as before.
type world struct {
	replicas map[string]string // UID to Mac
	engines  map[string][]int  // Mac to pids
	reclaims map[string]int
}

func (s *suite) look(t *testing.T) world {
	t.Helper()
	w := world{replicas: map[string]string{}, engines: map[string][]int{}, reclaims: map[string]int{}}
	for _, r := range s.replicasOf(t, "default", "slow") {
		w.replicas[string(r.UID)] = r.Spec.NodeName
	}
	for _, name := range []string{middle, large} {
		w.reclaims[name] = len(s.mac(t, name).Status.Reclaims)
		w.engines[name] = s.pids(t, name)
	}
	return w
}

func (s *suite) pids(t *testing.T, mac string) []int {
	t.Helper()
	engines, err := s.MacEngines(mac)
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, e := range engines {
		out = append(out, e.PID)
	}
	return out
}

// outage takes operator and API server away and asks on; meanwhile an agent
// dies and returns, with nothing but its journal to go by.
func (s *suite) outage(t *testing.T) {
	before := s.look(t)
	if err := s.StopOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Env.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	stopAsking := s.keepAsking(t)
	mac := s.replicaMac(before)
	if err := s.KillAgent(mac); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgent(mac); err != nil {
		t.Fatal(err)
	}
	rest := time.NewTimer(outageLasts - time.Since(began))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	if got := s.pids(t, mac); fmt.Sprint(got) != fmt.Sprint(before.engines[mac]) {
		t.Errorf("engines of %s are %v, were %v", mac, got, before.engines[mac])
	}
	if err := s.Env.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.StartOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{middle, large} {
		if err := s.WaitMacReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s.waitReady(t, "default", "slow", 2)
	s.stays(t, before)
	asked, errs := stopAsking()
	if len(errs) > 0 || asked < 20 {
		t.Errorf("%d of %d questions failed during the outage, the first: %v", len(errs), asked, errs)
	}
	t.Logf("%d questions were answered during the outage", asked)
}

func (s *suite) replicaMac(w world) string {
	for _, mac := range w.replicas {
		return mac
	}
	return ""
}

// stays wants the world to be as before, for as long as a mistaken operator
// would need to change it.
func (s *suite) stays(t *testing.T, before world) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		if now := s.look(t); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the world is %v, was %v", now, before)
			return
		}
	}
}

// keepAsking asks again and again, a question at a time, until it is stopped.
func (s *suite) keepAsking(t *testing.T) (stop func() (int, []error)) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var asked int
	var errs []error
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			_, err := s.ask(ctx, "slow", asked%2 == 0)
			if ctx.Err() != nil {
				return
			}
			asked++
			if err != nil {
				errs = append(errs, fmt.Errorf("question %d: %w", asked, err))
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() (int, []error) {
		cancel()
		<-done
		return asked, errs
	}
}

func (s *suite) namespaceDeleted(t *testing.T) {
	ns := s.namespace(t, "tenant")
	s.deploy(t, "tenant", "tenants")
	s.waitReady(t, "tenant", "tenants", 1)
	engine := s.engineOf(t, s.onlyReplica(t, "tenant", "tenants"))
	if err := s.Client.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	s.waitGone(t, ns)
	if engine.Alive() {
		t.Errorf("engine %d lives", engine.PID)
	}
}

// deadMac deletes a namespace with a replica whose Mac is dead: the replica
// stays until it is fenced by the deletion of the MacNode, what it freed is
// then unknown, and the namespace ends.
func (s *suite) deadMac(t *testing.T) {
	ns := s.namespace(t, "bereaved")
	s.deploy(t, "bereaved", "orphan", chips("M4"))
	s.waitReady(t, "bereaved", "orphan", 1)
	replica := s.onlyReplica(t, "bereaved", "orphan")
	seen := s.record(t, "bereaved")
	if err := s.KillAgent(small); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is told to drain", patience, func(ctx context.Context) error {
		if err := s.Client.Get(ctx, client.ObjectKeyFromObject(&replica), &replica); err != nil {
			return err
		}
		if replica.DeletionTimestamp.IsZero() || replica.Spec.Desired != v1alpha1.DesiredDrained {
			return fmt.Errorf("desired %s, deleted at %v", replica.Spec.Desired, replica.DeletionTimestamp)
		}
		return nil
	})
	s.notReleased(t, replica)
	if err := s.Client.Delete(t.Context(), s.mac(t, small)); err != nil {
		t.Fatal(err)
	}
	s.waitGone(t, &replica)
	s.waitGone(t, ns)
	unknown := func(r v1alpha1.ModelReplica) bool {
		return r.Status.Freed.HostCheck == v1alpha1.HostCheckIndeterminate && r.Status.Freed.Bytes == nil &&
			meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReleased)
	}
	seen.wait(t, replica.Name, "to say that what it freed is Indeterminate", unknown)
	if err := s.SweepMac(t.Context(), small); err != nil {
		t.Error(err)
	}
}

// notReleased wants a replica to stay while its Mac may still hold it.
func (s *suite) notReleased(t *testing.T, replica v1alpha1.ModelReplica) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		now := replica.DeepCopy()
		if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			t.Fatalf("the replica went before its Mac was fenced: %v", err)
		}
		if meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionReleased) {
			t.Fatalf("released before its Mac was fenced: %s", sentences(now.Status.Conditions))
		}
	}
}
