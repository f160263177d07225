package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// leakFlag is the flag of a test that needs an engine with a memory leak. Help does not
// list it.
const leakFlag = "test-leak"

// hiddenLeak adds the flag. With it, every step of the engine takes this many bytes and
// never frees them, so that a test can see what stops such an engine.
func hiddenLeak(f *flag.FlagSet) *int64 {
	n := f.Int64(leakFlag, 0, "")
	f.Usage = func() {
		shown := flag.NewFlagSet(f.Name(), flag.ContinueOnError)
		shown.SetOutput(f.Output())
		f.VisitAll(func(g *flag.Flag) {
			if g.Name != leakFlag {
				shown.Var(g.Value, g.Name, g.Usage)
			}
		})
		fmt.Fprintf(f.Output(), "Usage of %s:\n", f.Name())
		shown.PrintDefaults()
	}
	return n
}

// leaking returns a back end that leaks bytes with every step; 0 returns b itself.
func leaking(b tensor.Backend, bytes int64, log *slog.Logger) tensor.Backend {
	if bytes <= 0 {
		return b
	}
	log.Error("this engine leaks memory on purpose, for a test", "bytesPerStep", bytes)
	return &leaky{Backend: b, bytes: bytes}
}

// leaky is a back end with a memory leak outside its account.
type leaky struct {
	tensor.Backend
	bytes  int64
	leaked [][]byte
}

// NewScope leaks: every step has a scope of its own.
func (l *leaky) NewScope(ctx context.Context) tensor.Scope {
	b := make([]byte, l.bytes)
	for i := 0; i < len(b); i += 4 << 10 {
		b[i] = 1 // resident, not merely mapped
	}
	l.leaked = append(l.leaked, b)
	return l.Backend.NewScope(ctx)
}
