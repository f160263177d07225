// Package served starts the engine in a process of its own, as the agent does,
// and sends it requests.
//
// It owns the process from start to end, its socket, configuration and log. It
// refuses an engine that fails to load, and reports what that logged. Requests
// are greedy; figures are taken by the benchmarks.
//
// Start reading at Start.
package served

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Options select the engine and what it serves.
type Options struct {
	// Program of the engine, and a back end that it was built with.
	Program, Backend string
	// Model is a GGUF file or a folder.
	Model string
	// ContextTokens of the longest request; Sequences of them run at once.
	ContextTokens, Sequences int
	// CacheTokens that they share; 0 is enough for all of them.
	CacheTokens int
	// PrefixCache keeps prompts in KV that no request holds; CacheMemory is bytes
	// in addition. Without either, every prompt is computed.
	PrefixCache bool
	CacheMemory int64
	// Disk grants the engine a lease to write blocks to disk, through a queue of
	// DiskQueue bytes; nil grants none. ModelDigest names the model then.
	Disk        func(kv.Origin) (stream.Lease, error)
	DiskQueue   int64
	ModelDigest string
	// LimitBytes of the process; 0 is more than any model takes.
	LimitBytes int64
	// Env is added to the environment of the process.
	Env []string
	// Started, if set, is called with the process id before anything is loaded.
	Started func(pid int)
	// UntilPlaced makes Start return once all weights are in place; Engine.Ready
	// is 0 then.
	UntilPlaced bool
}

// Engine is one that is ready, or has its weights in place.
type Engine struct {
	Client wire.EngineClient
	PID    int
	// Placed and Ready are the times from the start of the process until all
	// weights were where they are computed with, and until it was ready, both to
	// the 20 ms between two status messages.
	Placed, Ready time.Duration

	cmd *exec.Cmd
	dir string
	// ended receives once how the process ended; nil before it was started.
	ended chan error
	close func() error
	// granting ends with the engine, if it has a disk.
	granting sync.WaitGroup
}

const (
	readyLimit = 10 * time.Minute
	stopLimit  = 30 * time.Second
	// interval of status messages, in milliseconds.
	interval = 20
)

// Start runs an engine until it is ready. Stop ends it.
func Start(ctx context.Context, o Options) (*Engine, error) {
	dir, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	e := &Engine{dir: dir, close: func() error { return nil }}
	if err := e.start(ctx, o); err != nil {
		log, _ := os.ReadFile(e.log())
		return nil, errors.Join(fmt.Errorf("serve %s: %w\n%s", o.Model, err, log), e.kill())
	}
	return e, nil
}

func (e *Engine) log() string { return filepath.Join(e.dir, "log") }

func (e *Engine) start(ctx context.Context, o Options) error {
	began := time.Now()
	socket, err := e.launch(ctx, o)
	if err != nil {
		return err
	}
	e.PID, e.ended = e.cmd.Process.Pid, make(chan error, 1)
	if o.Started != nil {
		o.Started(e.PID)
	}
	running, over := context.WithCancelCause(ctx)
	defer over(nil)
	go func() { // until the process ends, which Stop and kill wait for
		err := e.cmd.Wait()
		over(fmt.Errorf("the process ended: %w", cmp.Or(err, errors.New("exit status 0"))))
		e.ended <- err
	}()
	conn, err := wire.Dial(socket)
	if err != nil {
		return err
	}
	e.Client, e.close = wire.NewEngineClient(conn), conn.Close
	if err := e.await(running, began, o.UntilPlaced); err != nil || o.Disk == nil {
		return err
	}
	// It ends with the engine. Benchmarks notice if nothing was written.
	e.granting.Go(func() { _ = stream.Follow(ctx, e.Client, o.Disk) })
	return nil
}

