// Package backends is the table of the backends in this build: ref always, and
// mlx with the build tag mlx (make mlx).
//
// The order is best first. An unknown name is refused with an error that
// explains how to build it. Tests that run on every backend range over All.
//
// Start reading at All.
package backends

import (
	"errors"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

var (
	// errUnknown means that this build has no back end with that name.
	errUnknown = errors.New("back end is not in this build")
	// errUnsupported means that a back end does not support an option.
	errUnsupported = errors.New("the back end does not support this option")
)

// Options configure a back end; back ends ignore options that do not concern
// them.
type Options struct {
	// Threads that compute; 0 means one per processor. MLX chooses by itself.
	Threads int
	// EightBitActivations lets ref round activations to 8 bits; others cannot.
	EightBitActivations bool
	// Poison overwrites freed arrays (ref).
	Poison bool
	// Ahead lets ref compute a step before the one before it was read.
	Ahead bool
}

// Kind is one back end.
type Kind struct {
	Name string
	// New returns a back end; the goroutine that attaches it must close it.
	New func(Options) tensor.Backend
}

// All back ends of this build, best first.
func All() []Kind {
	return append(frameworks(), Kind{"ref", func(o Options) tensor.Backend {
		return ref.New(ref.Options{Threads: o.Threads, EightBitActivations: o.EightBitActivations, Poison: o.Poison, Ahead: o.Ahead})
	}})
}

// Names of all back ends, best first.
func Names() []string {
	var names []string
	for _, k := range All() {
		names = append(names, k.Name)
	}
	return names
}

// Open returns a new back end by name; empty means the best.
func Open(name string, o Options) (tensor.Backend, error) {
	all := All()
	if name == "" {
		name = all[0].Name
	}
	for _, k := range all {
		if k.Name != name {
			continue
		}
		if o.EightBitActivations && name != "ref" {
			return nil, fmt.Errorf("%w: %s uses the model's type for activations; only ref can round them to 8 bits", errUnsupported, name)
		}
		return k.New(o), nil
	}
	hint := ""
	if name == "mlx" {
		hint = "; make mlx builds an engine that includes it, bin/mlx/engine"
	}
	return nil, fmt.Errorf("%w: %q (available: %s)%s", errUnknown, name, strings.Join(Names(), ", "), hint)
}
