//go:build !race

package leaks

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// growth is how much more the process may hold than when it had settled: what
// the Go heap, the pools and thread stacks are seen to vary by, and no more.
const growth = 16 << 20

// resident is what the process holds in memory, in bytes, after the Go heap
// gave back what it does not use.
func resident() (int64, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	unit, field := int64(os.Getpagesize()), 1
	if errors.Is(err, os.ErrNotExist) { // not Linux
		text, err = exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(os.Getpid())).Output()
		unit, field = 1<<10, 0
	}
	fields := strings.Fields(string(text))
	if err != nil || len(fields) <= field {
		return 0, fmt.Errorf("memory of the process: %q, %w", text, err)
	}
	n, err := strconv.ParseInt(fields[field], 10, 64)
	return n * unit, err
}

// settle takes what the process holds as what it should stay at.
func (s *subject) settle() error {
	if s.resident != 0 {
		return nil
	}
	var err error
	s.resident, err = resident()
	return err
}

// grown describes what the process holds, and fails if that is too much more than
// when it had settled.
func (s *subject) grown() (string, error) {
	now, err := resident()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("process %.1f MB, settled at %.1f", float64(now)/1e6, float64(s.resident)/1e6)
	if now > s.resident+growth {
		return "", fmt.Errorf("%s: grew by more than %d MiB", text, growth>>20)
	}
	return text, nil
}

// unchanged refuses a back end that holds more, or less, than before.
func unchanged(before, after tensor.Memory) error {
	if after.Live != before.Live || after.KV != before.KV || after.Weights != before.Weights || after.Arrays != before.Arrays {
		return fmt.Errorf("the back end holds %d arrays of %d bytes, %d of KV and %d of weights; before it was %d of %d, %d and %d",
			after.Live, after.Arrays, after.KV, after.Weights, before.Live, before.Arrays, before.KV, before.Weights)
	}
	return nil
}

// peaker is a back end that remembers the most it held at once, in bytes.
type peaker interface{ Peak() int64 }

// bound is the most a back end may hold while it computes a step of that
// many tokens and sampled rows: the resting memory (weights and vectors), what the
// caches hold, and the arrays of one layer, which are there until it ends:
//
//	7 of the hidden size (what came in, two norms, two projections, two sums),
//	4 of the queries' and 4 of the keys' (projected, normed, turned, and v or
//	what was attended), 5 of the feed-forward's (gate, up, their product, and
//	halves of two sums on the way),
//
// or those of the head. Each array of ref is a power of two of at least 16 KiB.
//
// A framework that computes late also has the scores of attention
// (heads x tokens x context, twice), one layer's cache that is copied while it
// grows, and the arrays of the layers that it queues ahead: on two
// processors that others use as well, MLX was seen to hold all it may.
func bound(name string, c tinymodel.Config, rest, kv int64, tokens, rows int) int64 {
	array := func(rows, width int) int64 {
		n := 4 * int64(rows) * int64(width)
		if name == "ref" {
			n = max(16<<10, int64(1)<<bits.Len64(uint64(n-1)))
		}
		return n
	}
	q, k := c.QueryHeads*c.HeadSize, c.KVHeads*c.HeadSize
	layer := 7*array(tokens, c.Hidden) + 4*array(tokens, q) + 4*array(tokens, k) + 5*array(tokens, c.FeedForward)
	head := 3*array(tokens, c.Hidden) + 2*array(rows, c.Vocabulary) + array(rows, c.Hidden) + array(1, rows)
	ids := array(1, tokens)
	if name == "ref" {
		return rest + kv + ids + max(layer, head)
	}
	scores := 2 * array(tokens, c.QueryHeads*c.Context)
	ahead := footprint.KernelsOf(footprint.MLXCPU).LayersAhead
	return rest + kv + kv/int64(c.Layers) + ids + (1+ahead)*max(layer, head) + scores
}

// checkPeak refuses a back end that held more than the bound at any time.
func checkPeak(b tensor.Backend, rest, kv, limit int64) (string, error) {
	p, ok := b.(peaker)
	if !ok {
		return "", fmt.Errorf("the back end does not say its peak")
	}
	text := fmt.Sprintf("peak %d bytes of %d allowed (%d at rest, %d of KV, %d of arrays)", p.Peak(), limit, rest, kv, limit-rest-kv)
	if p.Peak() > limit {
		return "", fmt.Errorf("%s", text)
	}
	return text, nil
}
