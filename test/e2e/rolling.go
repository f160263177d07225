package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/archive"
	"metalfleet.dev/metalfleet/test/fleet"
)

// streams are held open at once while everything is replaced, each of so many
// tokens: some seconds on two shared cores, so that every change meets all.
const (
	streams      = 24
	streamTokens = 64
)

// roll is the story of make e2e-rolling: whatever is replaced, no client sees a
// failure or half an answer.
func (s *story) roll(ctx context.Context) error {
	operator := map[string]any{"certificateLife": "10m", "authoritySpread": "10s"} // the shortest that the operator takes
	s.values = map[string]any{"operator": operator}
	err := s.steps(ctx, []step{
		{"a cluster", s.start},
		{"helm install", s.install},
		{"two Macs join", s.join},
		{"a model from the hub", s.apply},
		{fmt.Sprintf("%d streams", streams), s.startLoad},
		{"gateways are restarted", s.restart("gateway")},
		{"operators are restarted", s.restart("operator")},
		{"helm upgrade", s.upgrade},
		{"the agents are upgraded", s.upgradeAgents},
		{"the authority passes to another root", s.rotate},
	})
	if err != nil {
		return err
	}
	return s.endLoad(ctx)
}

// flow is what the client of the streams has seen so far.
type flow struct {
	Done                   int      `json:"done"`
	Failed                 int      `json:"failed"`
	Truncated              int      `json:"truncated"`
	Running                int      `json:"running"`
	LongestGapMilliseconds int      `json:"longestGapMilliseconds"`
	Errors                 []string `json:"errors"`
}

// judge wants whole answers alone.
func (f flow) judge() error {
	if f.Failed == 0 && f.Truncated == 0 {
		return nil
	}
	return fmt.Errorf("%d answers failed, %d were cut, %d were whole:\n  %s", f.Failed, f.Truncated, f.Done, strings.Join(f.Errors, "\n  "))
}

const loadPod = "streams"

// startLoad begins the streams in a Pod and waits until all of them run.
func (s *story) startLoad(ctx context.Context) error {
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": %q}, "spec": {"restartPolicy": "Never",
		"automountServiceAccountToken": false, "volumes": [{"name": "tmp", "emptyDir": {}}],
		"containers": [{"name": "load", "image": %q, "imagePullPolicy": "Never", "args": ["/load.py", %q, %q, %q, %q],
			"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
			"securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]}}`,
		loadPod, team, clientImage, baseURL, model, strconv.Itoa(streams), strconv.Itoa(streamTokens))
	file := filepath.Join(s.dir, loadPod+".json")
	if err := os.WriteFile(file, []byte(pod), 0o644); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	return s.until(ctx, "all streams run and one has ended", func(f flow) bool { return f.Running == streams && f.Done > 0 })
}

// seenFlow is the last line that the client printed.
func (s *story) seenFlow(ctx context.Context) (flow, error) {
	var f flow
	out, err := s.kubectl(ctx, "-n", team, "logs", loadPod, "--tail=1")
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		return f, fmt.Errorf("the client of the streams printed %q: %w", out, err)
	}
	return f, nil
}

// until waits for a state of the streams.
func (s *story) until(ctx context.Context, what string, reached func(flow) bool) error {
	return s.while(ctx, 3*time.Minute, what, func(ctx context.Context) error {
		f, err := s.seenFlow(ctx)
		if err == nil && !reached(f) {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
}

// through waits until every stream was begun anew after a change: each worker
// has one answer at most that began before.
func (s *story) through(ctx context.Context) error {
	before, err := s.seenFlow(ctx)
	if err != nil {
		return err
	}
	return s.until(ctx, "all streams go on", func(f flow) bool { return f.Done >= before.Done+2*streams })
}

// restart replaces the Pods of a Deployment of ours.
func (s *story) restart(program string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, args := range [][]string{{"restart"}, {"status", "--timeout=120s"}} {
			args = append([]string{"-n", namespace, "rollout"}, append(args, "deploy/metalfleet-"+program)...)
			if _, err := s.kubectl(ctx, args...); err != nil {
				return err
			}
		}
		return s.through(ctx)
	}
}

// upgrade changes a value of each program, so that both are replaced at once.
func (s *story) upgrade(ctx context.Context) error {
	s.values["gateway"] = map[string]any{"drainSeconds": 30, "verbose": true}
	s.values["operator"].(map[string]any)["verbose"] = true
	if _, err := s.documented(ctx, "how-to/install.md", "upgrade"); err != nil {
		return err
	}
	return s.through(ctx)
}

// nextVersion is what another build of the agent says it is.
const nextVersion = "e2e-next"

// upgradeAgents has every Mac run another build of the agent, as an
// administrator orders it. Engines are the same processes afterwards.
func (s *story) upgradeAgents(ctx context.Context) error {
	before, err := s.allEngines()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.releases(), 0o755); err != nil {
		return err
	}
	digest, err := archive.Pack(filepath.Join(s.releases(), "agent.tar.gz"), map[string]string{
		"agent": filepath.Join(s.o.root, "bin", nextVersion, "agent"), "engine": filepath.Join(s.o.root, "bin", "engine"),
	})
	if err != nil {
		return fmt.Errorf("%w; make e2e-rolling builds it", err)
	}
	if _, err := s.plugin(ctx, "upgrade-agents", "--version", nextVersion, "--url", s.hub.url+"/releases/agent.tar.gz", "--sha256", digest); err != nil {
		return err
	}
	if err := s.while(ctx, 5*time.Minute, "every Mac runs the other agent", s.upgraded); err != nil {
		return err
	}
	after, err := s.allEngines()
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		return fmt.Errorf("engines are the processes %v, were %v", after, before)
	}
	return s.through(ctx)
}

