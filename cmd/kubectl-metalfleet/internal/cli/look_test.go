package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/explain"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/inventory"
)

func TestWhatAPersonSeesOfAFleet(t *testing.T) {
	p := newPerson(t)
	p.office()
	for _, tc := range []struct {
		golden string
		args   []string
	}{
		{"nodes", []string{"nodes"}},
		{"top", []string{"top", "--once"}},
		{"why", []string{"why", "team-a/coder"}},
		{"why-serving", []string{"-n", "team-a", "why", "chat"}},
	} {
		out, errs := p.wants(exitOK, tc.args...)
		if errs != "" {
			t.Errorf("%q says %q on standard error", tc.args, errs)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%q has colours where there is no terminal", tc.args)
		}
		golden(t, tc.golden, out)
	}
	t.Run("one Mac alone", func(t *testing.T) {
		out, _ := p.wants(exitOK, "top", "mac-mini-1")
		contains(t, "top", out, "mac-mini-1", "coder-11112222")
		if strings.Contains(out, "mac-studio-1") {
			t.Errorf("another Mac is shown:\n%s", out)
		}
	})
	t.Run("the name that clients use", func(t *testing.T) {
		out, _ := p.wants(exitOK, "why", "coder")
		contains(t, "why", out, "team-a/coder is not ready")
	})
	t.Run("colours on a terminal", func(t *testing.T) {
		p.terminal = true
		defer func() { p.terminal = false }()
		out, _ := p.wants(exitOK, "why", "team-a/coder")
		contains(t, "why", out, "\x1b[31mnot ready\x1b[0m")
		p.vars["NO_COLOR"] = "1"
		defer delete(p.vars, "NO_COLOR")
		if out, _ = p.wants(exitOK, "why", "team-a/coder"); strings.Contains(out, "\x1b") {
			t.Errorf("NO_COLOR is set:\n%s", out)
		}
	})
	t.Run("JSON", func(t *testing.T) { p.readsJSON(t) })
	t.Run("completion", func(t *testing.T) { p.presses(t) })
	t.Run("the picture follows the fleet", func(t *testing.T) { p.watches(t) })
}

func (p *person) readsJSON(t *testing.T) {
	for _, command := range []string{"nodes", "top"} {
		out, _ := p.wants(exitOK, command, "-o", "json")
		var list struct{ Macs []inventory.Mac }
		p.must(json.Unmarshal([]byte(out), &list))
		if len(list.Macs) != 4 || list.Macs[0].Memory == nil || list.Macs[3].Name != "mac-studio-1" || list.Macs[3].Memory.UsedBytes != 10*gib+200<<20 {
			t.Errorf("%s: %s", command, out)
		}
		if list.Macs[2].Name != "mac-new" || list.Macs[2].Memory != nil {
			t.Errorf("%s: a Mac that never reported has figures: %s", command, out)
		}
	}
	out, _ := p.wants(exitOK, "why", "team-a/coder", "-o", "json")
	var story explain.Story
	p.must(json.Unmarshal([]byte(out), &story))
	if story.Stage != explain.StagePlacement || story.Holdup == nil || story.Holdup.Reason != v1alpha1.ReasonNoRoom || story.Holdup.Since == nil || len(story.Macs) != 4 {
		t.Errorf("why: %s", out)
	}
	out, _ = p.wants(exitOK, "version", "-o", "json")
	contains(t, "version", out, `"version": "v0.0.0-test"`)
}

