// Package peers runs the programs that benchmarks compare the engine with: each
// in a process of its own, driven by a small Python program in this folder,
// and asked one thing at a time so that nothing else computes meanwhile.
//
// It owns their installation (install.sh), their process and the lines spoken
// with it: a request is {"streams": n, "prompt": n, "tokens": n}, the answer a
// Figures. It refuses to go on without a peer: one that cannot be installed or
// started is an error, never a figure that is left out.
//
// Start reading at Start.
package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Name of a peer, as install.sh knows it.
type Name string

// The peers.
const (
	LlamaCPP Name = "llama.cpp"
	MLXLM    Name = "mlx-lm"
)

// program is the Python program that drives a peer.
func (n Name) program() string {
	return "peer_" + strings.NewReplacer(".", "_", "-", "_").Replace(string(n)) + ".py"
}

// Install makes a peer ready, or finds it so, and returns its Python. root is
// the repository.
func Install(ctx context.Context, root string, n Name, progress io.Writer) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(root, "test", "bench", "peers", "install.sh"), string(n))
	cmd.Stderr = progress
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("install %s: %w", n, err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1], nil
}

// Options are what a peer computes with.
type Options struct {
	// Python is what Install returned.
	Python string
	// Root is the repository.
	Root string
	// Model is a file or folder that the peer reads.
	Model string
	// Threads compute, where the peer lets one choose.
	Threads int
}

// Peer is one that has loaded its model and has run once.
type Peer struct {
	name Name
	// Versions are the peer's and of what it runs on, in the order it told.
	Versions []Version

	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
	log     *os.File
}

// Version of a part of a peer.
type Version struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Figures are what one request took.
type Figures struct {
	// Prefill is from a prompt to its first token, in seconds.
	Prefill float64 `json:"prefillSeconds"`
	// Steps are the decode steps one by one, in seconds.
	Steps []float64 `json:"stepSeconds"`
}

// WarmSteps are decoded before the median of steps counts: as many as the
// engine's own benchmark leaves out.
const WarmSteps = 3

// PrefillRate is tokens per second of a prompt.
func (f Figures) PrefillRate(prompt int) float64 { return float64(prompt) / f.Prefill }

// DecodeRate is steps per second at the median step: tokens per second of each
// stream.
func (f Figures) DecodeRate() float64 {
	sorted := slices.Sorted(slices.Values(f.Steps[WarmSteps:]))
	return 1 / sorted[len(sorted)/2]
}

// Start starts a peer and waits until it has loaded its model. Stop ends it.
func Start(ctx context.Context, n Name, o Options) (*Peer, error) {
	return start(ctx, n, o.Python, "-u", filepath.Join(o.Root, "test", "bench", "peers", n.program()), o.Model, fmt.Sprint(o.Threads))
}

func start(ctx context.Context, n Name, program string, args ...string) (*Peer, error) {
	log, err := os.CreateTemp("", "mf-peer-*.log")
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", n, err)
	}
	p := &Peer{name: n, log: log, cmd: exec.CommandContext(ctx, program, args...)}
	p.cmd.Stderr, p.cmd.WaitDelay = log, time.Second
	p.cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, p.forget())
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, p.forget())
	}
	p.answers = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", n, err), p.forget())
	}
	var hello struct {
		Versions []Version `json:"versions"`
	}
	if err := p.answer(&hello); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", n, err), p.Stop())
	}
	p.Versions = hello.Versions
	return p, nil
}

// Measure has the peer compute a prompt for each stream, one after another, and
// then decode tokens after them, all streams in each step. WarmSteps steps come
// before those that count; tokens may be 0.
func (p *Peer) Measure(streams, prompt, tokens int) (Figures, error) {
	ask := struct {
		Streams int `json:"streams"`
		Prompt  int `json:"prompt"`
		Tokens  int `json:"tokens"`
	}{streams, prompt, 0}
	if tokens > 0 {
		ask.Tokens = tokens + WarmSteps
	}
	var f Figures
	if err := json.NewEncoder(p.in).Encode(ask); err != nil {
		return f, fmt.Errorf("ask %s: %w\n%s", p.name, err, p.said())
	}
	if err := p.answer(&f); err != nil {
		return f, fmt.Errorf("ask %s: %w", p.name, err)
	}
	if f.Prefill <= 0 || len(f.Steps) != ask.Tokens {
		return f, fmt.Errorf("ask %s: prefill of %v s and %d steps for %d tokens cannot be", p.name, f.Prefill, len(f.Steps), ask.Tokens)
	}
	return f, nil
}

func (p *Peer) answer(to any) error {
	line, err := p.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("it went away: %w\n%s", err, p.said())
	}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("it answered %q: %w", line, err)
	}
	return nil
}

// said is the end of the peer's log.
func (p *Peer) said() []byte {
	const most = 1500
	b, _ := os.ReadFile(p.log.Name())
	return b[max(0, len(b)-most):]
}

// Stop ends the peer: it exits when its input ends.
func (p *Peer) Stop() error {
	err := p.in.Close()
	if werr := p.cmd.Wait(); werr != nil {
		err = fmt.Errorf("%s ended badly: %w\n%s", p.name, werr, p.said())
	}
	return errors.Join(err, p.forget())
}

func (p *Peer) forget() error { return errors.Join(p.log.Close(), os.Remove(p.log.Name())) }
