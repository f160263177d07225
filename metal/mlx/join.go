//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// joined are matrices of one format that are multiplied by the same rows. They
// are concatenated at their first product, so that a GPU starts one kernel for
// all of them. The parts of each member are views into the joined arrays, so
// that nothing exists twice afterwards.
type joined struct {
	members []*matrix
	parts   []handle
	out     int
}

// joinedOf finds what the matrices are joined in, joining them if they may be
// and fit; nil where they stay apart.
func (s *scope) joinedOf(x *array, ms []tensor.Matrix) *joined {
	if len(ms) < 2 || !s.b.gpu.Load() && !s.b.opts.Join {
		return nil
	}
	members := make([]*matrix, len(ms))
	for i, tm := range ms {
		m, ok := tm.(*matrix)
		if !ok || m.parts == nil || m.in != x.shape[1] || !m.format.Quantized() {
			return nil
		}
		members[i] = m
	}
	if j := members[0].joined; j != nil {
		if len(j.members) != len(members) {
			return nil
		}
		for i, m := range members {
			if j.members[i] != m {
				return nil
			}
		}
		return j
	}
	return s.b.join(members)
}

// join concatenates matrices. It returns nil and leaves them unchanged if they
// differ in format or the copy has no room.
func (b *Backend) join(members []*matrix) *joined {
	j := &joined{members: members}
	bytes := int64(0)
	for i, m := range members {
		if m.joined != nil || m.format != members[0].format {
			return nil
		}
		for _, before := range members[:i] {
			if before == m {
				return nil
			}
		}
		j.out += m.out
		bytes += m.bytes
	}
	if b.admit(bytes) != nil {
		return nil
	}
	views := make([][]handle, len(members))
	for p := range members[0].parts {
		if !b.joinPart(j, views, p) {
			j.drop(b, views)
			return nil
		}
	}
	for i, m := range members {
		if b.free(m.parts, false) != nil {
			return nil
		}
		m.parts, m.joined = views[i], j
	}
	return j
}

// joinPart joins words, scales or biases, and cuts the views.
func (b *Backend) joinPart(j *joined, views [][]handle, p int) bool {
	apart := make([]handle, len(j.members))
	for i, m := range j.members {
		apart[i] = m.parts[p]
	}
	made := C.bridge_join(b.token(), unsafe.SliceData(apart), C.int32_t(len(apart)))
	if fault(made.status) != nil {
		return false
	}
	j.parts = append(j.parts, made.array)
	from := 0
	for i, m := range j.members {
		view := C.bridge_span(b.token(), made.array, -2, C.int32_t(from), C.int32_t(from+m.out), 1)
		if fault(view.status) != nil {
			return false
		}
		views[i] = append(views[i], view.array)
		from += m.out
	}
	return true
}

// drop frees what was made in vain.
func (j *joined) drop(b *Backend, views [][]handle) {
	all := j.parts
	for _, v := range views {
		all = append(all, v...)
	}
	_ = b.free(all, false) // the members are as they were
}

// release lets go of the joined arrays; views of members that are still in use
// keep what they need.
func (j *joined) release(b *Backend) {
	if j == nil || j.parts == nil {
		return
	}
	if b.free(j.parts, false) == nil {
		j.parts = nil
	}
	for _, m := range j.members {
		m.joined = nil
	}
}

// linearJoined multiplies by all members at once.
func (s *scope) linearJoined(x *array, j *joined, outs []tensor.Array) {
	const op = "Linear"
	if !s.begin(op) {
		return
	}
	f := j.members[0].format
	var biases handle
	if len(j.parts) > 2 {
		biases = j.parts[2]
	}
	all := s.made(op, C.bridge_linear(s.b.token(), x.h, j.parts[0], j.parts[1], biases, C.int32_t(f.Group), C.int32_t(f.Bits), modeOf(f)), x.shape[0], j.out)
	from := 0
	for i, m := range j.members {
		if s.failed() {
			return
		}
		outs[i] = s.made(op, C.bridge_span(s.b.token(), all.h, -1, C.int32_t(from), C.int32_t(from+m.out), 0), x.shape[0], m.out)
		from += m.out
	}
	s.Release(all)
}
