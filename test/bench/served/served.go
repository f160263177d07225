// Package served starts the real engine in a process of its own, as the agent
// does, and tells benchmarks when it was ready and what the kernel says it
// holds.
//
// It owns that process from its start to its end, its socket, configuration and
// log. It refuses an engine that fails to load, with what it logged. It
// measures no tokens: benchmarks ask its Client themselves.
//
// Start reading at Start.
package served

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Options say which engine serves what.
type Options struct {
	// Program is the engine's, Backend one of those it was built with.
	Program, Backend string
	// Model is a GGUF file or a folder.
	Model string
	// ContextTokens is the longest request; Sequences of that length run at
	// once.
	ContextTokens, Sequences int
	// CacheTokens that they share; 0 means enough for all of them.
	CacheTokens int
	// PrefixCache remembers prompts in KV that no request holds; CacheMemory are
	// bytes beside that. Without either the same prompt is computed each time.
	PrefixCache bool
	CacheMemory int64
	// Disk gives leave to keep blocks on disk, behind a queue of DiskQueue bytes; nil
	// is none. ModelDigest names the model then.
	Disk        func(kv.Origin) (stream.Lease, error)
	DiskQueue   int64
	ModelDigest string
	// LimitBytes is the ceiling of the process; 0 means none that matters.
	LimitBytes int64
	// Started, if set, is told the process before it loads anything. It must not
	// block.
	Started func(*Engine)
	// Steps is a file that the engine logs its steps to, kept when it stops; empty
	// is none.
	Steps string
	// UntilPlaced makes Start return once all weights are in place, and leaves
	// Engine.Ready at 0.
	UntilPlaced bool
}

// Engine is one that is Ready, or has its weights in place.
type Engine struct {
	Client wire.EngineClient
	PID    int
	// Placed and Ready are the time from the start of the process until all
	// weights were where they are computed with, and until it served; both to
	// the 20 ms between two looks.
	Placed, Ready time.Duration

	cmd *exec.Cmd
	dir string
	// ended gives once how the process ended; nil before it was started.
	ended chan error
	close func() error
	// granting ends with the engine, where it has a disk.
	granting sync.WaitGroup
}

const (
	readyLimit = 10 * time.Minute
	stopLimit  = 30 * time.Second
	// look is how often an engine says how far it is, in milliseconds.
	look = 20
)

// Start runs an engine until it serves. Stop ends it.
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
	model, err := filepath.Abs(o.Model)
	if err != nil {
		return err
	}
	cfg, err := json.Marshal(wire.Config{ReplicaUID: "bench", Epoch: 1, ModelPath: model, Backend: o.Backend,
		ContextTokens: int64(o.ContextTokens), Sequences: int64(o.Sequences), CacheTokens: int64(cmp.Or(o.CacheTokens, o.ContextTokens*o.Sequences)),
		LimitBytes: cmp.Or(o.LimitBytes, 1<<40), ModelDigest: o.ModelDigest, CacheQueueBytes: o.DiskQueue})
	if err != nil {
		return err
	}
	configPath, socket := filepath.Join(e.dir, "config.json"), filepath.Join(e.dir, "s")
	if err := os.WriteFile(configPath, cfg, 0o600); err != nil {
		return err
	}
	log, err := os.Create(e.log())
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.CommandContext(ctx, o.Program, "serve", "--socket", socket, "--config", configPath, "--cache-memory", strconv.FormatInt(o.CacheMemory, 10), "--prefix-cache="+strconv.FormatBool(o.PrefixCache))
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if o.Steps != "" {
		steps, err := os.Create(o.Steps)
		if err != nil {
			return err
		}
		defer steps.Close()
		e.cmd.Args = append(e.cmd.Args, "--log-steps")
		e.cmd.Stderr = steps
	}
	began := time.Now()
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	e.PID, e.ended = e.cmd.Process.Pid, make(chan error, 1)
	if o.Started != nil {
		o.Started(e)
	}
	running, over := context.WithCancelCause(ctx)
	defer over(nil)
	go func() { // until the process ends: Stop and kill wait for that
		err := e.cmd.Wait()
		over(fmt.Errorf("it ended: %w", cmp.Or(err, errors.New("exit status 0"))))
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
	e.granting.Go(func() { _ = stream.Follow(ctx, e.Client, o.Disk) }) // it ends with the engine; what is not found then, benchmarks refuse
	return nil
}

func (e *Engine) await(ctx context.Context, began time.Time, untilPlaced bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("it is not ready after %s", readyLimit))
	defer cancel()
	for {
		w, err := e.Client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: look}, grpc.WaitForReady(true))
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

// Stop ends the engine in order and removes what it left. An engine that does
// not end is killed, and that is an error. One that was not awaited computes
// its first token, which may take minutes: it is killed at once.
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

// kill ends whatever runs.
func (e *Engine) kill() error {
	if e.ended != nil {
		_ = e.cmd.Process.Kill()
		<-e.ended // says that it was killed
	}
	e.granting.Wait()
	return errors.Join(e.close(), os.RemoveAll(e.dir))
}
