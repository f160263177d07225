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
	r := &rolling{w}
	sequence(t,
		step{name: "helm install", do: w.install},
		step{name: "two Macs join", do: w.join},
		step{name: "a model from the hub", do: w.deploy},
		step{name: "streams", do: r.startLoad},
		step{name: "gateways are restarted", do: func(t *testing.T) { r.restart(t, "gateway") }},
		step{name: "operators are restarted", do: func(t *testing.T) { r.restart(t, "operator") }},
		step{name: "helm upgrade", do: r.upgrade},
		step{name: "the agents are upgraded", do: r.upgradeAgents},
		step{name: "the authority is replaced by another root", do: r.rotate},
		step{name: "the streams end", do: r.endLoad},
		step{name: "the model is deleted", do: w.remove},
	)
}

// rolling is the world under streams: what replaces a part of it waits until every
// stream has continued.
type rolling struct{ *world }

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
func (r *rolling) startLoad(t *testing.T) {
	r.apply(t, loadPod+".json", podOf(loadPod, "/load.py", baseURL, model, strconv.Itoa(streams), strconv.Itoa(streamTokens)))
	r.flows(t, "all streams run and one has ended", func(f flow) bool { return f.Running == streams && f.Done > 0 })
}

// flow reads the last line that the client printed.
func (r *rolling) flow(ctx context.Context) (f flow, err error) {
	out, err := r.cluster.Kubectl(ctx, "-n", team, "logs", loadPod, "--tail=1")
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		return f, fmt.Errorf("the client of the streams printed %q: %w", out, err)
	}
	return f, nil
}

// flows waits for a state of the streams.
func (r *rolling) flows(t *testing.T, what string, reached func(flow) bool) {
	t.Helper()
	r.while(t, 3*time.Minute, what, func(ctx context.Context) error {
		f, err := r.flow(ctx)
		if err == nil && !reached(f) {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
}

// through waits until every stream has begun again after a change: each worker has
// at most one answer that began before.
func (r *rolling) through(t *testing.T) {
	t.Helper()
	before, err := r.flow(t.Context())
	must(t, err)
	r.flows(t, "all streams continue", func(f flow) bool { return f.Done >= before.Done+2*streams })
}

// while waits until ask returns nil under the streams; a failed answer ends the wait.
func (r *rolling) while(t *testing.T, most time.Duration, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var bad error
	err := fleet.Poll(ctx, time.Second, what, func(ctx context.Context) error {
		f, err := r.flow(ctx)
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
func (r *rolling) restart(t *testing.T, program string) {
	r.kubectl(t, "-n", namespace, "rollout", "restart", "deploy/metalfleet-"+program)
	r.kubectl(t, "-n", namespace, "rollout", "status", "--timeout=120s", "deploy/metalfleet-"+program)
	r.through(t)
}

// upgrade changes a value of each program, so that both are replaced at once.
func (r *rolling) upgrade(t *testing.T) {
	r.documented(t, "how-to/install.md", "upgrade", true)
	r.through(t)
}

// upgradeAgents has every Mac run another build of the agent, as an administrator
// orders it. Engines are the same processes afterwards.
func (r *rolling) upgradeAgents(t *testing.T) {
	before := r.allEngines(t)
	must(t, os.MkdirAll(r.releases(), 0o755))
	digest, err := fleet.Pack(filepath.Join(r.releases(), "agent.tar.gz"), map[string]string{"agent": r.nextAgent(), "engine": filepath.Join(r.root, "bin", "engine")})
	must(t, err)
	_, err = r.plugin(t.Context(), "upgrade-agents", "--version", nextVersion, "--url", r.hub.url+"/releases/agent.tar.gz", "--sha256", digest)
	must(t, err)
	r.while(t, 5*time.Minute, "every Mac runs the other agent", r.upgraded)
	if after := r.allEngines(t); !slices.Equal(before, after) {
		t.Errorf("engines are the processes %v, were %v", after, before)
	}
	r.through(t)
}

// nextAgent is the other build of the agent.
func (w *world) nextAgent() string { return filepath.Join(filepath.Dir(w.dir), "agent-next") }

// upgraded is nil once the plugin reports that every Mac runs the other agent.
func (r *rolling) upgraded(ctx context.Context) error {
	out, err := r.plugin(ctx, "upgrade-agents", "--status", "-o", "json")
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
	if status.Upgrade.State != "Done" || current != len(r.macs) {
		return fmt.Errorf("%d Macs run it; %s: %s", current, status.Upgrade.State, status.Upgrade.Message)
	}
	return nil
}

func (r *rolling) allEngines(t *testing.T) (pids []int) {
	t.Helper()
	for _, m := range r.macs {
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
func (r *rolling) rotate(t *testing.T) {
	before := r.trusted(t)
	r.kubectl(t, "-n", namespace, "annotate", "secret", "metalfleet-ca", "metalfleet.dev/rotate=e2e")
	r.rotation(t, "Retiring", 3*time.Minute)
	if !*settle {
		return
	}
	r.rotation(t, "Settled", 20*time.Minute)
	if after := r.trusted(t); after == before || len(strings.Fields(after)) != len(r.macs) {
		t.Errorf("the Macs trust the roots %q, before the rotation %q", after, before)
	}
}

// rotation waits for a stage of the rotation, and for the streams after it.
func (r *rolling) rotation(t *testing.T, stage string, most time.Duration) {
	t.Helper()
	r.while(t, most, "the authority is "+stage, func(ctx context.Context) error {
		now, err := r.cluster.Kubectl(ctx, "-n", namespace, "get", "secret", "metalfleet-ca", "-o", `jsonpath={.metadata.annotations.metalfleet\.dev/rotation}`)
		if err == nil && !strings.HasPrefix(now, stage+":") {
			err = errors.New(now)
		}
		return err
	})
	r.through(t)
}

// trusted are the roots that Macs report to trust.
func (r *rolling) trusted(t *testing.T) string {
	t.Helper()
	return r.kubectl(t, "get", "mac", "-o", `jsonpath={range .items[*]}{.status.trustedRoots[*]} {end}`)
}

// endLoad lets the streams end and judges all of them.
func (r *rolling) endLoad(t *testing.T) {
	r.kubectl(t, "-n", team, "exec", loadPod, "--", interpreter, "-c", "open('/tmp/stop', 'w')")
	r.kubectl(t, "-n", team, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s", "pod/"+loadPod)
	f, err := r.flow(t.Context())
	must(t, errors.Join(err, f.check()))
	t.Logf("%d answers; the longest pause within an answer was %d ms", f.Done, f.LongestGapMilliseconds)
}
