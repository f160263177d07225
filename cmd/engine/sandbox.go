package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"metalfleet.dev/metalfleet/metal/sandbox"
	"metalfleet.dev/metalfleet/metal/wire"
)

// prepareSandbox does what must come before anything is opened, and returns
// what confines the process once it listens. No model was read before that.
func prepareSandbox(cfg wire.Config, socket, configPath, state string) (confine func(*slog.Logger) error, err error) {
	if cfg.Sandbox == wire.SandboxOff {
		return func(log *slog.Logger) error {
			log.Warn("running without a sandbox", "reason", "switched off")
			return nil
		}, nil
	}
	r := sandbox.Rules{Read: []string{cfg.ModelPath, configPath}, Socket: socket, State: state}
	for _, a := range cfg.Adapters {
		r.Read = append(r.Read, a.Path)
	}
	if cfg.CacheDir != "" {
		r.Write = []string{cfg.CacheDir}
	}
	for _, list := range []*[]string{&r.Read, &r.Write} {
		for i, path := range *list {
			if (*list)[i], err = filepath.Abs(path); err != nil {
				return nil, fmt.Errorf("sandbox: %w", err)
			}
		}
	}
	if r.Socket, err = filepath.Abs(socket); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	if err := sandbox.Prepare(r); err != nil && (cfg.Sandbox == wire.SandboxRequire || !errors.Is(err, sandbox.ErrUnavailable)) {
		return nil, err
	}
	return func(log *slog.Logger) error {
		kind, err := sandbox.Enter(r)
		if errors.Is(err, sandbox.ErrUnavailable) && cfg.Sandbox != wire.SandboxRequire {
			log.Warn("running without a sandbox", "reason", err)
			return nil
		}
		if err != nil {
			return err
		}
		log.Info("confined to the model, the cache folder and the socket", "sandbox", kind)
		return nil
	}, nil
}
