// Package peers runs the programs that benchmarks compare the engine with.
//
// It owns their installation (install.sh), their processes, and two ways to use
// them: a program that stays loaded and measures what each line of its input
// asks for, and mlx-lm's server. It refuses to go on without a peer: one that
// cannot be installed or started is an error, never a figure that is left out.
//
// Start reading at Start and StartServer.
package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// Name of a peer, as install.sh knows it.
type Name string

// The peers.
const (
	LlamaCPP Name = "llama.cpp"
	MLXLM    Name = "mlx-lm"
)

// folder of this package in the repository.
var folder = filepath.Join("test", "bench", "peers")

// driver is the Python program that loads the peer.
func (n Name) driver() string {
	return "peer_" + strings.NewReplacer(".", "_", "-", "_").Replace(string(n)) + ".py"
}

// Install installs a peer unless it is there, and returns its Python.
func Install(ctx context.Context, n Name) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(folder, "install.sh"), string(n))
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("install %s: %w", n, err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1], nil
}

// Program is a process that stays loaded and answers each line of its standard
// input with a line of JSON: a peer, or `engine bench --lines`. Two of them can
// take turns on the same machine.
type Program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log bytes.Buffer
}

// Launch starts a program. Stop ends it.
func Launch(ctx context.Context, name string, args ...string) (*Program, error) {
	p := &Program{cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Stderr, p.cmd.WaitDelay = &p.log, time.Second
	p.cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Ask has the program compute prompts and decode tokens after each, and reads
// the answer.
func (p *Program) Ask(streams, prompt, tokens int, answer any) error {
	if _, err := fmt.Fprintln(p.in, streams, prompt, tokens); err != nil {
		return p.failed(err)
	}
	return p.Answer(answer)
}

// Answer reads a line of JSON.
func (p *Program) Answer(into any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return p.failed(fmt.Errorf("no answer: %w", err))
	}
	if err := json.Unmarshal(line, into); err != nil {
		return p.failed(fmt.Errorf("answer %q: %w", line, err))
	}
	return nil
}

// failed ends the program and adds the end of its log.
func (p *Program) failed(err error) error {
	return errors.Join(fmt.Errorf("ask %s: %w", strings.Join(p.cmd.Args, " "), err), p.Stop())
}

// Stop ends the program by closing its input. It may be called twice.
func (p *Program) Stop() error {
	if p.in == nil {
		return nil
	}
	_ = p.in.Close()
	p.in = nil
	if err := p.cmd.Wait(); err != nil {
		const most = 1500
		log := p.log.Bytes()
		return fmt.Errorf("%s: %w\n%s", p.cmd.Path, err, log[max(0, len(log)-most):])
	}
	return nil
}

// Peer is one that has loaded its model and has computed once.
type Peer struct {
	*Program
	// Versions of the peer and of what it runs on.
	Versions []report.Version `json:"versions"`
}

// Times is what one request took.
type Times struct {
	// Prefill is from the prompt to its first token; 0 for several streams.
	Prefill float64 `json:"prefillSeconds"`
	// Step is the median step of decoding; 0 without tokens.
	Step float64 `json:"stepSeconds"`
}

// Start starts a peer with a model and waits until it has loaded it.
func Start(ctx context.Context, n Name, python, model string, args ...string) (*Peer, error) {
	return start(ctx, python, append([]string{"-u", filepath.Join(folder, n.driver()), model}, args...)...)
}

func start(ctx context.Context, program string, args ...string) (*Peer, error) {
	p, err := Launch(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	peer := &Peer{Program: p}
	return peer, p.Answer(peer)
}

// Measure has the peer compute prompts and decode tokens after each; tokens may
// be 0.
func (p *Peer) Measure(streams, prompt, tokens int) (Times, error) {
	var t Times
	if err := p.Ask(streams, prompt, tokens, &t); err != nil {
		return t, err
	}
	if streams == 1 && t.Prefill <= 0 || tokens > 0 && t.Step <= 0 {
		return t, fmt.Errorf("%s measured %+v for %d prompts of %d and %d tokens", p.Versions[0].Name, t, streams, prompt, tokens)
	}
	return t, nil
}