func (p *person) presses(t *testing.T) {
	for _, tc := range []struct{ want, args string }{
		{"mac-mini-1 mac-mini-2", "top mac-m"},
		{"team-a/chat team-a/coder", "why t"},
		{"chat coder", "-n team-a why c"},
		{"json", "nodes -o "},
		{"top", "to"},
	} {
		out, _ := p.wants(exitOK, append([]string{"__complete"}, strings.Split(tc.args, " ")...)...)
		var words []string
		for _, line := range strings.Split(out, "\n") {
			if word, _, _ := strings.Cut(line, "\t"); word != "" && !strings.HasPrefix(word, ":") {
				words = append(words, word)
			}
		}
		if got := strings.Join(words, " "); got != tc.want {
			t.Errorf("completing %q offers %q, want %q", tc.args, got, tc.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _ := p.wants(exitOK, "completion", shell); !strings.Contains(out, "kubectl-metalfleet") {
			t.Errorf("no completion for %s", shell)
		}
	}
}

// watches follows the fleet on a terminal, while a Mac changes.
func (p *person) watches(t *testing.T) {
	p.terminal = true
	defer func() { p.terminal = false }()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var out, errs lockedBuffer
	ended := make(chan int, 1)
	go func() { ended <- p.start(ctx, &out, &errs, "top", "mac-mini-2") }()
	p.eventually("the first picture", func() error { return errors.Join(said(out.String(), "M4Pro", "cordoned"), silent(errs.String())) })
	mac, err := p.macNow("mac-mini-2")
	p.must(err)
	before := mac.DeepCopy()
	mac.Status.Memory.FootprintBytes = 7 * gib
	p.must(p.c.Status().Patch(ctx, mac, client.MergeFrom(before)))
	p.eventually("what changed", func() error { return said(out.String(), "7.0 GiB") })
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("Ctrl-C ended it with %d: %s", code, errs.String())
	}
}

// silent complains of what a command says of itself.
func silent(errs string) error {
	if errs != "" {
		return errors.New(errs)
	}
	return nil
}

func said(got string, parts ...string) error {
	for _, p := range parts {
		if !strings.Contains(got, p) {
			return errors.New("nothing of " + p + " yet: " + got)
		}
	}
	return nil
}

func TestAnEmptyFleetIsSaidSo(t *testing.T) {
	p := newPerson(t)
	_, errs := p.wants(exitOK, "nodes")
	contains(t, "nodes", errs, "The fleet has no Macs")
	out, _ := p.wants(exitOK, "top", "--once")
	contains(t, "top", out, "The fleet has no Macs.")
	out, _ = p.wants(exitOK, "nodes", "-o", "json")
	contains(t, "nodes", out, `"macs": []`)
}

func TestWhatCannotBeMeant(t *testing.T) {
	p := newPerson(t)
	for _, tc := range []struct {
		code int
		args string
		says string
	}{
		{code: exitUsage, args: "nods", says: `unknown command "nods"; did you mean nodes, logs?`},
		{code: exitUsage, args: "nodes --colour", says: "unknown flag: --colour"},
		{code: exitUsage, args: "nodes -o yaml", says: `--output is "yaml"`},
		{code: exitUsage, args: "nodes extra", says: "takes no arguments, got 1"},
		{code: exitUsage, args: "why", says: "takes one MODEL, got 0"},
		{code: exitUsage, args: "top a b", says: "at most one MAC"},
		{code: exitFailed, args: "why ghost", says: `no ModelDeployment in namespace "default" has the name "ghost"`},
		{code: exitFailed, args: "why a/ghost", says: "ModelDeployment a/ghost does not exist"},
		{code: exitFailed, args: "top ghost", says: `there is no Mac "ghost"`},
		{code: exitFailed, args: "nodes --context nowhere", says: "set --kubeconfig or --context"},
		{code: exitFailed, args: "nodes --server https://127.0.0.1:1", says: "the API server is unreachable"},
	} {
		_, errs := p.wants(tc.code, strings.Split(tc.args, " ")...)
		contains(t, tc.args, errs, "error: ", tc.says)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	p := newPerson(t)
	root := newRoot(&Env{})
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" {
			continue // cobra's own
		}
		out, _ := p.wants(exitOK, c.Name(), "--help")
		contains(t, c.Name(), out, "Usage:\n  kubectl metalfleet "+c.Name(), "Examples:\n  ", "kubectl metalfleet "+c.Name())
	}
	out, _ := p.wants(exitOK)
	contains(t, "help", out, "Exit codes:", "nodes", "why")
}