// upgraded says what is missing until the plugin says that nothing is.
func (s *story) upgraded(ctx context.Context) error {
	out, err := s.plugin(ctx, "upgrade-agents", "--status", "-o", "json")
	if err != nil {
		return err
	}
	var told struct {
		Upgrade struct {
			State, Message string
			Macs           []struct{ Version string }
		}
	}
	if err := json.Unmarshal([]byte(out), &told); err != nil {
		return fmt.Errorf("upgrade-agents --status printed %q: %w", out, err)
	}
	current := 0
	for _, m := range told.Upgrade.Macs {
		if m.Version == nextVersion {
			current++
		}
	}
	if told.Upgrade.State != "Done" || current != len(s.macs) {
		return fmt.Errorf("%d Macs run it; %s: %s", current, told.Upgrade.State, told.Upgrade.Message)
	}
	return nil
}

func (s *story) allEngines() (pids []int, err error) {
	for _, m := range s.macs {
		of, err := m.engines()
		if err == nil && len(of) == 0 {
			err = fmt.Errorf("no engine runs on Mac %s", m.net.Name)
		}
		if err != nil {
			return nil, err
		}
		pids = append(pids, of...)
	}
	return pids, nil
}

func (s *story) plugin(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.o.root, "bin", "kubectl-metalfleet"), append(args, "--kubeconfig="+s.cluster.Kubeconfig)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl metalfleet %s: %w: %s", args[0], err, said.String())
	}
	return string(out), nil
}

// rotate asks for another root and waits until the old one is trusted no more,
// which is when the last of its certificates has ended.
func (s *story) rotate(ctx context.Context) error {
	before, err := s.trusted(ctx)
	if err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "-n", namespace, "annotate", "secret", "metalfleet-ca", "metalfleet.dev/rotate=e2e"); err != nil {
		return err
	}
	for _, stage := range []struct {
		name string
		most time.Duration
	}{{"Retiring", 3 * time.Minute}, {"Settled", 20 * time.Minute}} {
		err := s.while(ctx, stage.most, "the authority is "+stage.name, func(ctx context.Context) error {
			told, err := s.kubectl(ctx, "-n", namespace, "get", "secret", "metalfleet-ca", "-o", `jsonpath={.metadata.annotations.metalfleet\.dev/rotation}`)
			if err == nil && !strings.HasPrefix(told, stage.name+":") {
				err = errors.New(told)
			}
			return err
		})
		if err != nil {
			return err
		}
		s.say("the authority is %s", stage.name)
		if err := s.through(ctx); err != nil {
			return err
		}
	}
	after, err := s.trusted(ctx)
	if err == nil && (after == before || len(strings.Fields(after)) != len(s.macs)) {
		err = fmt.Errorf("the Macs trust the roots %q, before the rotation %q", after, before)
	}
	return err
}

// trusted are the roots that Macs say they trust.
func (s *story) trusted(ctx context.Context) (string, error) {
	return s.kubectl(ctx, "get", "mac", "-o", `jsonpath={range .items[*]}{.status.trustedRoots[*]} {end}`)
}

// while waits for ask's nil under the streams; a failed answer ends the wait.
func (s *story) while(ctx context.Context, most time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var bad error
	err := fleet.Poll(ctx, time.Second, what, func(ctx context.Context) error {
		f, err := s.seenFlow(ctx)
		if err != nil {
			return err
		}
		if bad = f.judge(); bad != nil {
			return nil
		}
		return ask(ctx)
	})
	return errors.Join(bad, err)
}

// endLoad lets the streams end and judges all of them.
func (s *story) endLoad(ctx context.Context) error {
	if _, err := s.kubectl(ctx, "-n", team, "exec", loadPod, "--", interpreter, "-c", "open('/tmp/stop', 'w')"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "-n", team, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s", "pod/"+loadPod); err != nil {
		return err
	}
	f, err := s.seenFlow(ctx)
	if err != nil {
		return err
	}
	s.say("%d answers, %d failed, %d cut; the longest pause within an answer was %d ms", f.Done, f.Failed, f.Truncated, f.LongestGapMilliseconds)
	return f.judge()
}
