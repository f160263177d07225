//go:build mlx

package mlx

// #cgo CXXFLAGS: -std=c++20
// #cgo LDFLAGS: -lmlx
// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Error is an exception of the framework.
type Error struct{ Text string }

func (e *Error) Error() string { return "mlx: " + e.Text }

// handle is an array of the bridge's; nil is none.
type handle = *C.bridge_array

// fault turns a status into an error and frees its text.
func fault(s C.bridge_status) error {
	if s.code == C.BRIDGE_OK {
		return nil
	}
	text := "out of memory for the strings"
	if s.text != nil {
		text = C.GoString(s.text)
		C.free(unsafe.Pointer(s.text))
	}
	switch s.code {
	case C.BRIDGE_THREAD:
		return tensor.ErrThread
	case C.BRIDGE_MEMORY:
		return fmt.Errorf("%w: %w", tensor.ErrMemory, &Error{text})
	}
	return &Error{text}
}

// thread is the framework as the one goroutine sees it that may call it. Every call
// names its owner, so that the bridge refuses those of other threads.
type thread struct {
	// owner is what the bridge knows the attached thread by; 0 before Attach
	// and after Close.
	owner  atomic.Uint64
	gauges gauges
}

// gauges are read by anyone and written by the owner.
type gauges struct {
	weights, kv, live, arrays, pooled, peak atomic.Int64
	// base is what the framework had in use before this back end.
	base int64
}

func (t *thread) token() C.uint64_t { return C.uint64_t(t.owner.Load()) }

// wholeOnCUDA bytes of what is restored lie twice on the device meanwhile.
const wholeOnCUDA = 128 << 20

func (b *Backend) attach() error {
	a := C.bridge_attach()
	if err := fault(a.status); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	b.framework = int64(a.memory_limit)
	b.gpu.Store(a.gpu != 0)
	b.whole, b.staged = b.opts.Whole, b.opts.Staged
	if b.cuda.Store(a.cuda != 0); a.cuda != 0 {
		b.products = mostProducts
		b.whole = cmp.Or(b.whole, wholeOnCUDA)
		b.staged = cmp.Or(b.staged, copiedAtOnce)
	}
	b.owner.Store(uint64(a.owner))
	if b.opts.HalvedFrom > 0 {
		if err := fault(C.bridge_halve(b.token(), C.int64_t(b.opts.HalvedFrom))); err != nil {
			return err
		}
	}
	if err := fault(C.bridge_whole(b.token(), C.int64_t(b.whole))); err != nil {
		return err
	}
	b.gauges.base = 0
	if err := errors.Join(b.resetPeak(), b.measure()); err != nil {
		return err
	}
	b.gauges.base = b.gauges.arrays.Swap(0)
	return nil
}

func (t *thread) detach() error {
	err := fault(C.bridge_detach(t.token()))
	t.owner.Store(0)
	return err
}

// check returns tensor.ErrThread unless this is the thread that attached.
func (t *thread) check() error { return fault(C.bridge_check(t.token())) }

// entered counts the calls that the bridge let in, of all back ends.
func entered() uint64 { return uint64(C.bridge_entered()) }

func (t *thread) limit(memory, pooled int64) error {
	return fault(C.bridge_limit(t.token(), C.int64_t(memory), C.int64_t(pooled)))
}

// trim waits for what computes and empties the pool.
func (t *thread) trim() error {
	if err := fault(C.bridge_trim(t.token())); err != nil {
		return err
	}
	return t.measure()
}

// shrink has the pool give up its oldest buffers, down to some bytes.
func (t *thread) shrink(to, limit int64) error {
	if err := fault(C.bridge_shrink(t.token(), C.int64_t(to), C.int64_t(limit))); err != nil {
		return err
	}
	return t.measure()
}

func (t *thread) measure() error {
	var g C.bridge_gauges
	if err := fault(C.bridge_measure(t.token(), &g)); err != nil {
		return err
	}
	t.publish(&g)
	return nil
}

func (t *thread) publish(g *C.bridge_gauges) {
	m := &t.gauges
	m.arrays.Store(max(0, int64(g.active)-m.base-m.weights.Load()-m.kv.Load()))
	m.pooled.Store(int64(g.pooled))
	m.peak.Store(max(0, int64(g.peak)-m.base))
}

// resetPeak begins a new measurement of the peak.
func (t *thread) resetPeak() error { return fault(C.bridge_reset_peak(t.token())) }

// free releases handles; last: a computation has ended. Handles released by a
// foreign thread stay, and are found as a leak.
func (t *thread) free(hs []handle, last bool) error {
	var g C.bridge_gauges
	err := fault(C.bridge_release(t.token(), unsafe.SliceData(hs), C.int32_t(len(hs)), flag(last), &g))
	if err == nil {
		t.publish(&g)
	}
	return err
}

func flag(v bool) C.int32_t {
	if v {
		return 1
	}
	return 0
}

// evaluate computes handles and rows of caches, and waits for them or not.
func (t *thread) evaluate(hs []handle, rows []*C.bridge_slab, wait bool) error {
	return fault(C.bridge_evaluate(t.token(), unsafe.SliceData(hs), C.int32_t(len(hs)), unsafe.SliceData(rows), C.int32_t(len(rows)), flag(wait)))
}

// numbers sees ints as the bridge does.
func numbers(v []int) []C.int32_t {
	out := make([]C.int32_t, len(v))
	for i, n := range v {
		out[i] = C.int32_t(n)
	}
	return out
}

// raw makes an array whose memory the caller fills before it is used.
func (t *thread) raw(kind C.int32_t, shape ...int) (handle, []byte, error) {
	var at unsafe.Pointer
	dims := numbers(shape)
	made := C.bridge_raw(t.token(), kind, unsafe.SliceData(dims), C.int32_t(len(dims)), &at)
	if err := fault(made.status); err != nil {
		return nil, nil, err
	}
	return made.array, unsafe.Slice((*byte)(at), int(made.bytes)), nil
}

// toDevice moves what the host filled to where the device wants it, and cuts
// its columns into parts.
func (t *thread) toDevice(h handle, parts int) (handle, error) {
	made := C.bridge_settle(t.token(), h, C.int32_t(parts))
	if err := fault(made.status); err != nil {
		return h, err
	}
	return made.array, t.free([]handle{h}, false)
}
