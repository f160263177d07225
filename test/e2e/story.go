package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/docs"
	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	namespace = "metalfleet-system"
	team      = "apps" // where the user works
	model     = "assistant"
	baseURL   = "http://metalfleet-gateway." + namespace + ".svc/v1"
)

// story is one run.
type story struct {
	o     options
	dir   string
	began time.Time

	cluster *cluster.Cluster
	hub     *hub
	macs    []*mac
	asked   int            // Pods so far
	values  map[string]any // of the chart, in addition to those of every story
}

func (s *story) say(format string, a ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, a...))
}

// step is one of a story.
type step struct {
	name string
	do   func(context.Context) error
}

// tell is the whole story.
func (s *story) tell(ctx context.Context) error {
	return s.steps(ctx, []step{
		{"a cluster", s.start},
		{"helm install", s.install},
		{"two Macs join", s.join},
		{"a model from the hub", s.apply},
		{"a Pod asks", s.pod},
		{"top and why", s.look},
		{"helm test", s.test},
		{"a Mac's link is cut", s.cut},
		{"the link is back", s.mend},
		{"an uninstall is refused", s.refused},
		{"the model is deleted", s.remove},
		{"helm uninstall", s.uninstall},
		{"installed again", s.again},
	})
}

// steps does one after the other, to the first that fails.
func (s *story) steps(ctx context.Context, all []step) error {
	for _, step := range all {
		s.say("-- %s", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (s *story) start(ctx context.Context) error {
	var err error
	s.cluster, err = cluster.Start(ctx, cluster.Options{
		Bin: filepath.Join(s.o.root, "bin", "kube"), Dir: filepath.Join(s.dir, "kube"), Images: archives(s.o.dir),
		Say: func(step string) { s.say("%s", step) },
	})
	return err
}

func (s *story) helm(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.o.root, "bin", "kube", "helm"), append(args, "--namespace", namespace, "--kubeconfig", s.cluster.Kubeconfig)...)
	home := filepath.Join(s.dir, "helm")
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	b, err := cmd.CombinedOutput()
	if err != nil {
		return string(b), fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(string(b)))
	}
	return string(b), nil
}

// documented runs a block of commands of a page, as a user who copies it: in a
// folder with the chart and a file values.yaml, with this build's images.
func (s *story) documented(ctx context.Context, page, id string) (string, error) {
	script, err := docs.Script(page, id)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.dir, "documented")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(s.o.root, "charts"), filepath.Join(dir, "charts")); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	values := map[string]any{"image": map[string]any{"pullPolicy": "Never"}, "gateway": map[string]any{"drainSeconds": 30}}
	for program, v := range s.values {
		values[program] = v
	}
	text, err := json.Marshal(values)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "values.yaml"), text, 0o644); err != nil {
		return "", err
	}
	bin := filepath.Join(s.o.root, "bin")
	home := filepath.Join(s.dir, "helm")
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(bin, "kube")+":"+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+s.cluster.Kubeconfig,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "REGISTRY="+registry, "TAG="+tag)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("the block %s of docs/%s: %w: %s", id, page, err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// install follows the page, with the images of this build.
func (s *story) install(ctx context.Context) error {
	_, err := s.documented(ctx, "how-to/install.md", "install")
	return err
}

func (s *story) kubectl(ctx context.Context, args ...string) (string, error) {
	return s.cluster.Kubectl(ctx, args...)
}

func (s *story) apply(ctx context.Context) error {
	manifest := filepath.Join(s.dir, "model.yaml")
	text := strings.NewReplacer("$MODEL", model, "$TEAM", team, "$SOURCE", s.hub.source).Replace(deployment)
	if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", manifest); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "-n", team, "wait", "--for=condition=Ready", "--timeout=180s", "md/"+model); err != nil {
		said, _ := s.kubectl(ctx, "-n", team, "describe", "md,mr")
		return fmt.Errorf("%w\n%s", err, said)
	}
	// Every replica is of the commit that the branch meant.
	out, err := s.kubectl(ctx, "-n", team, "get", "mr", "-o", "jsonpath={.items[*].spec.model.commit}")
	if err != nil {
		return err
	}
	if want := s.hub.commit + " " + s.hub.commit; out != want {
		return fmt.Errorf("the replicas' commits are %q, want %q", out, want)
	}
	return nil
}

