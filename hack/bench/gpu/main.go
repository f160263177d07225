// Command gpu holds the engine on an NVIDIA GPU against mlx-lm on the same one:
// random weights of real shapes, both read the same files, in turns. It owns
// the bounds that issue 4 set; it refuses to pass where one of them is missed.
//
// Start reading at main; run.sh prepares what it is given.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

type options struct {
	engine, peer, models, out string
	rounds, tokens            int
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", "bin/gpu/engine", "engine linked against MLX")
	flag.StringVar(&o.peer, "peer", "hack/bench/gpu/peer.py", "mlx-lm's side")
	flag.StringVar(&o.models, "models", ".cache/gpu/work", "folder with qwen3-0.6b and qwen3-8b")
	flag.StringVar(&o.out, "out", "docs/bench", "folder for gpu.json and gpu.md")
	flag.IntVar(&o.rounds, "rounds", 3, "how often both sides run")
	flag.IntVar(&o.tokens, "tokens", 64, "tokens to decode")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gpu:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	r := report{Date: time.Now().UTC().Format(time.DateOnly), Tokens: o.tokens}
	var err error
	if r.GPU, err = gpu(ctx); err != nil {
		return err
	}
	for _, shape := range []string{"qwen3-0.6b", "qwen3-8b"} {
		m, err := measure(ctx, o, shape)
		if err != nil {
			return fmt.Errorf("%s: %w", shape, err)
		}
		r.Models = append(r.Models, m)
	}
	if err := r.write(o.out); err != nil {
		return err
	}
	r.print(os.Stdout)
	return r.verdict()
}

// round is what both sides said once.
type round struct {
	ours  map[int]benched // by prompt and streams, see key
	peers peer
}

// benched is a line of engine bench.
type benched struct {
	Streams     int     `json:"streams"`
	Prompt      int     `json:"promptTokens"`
	Prefill     float64 `json:"prefillTokensPerSecond"`
	Step        float64 `json:"decodeStepMilliseconds"`
	Host        float64 `json:"hostMilliseconds"`
	CPU         float64 `json:"cpuMilliseconds"`
	WeightBytes int64   `json:"weightBytes"`
}

// peer is what peer.py prints; times in seconds, by prompt length and rows.
type peer struct {
	MLXLM     string             `json:"mlxLM"`
	MLX       string             `json:"mlx"`
	Device    string             `json:"device"`
	Prefill   map[string]float64 `json:"prefill"`
	Step      float64            `json:"step"`
	Rows      map[string]float64 `json:"rows"`
	Bandwidth float64            `json:"bandwidth"`
}

func lengths() []int { return []int{512, 4096} }
func streams() []int { return []int{1, 8, 16} }

func key(prompt, streams int) int { return prompt*1000 + streams }

func measure(ctx context.Context, o options, shape string) (model, error) {
	m := model{Shape: shape}
	for i := range o.rounds {
		var r round
		var err error
		both := []func(context.Context, options, string, *round) error{runOurs, runPeer}
		for side := range both {
			if err = both[(side+i)%2](ctx, o, shape, &r); err != nil {
				return m, fmt.Errorf("round %d: %w", i+1, err)
			}
		}
		m.rounds = append(m.rounds, r)
		fmt.Fprintf(os.Stderr, "%s: round %d of %d done\n", shape, i+1, o.rounds)
	}
	unread, err := unreadBytes(filepath.Join(o.models, shape))
	if err != nil {
		return m, err
	}
	m.sum(unread)
	return m, nil
}

func runOurs(ctx context.Context, o options, shape string, r *round) error {
	r.ours = map[int]benched{}
	var counts []string
	for _, n := range streams() {
		counts = append(counts, strconv.Itoa(n))
	}
	for _, c := range []struct {
		prompt, tokens int
		streams        string
	}{{128, o.tokens, strings.Join(counts, ",")}, {lengths()[0], 4, "1"}, {lengths()[1], 4, "1"}} {
		var lines []benched
		err := command(ctx, &lines, o.engine, "bench", "--json", "--backend", "mlx", "--runs", "5", "--model", filepath.Join(o.models, shape),
			"--prompt-tokens", strconv.Itoa(c.prompt), "--tokens", strconv.Itoa(c.tokens), "--streams", c.streams)
		if err != nil {
			return err
		}
		for _, l := range lines {
			r.ours[key(c.prompt, l.Streams)] = l
		}
	}
	return nil
}

func runPeer(ctx context.Context, o options, shape string, r *round) error {
	args := []string{o.peer, filepath.Join(o.models, shape), strconv.Itoa(o.tokens)}
	for _, n := range lengths() {
		args = append(args, strconv.Itoa(n))
	}
	return command(ctx, &r.peers, "python3", args...)
}

// command runs a program that prints JSON.
func command(ctx context.Context, into any, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&said)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, args[0], err, said.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("%s %s printed no JSON: %w", name, args[0], err)
	}
	return nil
}

func gpu(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return "", fmt.Errorf("ask nvidia-smi for the GPU: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// unreadBytes are weights that a step does not read: an embedding that is not
// the head too, of which it takes a few rows.
func unreadBytes(folder string) (int64, error) {
	raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err != nil {
		return 0, err
	}
	var c struct {
		Tied         *bool `json:"tie_word_embeddings"`
		Vocabulary   int64 `json:"vocab_size"`
		Hidden       int64 `json:"hidden_size"`
		Quantization struct {
			Bits  int64 `json:"bits"`
			Group int64 `json:"group_size"`
		} `json:"quantization"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return 0, fmt.Errorf("%s: %w", folder, err)
	}
	if c.Tied == nil || c.Quantization.Group == 0 {
		return 0, errors.New("config.json does not say what a step reads")
	}
	if *c.Tied {
		return 0, nil
	}
	return c.Vocabulary * c.Hidden * (c.Quantization.Bits*c.Quantization.Group + 32) / c.Quantization.Group / 8, nil
}
