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

func (b *Backend) token() C.uint64_t { return C.uint64_t(b.owner.Load()) }

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

func (b *Backend) detach() error {
	err := fault(C.bridge_detach(b.token()))
	b.owner.Store(0)
	return err
}

// check says whether this is the thread that attached.
func (b *Backend) check() error { return fault(C.bridge_check(b.token())) }

// entered counts the calls that the bridge let in, of all back ends.
func entered() uint64 { return uint64(C.bridge_entered()) }

func (b *Backend) limit(memory, pooled int64) error {
	return fault(C.bridge_limit(b.token(), C.int64_t(memory), C.int64_t(pooled)))
}

// trim waits for what computes and empties the pool.
func (b *Backend) trim() error {
	if err := fault(C.bridge_trim(b.token())); err != nil {
		return err
	}
	return b.measure()
}

// shrink has the pool give up its oldest buffers, down to some bytes.
func (b *Backend) shrink(to, limit int64) error {
	if err := fault(C.bridge_shrink(b.token(), C.int64_t(to), C.int64_t(limit))); err != nil {
		return err
	}
	return b.measure()
}

func (b *Backend) measure() error {
	var g C.bridge_gauges
	if err := fault(C.bridge_measure(b.token(), &g)); err != nil {
		return err
	}
	b.publish(&g)
	return nil
}

func (b *Backend) publish(g *C.bridge_gauges) {
	m := &b.gauges
	m.arrays.Store(max(0, int64(g.active)-m.base-m.weights.Load()-m.kv.Load()))
	m.pooled.Store(int64(g.pooled))
	m.peak.Store(max(0, int64(g.peak)-m.base))
}

// resetPeak begins a new measurement of the peak.
func (b *Backend) resetPeak() error { return fault(C.bridge_reset_peak(b.token())) }

// free releases handles; last: a computation has ended. Handles released by a
// foreign thread stay, and are found as a leak.
func (b *Backend) free(hs []handle, last bool) error {
	var g C.bridge_gauges
	err := fault(C.bridge_release(b.token(), unsafe.SliceData(hs), C.int32_t(len(hs)), flag(last), &g))
	if err == nil {
		b.publish(&g)
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
func (b *Backend) evaluate(hs []handle, rows []*C.bridge_slab, wait bool) error {
	return fault(C.bridge_evaluate(b.token(), unsafe.SliceData(hs), C.int32_t(len(hs)), unsafe.SliceData(rows), C.int32_t(len(rows)), flag(wait)))
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
func (b *Backend) raw(kind C.int32_t, shape ...int) (handle, []byte, error) {
	var at unsafe.Pointer
	dims := numbers(shape)
	made := C.bridge_raw(b.token(), kind, unsafe.SliceData(dims), C.int32_t(len(dims)), &at)
	if err := fault(made.status); err != nil {
		return nil, nil, err
	}
	return made.array, unsafe.Slice((*byte)(at), int(made.bytes)), nil
}

// toDevice moves what the host filled to where the device wants it, and cuts
// its columns into parts.
func (b *Backend) toDevice(h handle, parts int) (handle, error) {
	made := C.bridge_settle(b.token(), h, C.int32_t(parts))
	if err := fault(made.status); err != nil {
		return h, err
	}
	return made.array, b.free([]handle{h}, false)
}