// launch writes the configuration, starts the process and returns its socket.
func (e *Engine) launch(ctx context.Context, o Options) (socket string, err error) {
	model, err := filepath.Abs(o.Model)
	if err != nil {
		return "", err
	}
	cfg, err := json.Marshal(wire.Config{ReplicaUID: "bench", Epoch: 1, ModelPath: model, Backend: o.Backend,
		ContextTokens: int64(o.ContextTokens), Sequences: int64(o.Sequences), CacheTokens: int64(cmp.Or(o.CacheTokens, o.ContextTokens*o.Sequences)),
		LimitBytes: cmp.Or(o.LimitBytes, 1<<40), ModelDigest: o.ModelDigest, CacheQueueBytes: o.DiskQueue})
	if err != nil {
		return "", err
	}
	config, socket := filepath.Join(e.dir, "config.json"), filepath.Join(e.dir, "s")
	if err := os.WriteFile(config, cfg, 0o600); err != nil {
		return "", err
	}
	log, err := os.Create(e.log())
	if err != nil {
		return "", err
	}
	defer log.Close()
	e.cmd = exec.CommandContext(ctx, o.Program, "serve", "--socket", socket, "--config", config,
		"--cache-memory", strconv.FormatInt(o.CacheMemory, 10), "--prefix-cache="+strconv.FormatBool(o.PrefixCache))
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.Env = append(os.Environ(), o.Env...)
	if err := e.cmd.Start(); err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	return socket, nil
}

func (e *Engine) await(ctx context.Context, began time.Time, untilPlaced bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("the engine is not ready after %s", readyLimit))
	defer cancel()
	for {
		w, err := e.Client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: interval}, grpc.WaitForReady(true))
		for err == nil {
			var st *wire.Status
			if st, err = w.Recv(); err != nil {
				break
			}
			done, total := st.GetLoad().GetBytesDone(), st.GetLoad().GetBytesTotal()
			if e.Placed == 0 && total > 0 && done >= total {
				if e.Placed = time.Since(began); untilPlaced {
					return nil
				}
			}
			switch st.GetState() {
			case wire.State_STATE_READY:
				e.Ready = time.Since(began)
				return nil
			case wire.State_STATE_FAILED:
				return fmt.Errorf("the engine failed: %s: %s", st.GetReason(), st.GetMessage())
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Status returns the engine's current status.
func (e *Engine) Status(ctx context.Context) (*wire.Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := e.Client.Watch(ctx, &wire.WatchRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of the engine: %w", err)
	}
	st, err := w.Recv()
	if err != nil {
		return nil, fmt.Errorf("status of the engine: %w", err)
	}
	return st, nil
}

// Generate sends a greedy request, calls each for every event, and returns the
// usage. A stream that ends without its last event is an error.
func Generate(ctx context.Context, client wire.EngineClient, r *wire.GenerateRequest, each func(*wire.GenerateEvent)) (*wire.Usage, error) {
	zero := float32(0)
	r.Id, r.Sampling = "bench", &wire.Sampling{Temperature: &zero}
	stream, err := client.Generate(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	var finished *wire.Finished
	for {
		ev, err := stream.Recv()
		switch {
		case err == io.EOF && finished == nil:
			return nil, errors.New("generate: the stream ended without its last event")
		case err == io.EOF:
			return finished.GetUsage(), nil
		case err != nil:
			return nil, fmt.Errorf("generate: %w", err)
		}
		if f := ev.GetFinished(); f != nil {
			if f.GetError() != nil {
				return nil, fmt.Errorf("generate: %s", f.GetError().GetMessage())
			}
			finished = f
		}
		each(ev)
	}
}

// Tokens is a prompt of token ids.
func Tokens(ids []int32) *wire.GenerateRequest_Tokens {
	return &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}}
}

// Stop shuts the engine down and removes its files. An engine that does not end
// is killed, which is an error. One that was not awaited may compute its first
// token for minutes and is killed at once.
func (e *Engine) Stop() error {
	if e.Ready == 0 {
		return e.kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if _, err := e.Client.Shutdown(ctx, &wire.ShutdownRequest{}); err != nil {
		return errors.Join(fmt.Errorf("stop the engine: %w", err), e.kill())
	}
	select {
	case err := <-e.ended:
		e.granting.Wait()
		return errors.Join(err, e.close(), os.RemoveAll(e.dir))
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("the engine did not end within %s", stopLimit), e.kill())
	}
}

func (e *Engine) kill() error {
	if e.ended != nil {
		_ = e.cmd.Process.Kill()
		<-e.ended // an error, since it was killed
	}
	e.granting.Wait()
	return errors.Join(e.close(), os.RemoveAll(e.dir))
}
