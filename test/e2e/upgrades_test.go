//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// streams are open at once while everything is replaced, each of streamTokens:
	// some seconds on two shared cores, so that every change meets all.
	streams      = 24
	streamTokens = 64
	loadPod      = "streams"
	// nextVersion is that of another build of the agent.
	nextVersion = "e2e-next"
)

// TestRolling replaces everything under streams, and no client sees a failure or
// half an answer.
func TestRolling(t *testing.T) {
	sequence(t,
		step{name: "helm install", do: w.install},
		step{name: "two Macs join", do: w.join},
		step{name: "a model from the hub", do: w.deploy},
		step{name: "streams", do: w.startLoad},
		step{name: "gateways are restarted", do: func(t *testing.T) { w.restart(t, "gateway") }},
		step{name: "operators are restarted", do: func(t *testing.T) { w.restart(t, "operator") }},
		step{name: "helm upgrade", do: w.upgrade},
		step{name: "the agents are upgraded", do: w.upgradeAgents},
		step{name: "the authority is replaced by another root", do: w.rotate},
		step{name: "the streams end", do: w.endLoad},
		step{name: "the model is deleted", do: w.remove},
	)
}

// flow is what the client of the streams has seen so far.
type flow struct {
	Done, Failed, Truncated, Running int
	LongestGapMilliseconds           int
	Errors                           []string
}

// check wants whole answers alone.
func (f flow) check() error {
	if f.Failed == 0 && f.Truncated == 0 {
		return nil
	}
	return fmt.Errorf("%d answers failed, %d were cut, %d were whole:\n  %s", f.Failed, f.Truncated, f.Done, strings.Join(f.Errors, "\n  "))
}

// startLoad begins the streams in a Pod and waits until all of them run.
func (w *world) startLoad(t *testing.T) {
	w.apply(t, loadPod+".json", podOf(loadPod, "/load.py", baseURL, model, strconv.Itoa(streams), strconv.Itoa(streamTokens)))
	w.flows(t, "all streams run and one has ended", func(f flow) bool { return f.Running == streams && f.Done > 0 })
}

// flow reads the last line that the client printed.
func (w *world) flow(ctx context.Context) (f flow, err error) {
	out, err := w.cluster.Kubectl(ctx, "-n", team, "logs", loadPod, "--tail=1")
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		return f, fmt.Errorf("the client of the streams printed %q: %w", out, err)
	}
	return f, nil
}