// deployment is what a user applies.
const deployment = `apiVersion: v1
kind: Namespace
metadata: {name: $TEAM}
---
apiVersion: metalfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: $MODEL, namespace: $TEAM}
spec:
  model: {source: "$SOURCE"}
  replicas: 2
  context: {tokens: 512, sequences: 4}
`

// seen is what the client in a Pod prints.
type seen struct {
	Models            []string `json:"models"`
	Pieces            int      `json:"pieces"`
	Text              string   `json:"text"`
	Finish            string   `json:"finish"`
	Tokens            int      `json:"tokens"`
	Prompt            int      `json:"prompt"`
	FirstMilliseconds int      `json:"firstMilliseconds"`
	FirstAt           float64  `json:"firstAt"` // seconds of Unix time
	Error             string   `json:"error"`
	Message           string   `json:"message"`
}

// ask runs a Pod with the official client to its end.
func (s *story) ask(ctx context.Context) (seen, error) {
	s.asked++
	name := fmt.Sprintf("ask-%d", s.asked)
	// Ready is not routable yet for a second: kube-proxy writes its rules after.
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": %q}, "spec": {"restartPolicy": "Never",
		"automountServiceAccountToken": false,
		"containers": [{"name": "ask", "image": %q, "imagePullPolicy": "Never", "args": ["/ask.py", %q, %q, "20"],
			"securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]}}`,
		name, team, clientImage, baseURL, model)
	file := filepath.Join(s.dir, name+".json")
	if err := os.WriteFile(file, []byte(pod), 0o644); err != nil {
		return seen{}, err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", file); err != nil {
		return seen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err := fleet.Poll(ctx, 200*time.Millisecond, "Pod "+name+" has ended", func(ctx context.Context) error {
		phase, err := s.kubectl(ctx, "-n", team, "get", "pod", name, "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Succeeded" && phase != "Failed" {
			err = errors.New(phase)
		}
		return err
	})
	if err != nil {
		said, _ := s.kubectl(context.WithoutCancel(ctx), "-n", team, "describe", "pod", name)
		return seen{}, fmt.Errorf("%w\n%s", err, said)
	}
	out, err := s.kubectl(ctx, "-n", team, "logs", name)
	if err != nil {
		return seen{}, err
	}
	var a seen
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		return seen{}, fmt.Errorf("the client printed %q: %w", out, err)
	}
	return a, nil
}

// pod asks and judges the body.
func (s *story) pod(ctx context.Context) error {
	a, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if err := a.judge(); err != nil {
		return err
	}
	s.say("%d tokens in %d pieces, the first after %d ms", a.Tokens, a.Pieces, a.FirstMilliseconds)
	return nil
}

// judge wants a whole streamed answer.
func (a seen) judge() error {
	switch {
	case a.Error != "":
		return fmt.Errorf("the client saw %s: %s", a.Error, a.Message)
	case len(a.Models) != 1 || a.Models[0] != model:
		return fmt.Errorf("the models are %q", a.Models)
	case a.Finish != "length" || a.Tokens != 24 || a.Prompt < 5 || a.Text == "" || a.Pieces < 3: // tokens that wait go in one piece
		return fmt.Errorf("the answer is not whole: %+v", a)
	}
	return nil
}

// look is what an administrator looks at.
func (s *story) look(ctx context.Context) error {
	for _, args := range [][]string{{"top", "--once"}, {"why", team + "/" + model}} {
		cmd := exec.CommandContext(ctx, filepath.Join(s.o.root, "bin", "kubectl-metalfleet"), append(args, "--kubeconfig="+s.cluster.Kubeconfig)...)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), declared[0].name) {
			return fmt.Errorf("kubectl metalfleet %s (%w) prints %q, want a line about %s", strings.Join(args, " "), err, out, declared[0].name)
		}
	}
	return nil
}

func (s *story) test(ctx context.Context) error {
	out, err := s.documented(ctx, "how-to/install.md", "verify")
	if err == nil && !strings.Contains(out, "Succeeded") {
		err = fmt.Errorf("helm test says %q", out)
	}
	return err
}

