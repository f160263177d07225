package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	promptTokens  = 512
	answerTokens  = 96
	contextTokens = 1024
	sequences     = 2
	readyLimit    = 2 * time.Minute
)

// measurements are one figure per run, except those of the whole process.
type measurements struct {
	prefill, decode, firstToken []float64
	loadMilliseconds            float64
	// footprint while a stream runs, and what it should consist of.
	footprint, weights, kv int64
}

// measure starts one engine and asks it again and again.
func measure(ctx context.Context, program, model string, runs int) (m measurements, err error) {
	e, err := startEngine(ctx, program, model)
	if err != nil {
		return m, err
	}
	defer func() {
		if serr := e.stop(); err == nil {
			err = serr
		}
	}()
	m.loadMilliseconds = float64(e.load.Microseconds()) / 1000
	for range runs {
		d, err := e.prefill(ctx)
		if err != nil {
			return m, err
		}
		m.prefill = append(m.prefill, promptTokens/d.Seconds())
		if err := e.decode(ctx, &m); err != nil {
			return m, err
		}
	}
	return m, nil
}

// served is an engine process and a connection to it.
type served struct {
	cmd    *exec.Cmd
	dir    string
	client wire.EngineClient
	close  func() error
	load   time.Duration
}

func startEngine(ctx context.Context, program, model string) (*served, error) {
	dir, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	cfg, err := json.Marshal(wire.Config{ReplicaUID: "bench", Epoch: 1, ModelPath: model,
		ContextTokens: contextTokens, Sequences: sequences, CacheTokens: contextTokens * sequences, LimitBytes: 1 << 40})
	if err != nil {
		return nil, err
	}
	configPath, socket := filepath.Join(dir, "config.json"), filepath.Join(dir, "s")
	if err := os.WriteFile(configPath, cfg, 0o600); err != nil {
		return nil, err
	}
	e := &served{dir: dir, cmd: exec.CommandContext(ctx, program, "serve", "--socket", socket, "--config", configPath)}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	e.cmd.Stdout, e.cmd.Stderr = log, log
	began := time.Now()
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	conn, err := wire.Dial(socket)
	if err != nil {
		return nil, err
	}
	e.client, e.close = wire.NewEngineClient(conn), conn.Close
	if err := e.awaitReady(ctx); err != nil {
		b, _ := os.ReadFile(log.Name())
		_ = e.stop()
		return nil, fmt.Errorf("%w\n%s", err, b)
	}
	e.load = time.Since(began)
	return e, nil
}

func (e *served) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		w, err := e.client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 20})
		for err == nil {
			var st *wire.Status
			if st, err = w.Recv(); err != nil {
				break
			}
			switch st.GetState() {
			case wire.State_STATE_READY:
				return nil
			case wire.State_STATE_FAILED:
				return fmt.Errorf("the engine failed: %s: %s", st.GetReason(), st.GetMessage())
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the engine is not ready after %s: %w", readyLimit, err)
		}
	}
}

// stop ends the engine and removes the scratch folder.
func (e *served) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := e.client.Shutdown(ctx, &wire.ShutdownRequest{})
	if err != nil {
		_ = e.cmd.Process.Kill()
	}
	werr := e.cmd.Wait()
	_ = e.close()
	_ = os.RemoveAll(e.dir)
	if err != nil {
		return fmt.Errorf("stop the engine: %w", err)
	}
	return werr
}

// generate asks once and calls each for every event.
func (e *served) generate(ctx context.Context, r *wire.GenerateRequest, each func(*wire.GenerateEvent) error) error {
	zero := float32(0)
	r.Sampling = &wire.Sampling{Temperature: &zero}
	stream, err := e.client.Generate(ctx, r)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	for {
		ev, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		if f := ev.GetFinished(); f.GetError() != nil {
			return fmt.Errorf("generate: %s", f.GetError().GetMessage())
		}
		if err := each(ev); err != nil {
			return err
		}
	}
}

// prefill is the time from Admitted to the first token of a prompt of 512.
func (e *served) prefill(ctx context.Context) (d time.Duration, err error) {
	ids := make([]int32, promptTokens)
	for i := range ids {
		ids[i] = int32(1000 + i*37%20000)
	}
	var began time.Time
	err = e.generate(ctx, &wire.GenerateRequest{Id: "prefill", MaxTokens: 1, Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}}}, func(ev *wire.GenerateEvent) error {
		switch {
		case ev.GetAdmitted() != nil:
			began = time.Now()
		case d == 0:
			d = time.Since(began)
		}
		return nil
	})
	if err == nil && d <= 0 {
		err = fmt.Errorf("the prompt of %d gave no token", promptTokens)
	}
	return d, err
}

// decode times one stream between its first and its last token, and reads the
// process's footprint while the stream holds its KV.
func (e *served) decode(ctx context.Context, m *measurements) error {
	chat := &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: "Tell a long story about a lighthouse keeper and the sea."}}}
	var admitted, first, last time.Time
	tokens := 0
	err := e.generate(ctx, &wire.GenerateRequest{Id: "decode", MaxTokens: answerTokens, Input: &wire.GenerateRequest_Chat{Chat: chat}}, func(ev *wire.GenerateEvent) error {
		if ev.GetAdmitted() != nil {
			admitted = time.Now()
		}
		n := len(ev.GetDelta().GetTokens())
		if n == 0 {
			return nil
		}
		last = time.Now()
		if tokens == 0 {
			first = last
			tokens = n
			return nil
		}
		if tokens += n; tokens >= answerTokens*3/4 && m.footprint == 0 {
			return e.account(ctx, m)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if tokens < answerTokens/2 {
		return fmt.Errorf("the story ended after %d tokens, too short to time", tokens)
	}
	m.firstToken = append(m.firstToken, float64(first.Sub(admitted).Microseconds())/1000)
	m.decode = append(m.decode, float64(tokens-1)/last.Sub(first).Seconds())
	return nil
}

// account reads what the engine says it holds and what the kernel says.
func (e *served) account(ctx context.Context, m *measurements) error {
	w, err := e.client.Watch(ctx, &wire.WatchRequest{})
	if err != nil {
		return err
	}
	st, err := w.Recv()
	if err != nil {
		return err
	}
	m.weights, m.kv = st.GetMemory().GetWeightsBytes(), st.GetMemory().GetKvInUseBytes()
	m.footprint, err = footprint(e.cmd.Process.Pid)
	return err
}

// footprint is Pss_Anon + Pss_Shmem + SwapPss of a process: what it holds
// alone, mapped files left out.
func footprint(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("footprint: %w", err)
	}
	var sum int64
	found := 0
	for _, line := range strings.Split(string(b), "\n") {
		key, rest, _ := strings.Cut(line, ":")
		switch key {
		case "Pss_Anon", "Pss_Shmem", "SwapPss":
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("footprint: %q: %w", line, err)
			}
			sum += kib << 10
			found++
		}
	}
	if found != 3 {
		return 0, fmt.Errorf("footprint: the kernel names %d of 3 figures", found)
	}
	return sum, nil
}
