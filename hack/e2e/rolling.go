package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/hack/fleet"
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
	err := s.steps(ctx, []step{
		{"a cluster", s.start},
		{"helm install", s.install},
		{"two Macs join", s.join},
		{"a model from the hub", s.apply},
		{fmt.Sprintf("%d streams", streams), s.startLoad},
		{"gateways are restarted", s.restart("gateway")},
		{"operators are restarted", s.restart("operator")},
		{"helm upgrade", s.upgrade},
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

// until waits for a state of the streams; a failed one ends the wait.
func (s *story) until(ctx context.Context, what string, reached func(flow) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
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
		if !reached(f) {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	return errors.Join(bad, err)
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
	_, err := s.helm(ctx, "upgrade", "metalfleet", filepath.Join(s.o.root, "charts", "metalfleet"), "--reuse-values", "--wait", "--timeout", "3m",
		"--set", "gateway.verbose=true", "--set", "operator.verbose=true")
	if err != nil {
		return err
	}
	return s.through(ctx)
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
