package engine

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Adapter is a low-rank adapter that requests may name. It is loaded with the model, and
// released with it.
type Adapter struct {
	Name string
	// Path of its folder, in the layout of peft or of mlx-lm.
	Path string
	// Digest identifies its weights: cached prefixes are found under it.
	Digest string
}

// openAdapters are adapters that are open for loading, by name.
type openAdapters map[string]*weights.Adapter

// openAll opens the adapters of a model, and checks that they are its.
func (l *loader) openAll(f *weights.File, task model.Task) (openAdapters, error) {
	out := openAdapters{}
	for _, a := range l.opts.Adapters {
		if task != model.Generate {
			return out, fmt.Errorf("adapter %q: a model that does not generate text has none: %w", a.Name, weights.ErrUnsupported)
		}
		opened, err := weights.OpenAdapter(l.hard, a.Path, f)
		if err != nil {
			return out, fmt.Errorf("adapter %q: %w", a.Name, err)
		}
		out[a.Name] = opened
	}
	return out, nil
}

func (o openAdapters) close() {
	for _, a := range o {
		_ = a.Close() // nothing was written
	}
}

// bytes that all of them take when they are loaded.
func (o openAdapters) bytes() (n int64) {
	for _, a := range o {
		n += a.Bytes
	}
	return n
}

// loadAdapters loads the adapters onto the model.
func (l *loader) loadAdapters(m *loadedModel, opened openAdapters) error {
	m.adapters = map[string]*nn.Adapter{}
	for name, o := range opened {
		a, err := m.model.LoadAdapter(l.hard, o)
		if err != nil {
			return fmt.Errorf("load adapter %q: %w", name, err)
		}
		m.adapters[name] = a
		l.counters.loaded.Add(o.Bytes)
	}
	return nil
}

// digests of the adapters by name, as the prefix cache separates them.
func digests(all []Adapter) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		out[a.Name] = a.Name + " " + a.Digest
	}
	return out
}

// adapted is the scope of a step in which each row has the adapter of its sequence.
func (r *runner) adapted(s tensor.Scope, step batch.Step) tensor.Scope {
	if len(r.adapters) == 0 {
		return s
	}
	var of []*nn.Adapter
	for _, row := range step.Rows {
		a := r.adapters[r.byID[row.ID].adapter]
		for range row.Length {
			of = append(of, a)
		}
	}
	return nn.Adapted(s, of)
}
