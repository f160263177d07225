//go:build !race

package leaks

import (
	"context"
	"flag"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

var long = flag.Bool("long", false, "run 10,000 forward passes and cancel 1,000 requests")

// amounts are how much of each part is run.
type amounts struct {
	passes, cancelled, stopped int
	// settled is the number of passes after which the process's memory is taken
	// as what it should stay at.
	settled int
}

func TestNothingLeaks(t *testing.T) {
	n := amounts{passes: 40, cancelled: 12, settled: 20, stopped: 3}
	if *long {
		n = amounts{passes: 10_000, cancelled: 1000, settled: 500, stopped: 20}
	}
	c := shape()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	for _, kind := range backends.All() {
		for _, ahead := range variants(kind) {
			s := &subject{kind: kind, ahead: ahead, path: path, config: c, t: t}
			t.Run(s.name(), func(t *testing.T) {
				s.t = t
				if err := s.check(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// variants are the modes of a back end: ref also a step ahead, as MLX computes
// anyway.
func variants(kind backends.Kind) []bool {
	if kind.Name == "ref" {
		return []bool{false, true}
	}
	return []bool{false}
}

// shape is a model of many small layers, three times as many as a framework
// queues ahead, so that what each layer keeps shows in the peak of a step. Its
// arrays of maxTokens rows have sizes that ref does not round up.
func shape() tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Layers, c.Context = tinymodel.Qwen3, 16, 512
	return c
}

// subject is one back end under test.
type subject struct {
	t      *testing.T
	kind   backends.Kind
	ahead  bool
	path   string
	config tinymodel.Config
	// resident is what the process held when it had settled.
	resident int64
}

func (s *subject) name() string {
	if s.ahead {
		return s.kind.Name + " ahead"
	}
	return s.kind.Name
}

func (s *subject) open(fault func(string) error) tensor.Backend {
	b := s.kind.New(backends.Options{Threads: 2, Poison: true, Ahead: s.ahead})
	faulty := tensortest.Faulty(b, fault)
	if p, ok := b.(peaker); ok {
		return measured{faulty, p}
	}
	return faulty
}

// measured is a faulty back end with the peak of the one that it wraps.
type measured struct {
	tensor.Backend
	peaker
}

// check runs all parts. Steps that are computed ahead are the engine's affair
// alone.
func (s *subject) check(ctx context.Context, n amounts) error {
	if !s.ahead {
		if err := s.network(ctx, n); err != nil {
			return err
		}
	}
	return s.requests(ctx, n)
}
