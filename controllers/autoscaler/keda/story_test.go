//go:build stories

package keda_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// patience bounds each wait: a deployment stays active for a minute after the
// last request, and a busy machine is slow.
const patience = 3 * time.Minute

// woken is what KEDA logs when it scales a target from zero.
const woken = "Successfully updated ScaleTarget"

// TestKEDAScalesADeployment runs KEDA's own operator and its server of external
// metrics, built from its sources by hack/keda.sh, Kubernetes' HPA controller and
// our operator as real processes on a real API server. KEDA scales a deployment to
// zero and back: up from zero by the push, further by the HPA that it makes, and
// never by incomplete figures. There is no Mac: only the desired number of
// replicas is tested. Each step begins where the one before ended.
//
//	make build kube && bash hack/keda.sh && go test -count=1 -v -tags stories -run KEDAScales ./controllers/autoscaler/keda   (part of make test-system)
func TestKEDAScalesADeployment(t *testing.T) {
	w := newWorld(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{name: "no requests: to zero", do: func(t *testing.T) {
			// KEDA's push breaks at incomplete figures, and is slow to reconnect.
			w.create(t, "chat", false)
			w.until(t, "the figures are complete", w.complete("chat"))
			w.scale(t, "chat")
			w.until(t, "chat has no replica", w.wants("chat", 0))
		}},
		{name: "ten requests wait: from zero by the push, to three by the HPA", do: func(t *testing.T) {
			if w.kedaLogs(`"activity":true`)(t.Context()) == nil {
				t.Fatal("KEDA found it active before the first request")
			}
			w.ask("chat", 10)
			w.until(t, "KEDA scales it from zero", w.kedaLogs(woken))
			w.wokenByThePush(t)
			w.until(t, "chat has 3 replicas", w.wants("chat", 3))
		}},
		{name: "another gateway is silent: no replica is removed", do: func(t *testing.T) {
			w.other(t, false)
			w.until(t, "the HPA has no figures", w.incomplete("chat"))
			w.ask("chat", 0)
			w.stays(t, "chat", 3, 10*time.Second)
		}},
		{name: "that gateway has ended, two requests run: one replica", do: func(t *testing.T) {
			w.ask("chat", 2)
			w.other(t, true)
			w.until(t, "chat has 1 replica", w.wants("chat", 1))
		}},
		{name: "no requests for a minute and KEDA's cooldown: to zero", do: func(t *testing.T) {
			w.ask("chat", 0)
			w.until(t, "chat has no replica", w.wants("chat", 0))
		}},
		{name: "a deployment that scales itself is refused and stays as it is", do: func(t *testing.T) {
			w.ask("own", 10)
			w.create(t, "own", true)
			w.scale(t, "own")
			w.until(t, "KEDA logs the refusal", w.kedaLogs("remove spec.autoscaling"))
			w.stays(t, "own", 1, 5*time.Second)
		}},
	} {
		if !t.Run(step.name, step.do) {
			t.FailNow()
		}
	}
}

// wokenByThePush wants KEDA to have been notified before it polled: what a poll
// finds is in its log.
func (w *world) wokenByThePush(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(w.keda.Log)
	if err != nil {
		t.Fatal(err)
	}
	if before, _, _ := strings.Cut(string(b), woken); strings.Contains(before, `"activity":true`) {
		t.Error("KEDA polled and found it active before the push")
	}
}

// stays wants a number of replicas for a while.
func (w *world) stays(t *testing.T, name string, n int32, long time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); ; {
		if err := w.wants(name, n)(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// until polls until the answer is nil.
func (w *world) until(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); ; {
		err := ask(ctx)
		if err == nil {
			return
		}
		for _, p := range w.programs {
			err = errors.Join(err, p.Failed())
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		case <-tick:
		}
	}
}
