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
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/process"
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
	// DiskQueue bytes, in the model's folder CacheDir; nil grants none. ModelDigest
	// names the model then.
	Disk                  func(kv.Origin) (stream.Lease, error)
	DiskQueue             int64
	CacheDir, ModelDigest string
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
	// the 25 ms between two looks.
	Placed, Ready time.Duration

	program *process.Program
	dir     string
	close   func() error
	// granting ends with the engine, if it has a disk.
	granting sync.WaitGroup
}

const (
	readyLimit = 10 * time.Minute
	stopLimit  = 30 * time.Second
)

// Start runs an engine until it is ready. Stop ends it.
func Start(ctx context.Context, o Options) (*Engine, error) {
	dir, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	e := &Engine{dir: dir, close: func() error { return nil }}
	if err := e.start(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("serve %s: %w", o.Model, err), e.kill())
	}
	return e, nil
}

func (e *Engine) start(ctx context.Context, o Options) error {
	model, err := filepath.Abs(o.Model)
	if err != nil {
		return err
	}
	cfg, err := json.Marshal(wire.Config{ReplicaUID: "bench", Epoch: 1, ModelPath: model, Backend: o.Backend,
		ContextTokens: int64(o.ContextTokens), Sequences: int64(o.Sequences), CacheTokens: int64(cmp.Or(o.CacheTokens, o.ContextTokens*o.Sequences)),
		LimitBytes: cmp.Or(o.LimitBytes, 1<<40), ModelDigest: o.ModelDigest, CacheQueueBytes: o.DiskQueue, CacheDir: o.CacheDir})
	if err != nil {
		return err
	}
	config, socket := filepath.Join(e.dir, "config.json"), filepath.Join(e.dir, "s")
	if err := os.WriteFile(config, cfg, 0o600); err != nil {
		return err
	}
	conn, err := wire.Dial(socket)
	if err != nil {
		return err
	}
	e.Client, e.close = wire.NewEngineClient(conn), conn.Close
	e.program = process.New("engine", o.Program, e.dir, "serve", "--socket", socket, "--config", config,
		"--cache-memory", strconv.FormatInt(o.CacheMemory, 10), "--prefix-cache="+strconv.FormatBool(o.PrefixCache))
	e.program.Env = o.Env
	began := time.Now()
	if err := e.program.Start(); err != nil {
		return err
	}
	if e.PID = e.program.PID(); o.Started != nil {
		o.Started(e.PID)
	}
	if err := e.await(ctx, began, o.UntilPlaced); err != nil || o.Disk == nil {
		return err
	}
	// It ends with the engine. Benchmarks notice if nothing was written.
	e.granting.Go(func() { _ = stream.Follow(ctx, e.Client, o.Disk) })
	return nil
}

func (e *Engine) await(ctx context.Context, began time.Time, untilPlaced bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("the engine is not ready after %s", readyLimit))
	defer cancel()
	var failed error
	err := e.program.Ready(ctx, func(ctx context.Context) error {
		st, err := e.Status(ctx)
		if err != nil {
			return err
		}
		done, total := st.GetLoad().GetBytesDone(), st.GetLoad().GetBytesTotal()
		if e.Placed == 0 && total > 0 && done >= total {
			e.Placed = time.Since(began)
		}
		switch {
		case st.GetState() == wire.State_STATE_READY && !untilPlaced:
			e.Ready = time.Since(began)
			return nil
		case st.GetState() == wire.State_STATE_FAILED:
			failed = fmt.Errorf("the engine failed: %s: %s; its log ends:\n%s", st.GetReason(), st.GetMessage(), process.Tail(e.program.Log))
			return nil
		case untilPlaced && e.Placed > 0:
			return nil
		}
		return fmt.Errorf("the engine is %s with %d of %d bytes", st.GetState(), done, total)
	})
	return cmp.Or(err, failed)
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
	ctx, cancel := context.WithTimeoutCause(context.Background(), stopLimit, fmt.Errorf("the engine did not end within %s", stopLimit))
	defer cancel()
	_, err := e.Client.Shutdown(ctx, &wire.ShutdownRequest{})
	for err == nil {
		ended, over := e.program.Ended()
		if over {
			return errors.Join(ended, e.kill())
		}
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errors.Join(fmt.Errorf("stop the engine: %w", err), e.kill())
}

// kill ends the process if it runs, and removes its files.
func (e *Engine) kill() error {
	err := e.program.Kill()
	e.granting.Wait()
	return errors.Join(err, e.close(), os.RemoveAll(e.dir))
}