// flows waits for a state of the streams.
func (w *world) flows(t *testing.T, what string, reached func(flow) bool) {
	t.Helper()
	w.while(t, 3*time.Minute, what, func(ctx context.Context) error {
		f, err := w.flow(ctx)
		if err == nil && !reached(f) {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
}

// through waits until every stream has begun again after a change: each worker has
// at most one answer that began before.
func (w *world) through(t *testing.T) {
	t.Helper()
	before, err := w.flow(t.Context())
	must(t, err)
	w.flows(t, "all streams continue", func(f flow) bool { return f.Done >= before.Done+2*streams })
}

// while waits until ask returns nil under the streams; a failed answer ends the wait.
func (w *world) while(t *testing.T, most time.Duration, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var bad error
	err := fleet.Poll(ctx, time.Second, what, func(ctx context.Context) error {
		f, err := w.flow(ctx)
		if err != nil {
			return err
		}
		if bad = f.check(); bad != nil {
			return nil
		}
		return ask(ctx)
	})
	must(t, errors.Join(bad, err))
}

// restart replaces the Pods of a Deployment of ours.
func (w *world) restart(t *testing.T, program string) {
	w.kubectl(t, "-n", namespace, "rollout", "restart", "deploy/metalfleet-"+program)
	w.kubectl(t, "-n", namespace, "rollout", "status", "--timeout=120s", "deploy/metalfleet-"+program)
	w.through(t)
}

// upgrade changes a value of each program, so that both are replaced at once.
func (w *world) upgrade(t *testing.T) {
	w.documented(t, "how-to/install.md", "upgrade", true)
	w.through(t)
}

// upgradeAgents has every Mac run another build of the agent, as an administrator
// orders it. Engines are the same processes afterwards.
func (w *world) upgradeAgents(t *testing.T) {
	before := w.allEngines(t)
	must(t, os.MkdirAll(w.releases(), 0o755))
	digest, err := fleet.Pack(filepath.Join(w.releases(), "agent.tar.gz"), map[string]string{"agent": w.nextAgent(), "engine": filepath.Join(w.root, "bin", "engine")})
	must(t, err)
	_, err = w.plugin(t.Context(), "upgrade-agents", "--version", nextVersion, "--url", w.hub.url+"/releases/agent.tar.gz", "--sha256", digest)
	must(t, err)
	w.while(t, 5*time.Minute, "every Mac runs the other agent", w.upgraded)
	if after := w.allEngines(t); !slices.Equal(before, after) {
		t.Errorf("engines are the processes %v, were %v", after, before)
	}
	w.through(t)
}

// nextAgent is the other build of the agent.
func (w *world) nextAgent() string { return filepath.Join(filepath.Dir(w.dir), "agent-next") }

// upgraded is nil once the plugin reports that every Mac runs the other agent.
func (w *world) upgraded(ctx context.Context) error {
	out, err := w.plugin(ctx, "upgrade-agents", "--status", "-o", "json")
	if err != nil {
		return err
	}
	var status struct {
		Upgrade struct {
			State, Message string
			Macs           []struct{ Version string }
		}
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return fmt.Errorf("upgrade-agents --status printed %q: %w", out, err)
	}
	current := 0
	for _, m := range status.Upgrade.Macs {
		if m.Version == nextVersion {
			current++
		}
	}
	if status.Upgrade.State != "Done" || current != len(w.macs) {
		return fmt.Errorf("%d Macs run it; %s: %s", current, status.Upgrade.State, status.Upgrade.Message)
	}
	return nil
}

func (w *world) allEngines(t *testing.T) (pids []int) {
	t.Helper()
	for _, m := range w.macs {
		of := m.engines(t)
		if len(of) == 0 {
			t.Fatalf("no engine runs on Mac %s", m.machine.Name)
		}
		pids = append(pids, of...)
	}
	return pids
}

// rotate asks for another root, and waits until it signs all certificates
// (Retiring) and, with -settle, until the old one is trusted no more (Settled).
func (w *world) rotate(t *testing.T) {
	before := w.trusted(t)
	w.kubectl(t, "-n", namespace, "annotate", "secret", "metalfleet-ca", "metalfleet.dev/rotate=e2e")
	w.rotation(t, "Retiring", 3*time.Minute)
	if !*settle {
		return
	}
	w.rotation(t, "Settled", 20*time.Minute)
	if after := w.trusted(t); after == before || len(strings.Fields(after)) != len(w.macs) {
		t.Errorf("the Macs trust the roots %q, before the rotation %q", after, before)
	}
}

// rotation waits for a stage of the rotation, and for the streams after it.
func (w *world) rotation(t *testing.T, stage string, most time.Duration) {
	t.Helper()
	w.while(t, most, "the authority is "+stage, func(ctx context.Context) error {
		now, err := w.cluster.Kubectl(ctx, "-n", namespace, "get", "secret", "metalfleet-ca", "-o", `jsonpath={.metadata.annotations.metalfleet\.dev/rotation}`)
		if err == nil && !strings.HasPrefix(now, stage+":") {
			err = errors.New(now)
		}
		return err
	})
	w.through(t)
}

// trusted are the roots that Macs report to trust.
func (w *world) trusted(t *testing.T) string {
	t.Helper()
	return w.kubectl(t, "get", "mac", "-o", `jsonpath={range .items[*]}{.status.trustedRoots[*]} {end}`)
}

// endLoad lets the streams end and judges all of them.
func (w *world) endLoad(t *testing.T) {
	w.kubectl(t, "-n", team, "exec", loadPod, "--", interpreter, "-c", "open('/tmp/stop', 'w')")
	w.kubectl(t, "-n", team, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s", "pod/"+loadPod)
	f, err := w.flow(t.Context())
	must(t, errors.Join(err, f.check()))
	t.Logf("%d answers; the longest pause within an answer was %d ms", f.Done, f.LongestGapMilliseconds)
}