// cut takes a Mac off the network: the other one answers at once, and the
// operator says who is missing.
func (s *story) cut(ctx context.Context) error {
	if err := s.macs[1].net.Cut(ctx); err != nil {
		return err
	}
	for range 3 {
		if err := s.pod(ctx); err != nil {
			return err
		}
	}
	return s.waitMac(ctx, 1, "Unknown")
}

// mend brings it back: it is ready again, and its engine was never stopped.
func (s *story) mend(ctx context.Context) error {
	before, err := s.macs[1].engines()
	if err != nil {
		return err
	}
	if err := s.macs[1].net.Mend(ctx); err != nil {
		return err
	}
	if err := s.waitMac(ctx, 1, "True"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "-n", team, "wait", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=90s", "md/"+model); err != nil {
		return err
	}
	after, err := s.macs[1].engines()
	if err != nil {
		return err
	}
	if fmt.Sprint(before) != fmt.Sprint(after) || len(after) != 1 {
		return fmt.Errorf("engines of the Mac were %v, are %v: a cut link must stop none", before, after)
	}
	return s.pod(ctx)
}

// refused: an uninstall while models live would leave their memory promised.
func (s *story) refused(ctx context.Context) error {
	out, err := s.helm(ctx, "uninstall", "metalfleet", "--timeout", "1m")
	if err == nil {
		return fmt.Errorf("helm uninstalled it while a ModelDeployment lives: %s", out)
	}
	if err := s.pod(ctx); err != nil {
		return fmt.Errorf("after the refusal: %w", err)
	}
	return nil
}

// remove deletes the model: its engines end, and their freed bytes are reported.
func (s *story) remove(ctx context.Context) error {
	if _, err := s.kubectl(ctx, "-n", team, "delete", "md", model, "--timeout=120s"); err != nil {
		return err
	}
	for _, m := range s.macs {
		freed, err := s.kubectl(ctx, "get", "mac", m.net.Name, "-o", "jsonpath={.status.reclaims[-1:].freedBytes}")
		if err != nil {
			return err
		}
		if left, err := m.engines(); err != nil || len(left) > 0 || len(freed) < 7 {
			return fmt.Errorf("on Mac %s: engines %v are left (%w), freed bytes %q", m.net.Name, left, err, freed)
		}
	}
	return nil
}

func (s *story) uninstall(ctx context.Context) error {
	if _, err := s.documented(ctx, "how-to/install.md", "uninstall"); err != nil {
		return err
	}
	// Kinds stay, and so do Macs: an uninstall loses no data.
	out, err := s.kubectl(ctx, "get", "mac", "-o", "name")
	if err == nil && len(strings.Fields(out)) != len(s.macs) {
		err = fmt.Errorf("of %d Macs there are %q", len(s.macs), out)
	}
	return err
}

// again is the way back: the same Macs serve without a new join.
func (s *story) again(ctx context.Context) error {
	return s.steps(ctx, []step{
		{"helm install", s.install}, {"the Macs are ready", s.macsReady}, {"the model again", s.apply}, {"a Pod asks", s.pod}, {"it is deleted", s.remove},
	})
}

// waitMac waits for a status of the condition Ready.
func (s *story) waitMac(ctx context.Context, i int, status string) error {
	_, err := s.kubectl(ctx, "wait", "--for=condition=Ready="+status, "--timeout=120s", "mac/"+s.macs[i].net.Name)
	return err
}

func (s *story) macsReady(ctx context.Context) error {
	for i := range s.macs {
		if err := s.waitMac(ctx, i, "True"); err != nil {
			return errors.Join(err, s.macs[i].agent.Failed())
		}
	}
	return nil
}

// evidence is what to look at after a failure.
func (s *story) evidence() error {
	if s.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "pods,md,mr,mac", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"}, {"-n", namespace, "logs", "-l", "app.kubernetes.io/name=metalfleet", "--tail=30", "--prefix"}} {
		out, err := s.kubectl(ctx, args...)
		fmt.Printf("--- kubectl %s (%v)\n%s\n", strings.Join(args, " "), err, out)
	}
	return fmt.Errorf("logs are in %s", s.dir)
}

// end stops Macs and cluster.
func (s *story) end() error {
	var errs []error
	for _, m := range s.macs {
		errs = append(errs, m.end())
	}
	if s.hub != nil {
		errs = append(errs, s.hub.server.Close())
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Stop())
	}
	return errors.Join(errs...)
}
