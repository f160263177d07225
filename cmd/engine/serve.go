package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/server"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/wire"
)

// serve runs until the agent calls Shutdown. It belongs to the agent: a
// terminal's Ctrl-C and hang-up are not for it. SIGTERM stops it at once,
// orderly.
func serve(ctx context.Context, e *env, args []string) error {
	f := e.flags("serve")
	socket := f.String("socket", "", "Unix socket to listen on (required)")
	configPath := f.String("config", "", "configuration file, JSON (required)")
	cacheMemory := f.Int64("cache-memory", 0, "bytes of memory for the prefix cache, in addition to the part of the reserved KV cache that running requests do not use")
	prefixCache := f.Bool("prefix-cache", true, "keep the prefix cache in the part of the reserved KV cache that running requests do not use")
	drafts := f.Bool("drafts", true, "use the draft head of a model that has one: a token that it guesses right saves a step")
	state := f.String("state", "", "the agent's folder, which the sandbox closes, if the socket does not lie in its folder run")
	steps := f.Bool("log-steps", false, "log the work and the duration of each step, in microseconds")
	leak := hiddenLeak(f)
	if err := parse(f, args, "socket", "config"); err != nil {
		return err
	}
	if *cacheMemory < 0 {
		return usagef("--cache-memory is %d bytes, want 0 (none) or more", *cacheMemory)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	cfg, err := readConfig(*configPath)
	if err != nil {
		return usageError{err}
	}
	confine, err := prepareSandbox(cfg, *socket, *configPath, *state)
	if err != nil {
		return err
	}
	backend, err := openBackend(cfg.Backend, 0, cfg.Activations)
	if err != nil {
		return err
	}
	l, err := listen(*socket, *configPath)
	if err != nil {
		_ = backend.Close() // nothing was computed
		return err
	}
	log := serveLog(e, cfg, *steps)
	log.Info("engine started", "version", version, "pid", os.Getpid(), "backend", backend.Name())
	backend = leaking(backend, *leak, log)
	if err := confine(log); err != nil {
		return errors.Join(err, l.Close(), backend.Close())
	}
	cache, below := diskCache(cfg, log)
	eng := engine.Start(engine.Options{
		ModelPath: cfg.ModelPath, Adapters: adaptersOf(cfg), Backend: backend, ContextTokens: int(cfg.ContextTokens), Sequences: int(cfg.Sequences),
		CacheTokens: int(cfg.CacheTokens), LimitBytes: cfg.LimitBytes, PrefixCache: *prefixCache, CacheMemory: *cacheMemory, Drafts: *drafts && backend.Ahead(), // elsewhere a second token costs what the first does
		ModelDigest: cfg.CacheModel(), Numerics: fmt.Sprintf("%s %s %s", backend.Name(), version, cfg.Activations), Task: model.Task(cfg.Task),
		SharedPrefixes: cfg.SharedPrefixes, SharedScope: cfg.SharedScope, ChatTemplate: cfg.ChatTemplate, CacheQueue: cfg.CacheQueueBytes, Below: below, Supervised: true, Log: log,
		HeapLimit: func(bytes int64) { debug.SetMemoryLimit(bytes) },
	})
	err = server.Serve(ctx, l, eng, server.Identity{
		Version: version, ReplicaUID: cfg.ReplicaUID, Epoch: cfg.Epoch, ConfigHash: cfg.Hash(), Backend: backend.Name(), Sampling: cfg.Sampling,
	}, cache)
	log.Info("engine stopped")
	return err
}

// listen listens for the agent, unless that has removed the configuration: an agent that was
// started meanwhile found no listener and took this engine for one that never began. It would not
// end it, and promises its memory again.
func listen(socket, config string) (net.Listener, error) {
	l, err := server.Listen(socket)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(config); err != nil {
		return nil, errors.Join(fmt.Errorf("the agent has given this engine up: %w", err), l.Close())
	}
	return l, nil
}

// diskCache is the cache on disk with the function that opens a tier of it; nil without one.
func diskCache(cfg wire.Config, log *slog.Logger) (*server.Cache, func(kv.Origin) kv.Tier) {
	if cfg.CacheQueueBytes <= 0 {
		return nil, nil
	}
	cache := server.NewCache(disk.OS{}, cfg.CacheQueueBytes, log)
	return cache, cache.Below
}

// adaptersOf are the adapters of a configuration.
func adaptersOf(cfg wire.Config) (out []engine.Adapter) {
	for _, a := range cfg.Adapters {
		out = append(out, engine.Adapter(a))
	}
	return out
}

func serveLog(e *env, cfg wire.Config, steps bool) *slog.Logger {
	level := slog.LevelInfo
	if steps {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewJSONHandler(e.stderr, &slog.HandlerOptions{Level: level})).With("replicaUID", cfg.ReplicaUID, "epoch", cfg.Epoch)
}

func readConfig(path string) (wire.Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return wire.Config{}, fmt.Errorf("read engine configuration: %w", err)
	}
	defer f.Close()
	return wire.ReadConfig(f)
}
