package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
)

// question and the word that the response contains.
const (
	question = "What is the capital of France?"
	expected = "Paris"
)

const deployment = "smollm2"

// sample is the manifest that is applied.
const sample = "config/samples/smollm2.yaml"

// macs are three of different size.
func macs() []fleet.Mac {
	return []fleet.Mac{
		{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"},
		{Name: "macbook", Chip: "M4Max", Memory: "64Gi"},
		{Name: "mini", Chip: "M4", Memory: "24Gi"},
	}
}

// story is one run.
type story struct {
	root, dir, modelRoot string
	source               string // replaces the sample's when there is no real model
	once                 bool
	port                 int

	fleet *fleet.Fleet
	began time.Time // of the current step
	name  string
	took  []taken
}

// taken is how long one step took.
type taken struct {
	name string
	time time.Duration
}

// step ends the previous step and begins another.
func (s *story) step(name string) {
	now := time.Now()
	if s.name != "" {
		s.took = append(s.took, taken{s.name, now.Sub(s.began)})
	}
	s.name, s.began = name, now
	fmt.Printf("\n== %s\n", name)
}

// play runs the steps up to the response; with -once also those up to the freed bytes,
// otherwise until the context ends.
func (s *story) play(ctx context.Context) error {
	s.step("starting a control plane, the operator, the gateway and three simulated Macs")
	var err error
	s.fleet, err = fleet.Start(ctx, fleet.Options{
		Root: s.root, Dir: s.dir, ModelRoot: s.modelRoot, Macs: macs(), GatewayPort: s.port,
		Say: func(step string) { fmt.Println("  ", step) },
	})
	if err != nil {
		return err
	}
	if err := s.serve(ctx); err != nil {
		return err
	}
	if s.once {
		return s.assertAll(ctx)
	}
	s.printHints()
	return s.wait(ctx)
}

// serve applies the manifest, waits for the model and sends it a prompt.
func (s *story) serve(ctx context.Context) error {
	manifest, err := s.manifest()
	if err != nil {
		return err
	}
	s.step("kubectl apply -f " + manifest)
	if _, err := s.kubectl(ctx, "apply", "-f", manifest); err != nil {
		return err
	}
	if err := s.waitReady(ctx, 1); err != nil {
		return err
	}
	s.step("sending a prompt through the gateway: " + question)
	return s.ask(ctx)
}

// manifest is the sample, or a copy with another source.
func (s *story) manifest() (string, error) {
	if s.source == "" {
		return sample, nil
	}
	b, err := os.ReadFile(filepath.Join(s.root, sample))
	if err != nil {
		return "", fmt.Errorf("sample: %w", err)
	}
	b, err = withSource(b, s.source)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, "tiny.yaml")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return "", fmt.Errorf("manifest: %w", err)
	}
	return path, nil
}

// withSource replaces the one source in a manifest, and shortens the context to
// that of a tiny model.
func withSource(manifest []byte, source string) ([]byte, error) {
	found := 0
	var out []string
	for line := range strings.Lines(string(manifest)) {
		key := strings.TrimSpace(strings.SplitN(line, ":", 2)[0])
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		switch key {
		case "source":
			found++
			line = indent + "source: " + source + "\n"
		case "tokens":
			line = indent + "tokens: 256\n"
		}
		out = append(out, line)
	}
	if found != 1 {
		return nil, fmt.Errorf("%s names %d sources, want 1", sample, found)
	}
	return []byte(strings.Join(out, "")), nil
}

func (s *story) ask(ctx context.Context) error {
	fmt.Print("   ")
	a, err := fleet.Ask(ctx, s.fleet.URL, fleet.Question{
		Model: deployment, Text: question, Stream: true, MaxTokens: 48,
		OnText: func(piece string) { fmt.Print(piece) },
	})
	fmt.Println()
	if err != nil {
		return err
	}
	fmt.Printf("   (first token after %s, %d tokens in %s, served by Mac %s)\n",
		round(a.First), a.Usage.CompletionTokens, round(a.Total), a.Mac)
	if a.Usage.CompletionTokens == 0 || a.Finish == "" {
		return fmt.Errorf("the answer has %d tokens and finish reason %q", a.Usage.CompletionTokens, a.Finish)
	}
	if s.source == "" && !strings.Contains(a.Text, expected) {
		return fmt.Errorf("the answer %q does not contain %q", a.Text, expected)
	}
	return nil
}

// kubectl runs it as the user would and prints what it prints.
func (s *story) kubectl(ctx context.Context, args ...string) (string, error) {
	program, err := kubectlPath()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.root
	// A cache of its own: kubectl's is in the home folder, for ever.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.fleet.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(s.dir, "kubectl-cache"))
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		fmt.Print("   ", line)
	}
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

func kubectlPath() (string, error) {
	dir, err := testenv.AssetsDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "kubectl"), nil
}

// wait blocks until the user interrupts it. A program that ends is started again, as
// Kubernetes and launchd do; an agent starts ended engines itself.
func (s *story) wait(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			restarted, err := s.fleet.Revive()
			if err != nil {
				return fmt.Errorf("a program of the fleet has exited: %w", err)
			}
			for _, name := range restarted {
				fmt.Printf("   %s has ended and was started again\n", name)
			}
		}
	}
}

// printHints prints lines to copy.
func (s *story) printHints() {
	s.step("running until Ctrl-C; try these commands in another terminal")
	kubectl, err := kubectlPath()
	if err != nil {
		kubectl = "kubectl"
	}
	plugin := filepath.Join(s.root, "bin", "kubectl-metalfleet")
	fmt.Printf(`
export KUBECONFIG=%s PATH=%s:%s:$PATH
kubectl get mdep,mr,mac
kubectl metalfleet top    # the plugin, %s

curl -sN %s/v1/chat/completions -H 'Content-Type: application/json' \
  -d '{"model":"%s","stream":true,"temperature":0,"messages":[{"role":"user","content":"%s"}]}'

python3 - <<'END'    # python3 -m pip install openai
from openai import OpenAI
client = OpenAI(base_url="%s/v1", api_key="none")
for chunk in client.chat.completions.create(model="%s", stream=True, temperature=0,
        messages=[{"role": "user", "content": "%s"}]):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
END

# finally, watch FREED while the model is deleted
kubectl get mac -w &
kubectl delete mdep %s

`, s.fleet.Kubeconfig(), filepath.Dir(kubectl), filepath.Dir(plugin), plugin, s.fleet.URL, deployment, question, s.fleet.URL, deployment, question, deployment)
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
