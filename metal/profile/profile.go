// Package profile measures the time of the operations of a step: it is a
// backend that passes every call on to another and times it.
//
// It records names, times and bytes of operations. It waits for each operation
// before the next, so that a framework that defers work or runs operations
// concurrently takes longer than without it: only the shares are meaningful.
// Before Measure is called, scopes are those of the inner backend, at no cost.
// Bytes are those of operands, results, weights, keys and values, each counted
// once per call; processor caches are not modelled.
//
// Start reading at New.
package profile

import (
	"cmp"
	"context"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Operation sums up all calls of one operation.
type Operation struct {
	Name  string
	Calls int64
	Time  time.Duration
	// Bytes that it read and wrote. Of a mixture they are those of as many experts
	// as were chosen, at most all, as if no two rows had chosen the same.
	Bytes int64
}

// Backend is one under measurement. It serves the goroutine that the one inside
// serves.
type Backend struct {
	tensor.Backend
	// element is the least width of an activation.
	element int64
	types   map[quant.Type]bool
	spec    tensor.CacheSpec
	made    map[string]*Operation
	on      bool
}

// New wraps a back end. element is the minimum size of an activation in bytes;
// 0 means the model's own type.
func New(b tensor.Backend, element int64) *Backend {
	return &Backend{Backend: b, element: element, types: map[quant.Type]bool{}, made: map[string]*Operation{}}
}

// Measure starts or stops measuring, for scopes opened after it. Starting
// resets all results.
func (b *Backend) Measure(on bool) {
	b.on = on
	if on {
		clear(b.made)
	}
}

// Operations are the measurements since Measure was called, the longest first.
func (b *Backend) Operations() []Operation {
	var out []Operation
	for _, o := range b.made {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(x, y Operation) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// Ahead is no use where every operation is waited for.
func (b *Backend) Ahead() bool { return !b.on && b.Backend.Ahead() }

// LoadMatrix notes what type activations will have.
func (b *Backend) LoadMatrix(format quant.Format, out, in int, fill func(put func(first int, r quant.Row) error) error) (tensor.Matrix, error) {
	b.types[format.Type] = true
	return b.Backend.LoadMatrix(format, out, in, fill)
}

// NewCache notes how wide keys and values are.
func (b *Backend) NewCache(spec tensor.CacheSpec) (tensor.Cache, error) {
	b.spec = spec
	return b.Backend.NewCache(spec)
}

// NewScope opens a scope, under measurement if there is one.
func (b *Backend) NewScope(ctx context.Context) tensor.Scope {
	if !b.on {
		return b.Backend.NewScope(ctx)
	}
	return &scope{Scope: b.Backend.NewScope(ctx), b: b}
}

// width of an activation: that of the one type that all weights have, or of
// float32 where there are several.
func (b *Backend) width() int64 {
	own := int64(quant.Float32.Bytes())
	if len(b.types) == 1 {
		for t := range b.types {
			own = int64(t.Bytes())
		}
	}
	return max(own, b.element)
}

// note adds a call.
func (b *Backend) note(name string, took time.Duration, bytes int64) {
	o := b.made[name]
	if o == nil {
		o = &Operation{Name: name}
		b.made[name] = o
	}
	o.Calls++
	o.Time += took
	o.Bytes += bytes
}
