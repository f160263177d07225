package arch_test

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/race"
)

// families are all that attend to what they computed before.
func families() []tinymodel.Family {
	return []tinymodel.Family{tinymodel.Llama, tinymodel.Qwen2, tinymodel.Qwen3, tinymodel.Qwen3MoE, tinymodel.Gemma3, tinymodel.GPTOSS, tinymodel.Qwen3Next, tinymodel.Qwen35}
}

// State saved by one engine and restored by another with the same weights
// yields the same bits, across blocks and sliding windows.
func TestRestoredRequestContinuesBitForBit(t *testing.T) {
	for _, family := range families() {
		t.Run(string(family), func(t *testing.T) {
			c := ofFamily(family)
			c.Context, c.NormSpread = 1024, 0.5
			path := write(t, c)
			ids := tokens(300, c.Vocabulary)
			first, second := load(t, path, ref.Options{Threads: 2}), load(t, path, ref.Options{Threads: 1})
			want := first.all(1, ids, 50)
			lengths := []int{17, 256, 262}
			if race.Enabled {
				lengths = []int{262}
			}
			for _, at := range lengths {
				first.prefill(2, ids[:at], 64)
				slices, state := first.save(2, at)
				first.cache.Drop(2)
				if err := second.cache.Restore(3, at, slices, state); err != nil {
					t.Fatal(err)
				}
				got := second.from(3, ids, at, 7)
				equalBits(t, fmt.Sprintf("after %d tokens", at), got, want[at*c.Vocabulary:])
				second.cache.Drop(3)
			}
		})
	}
}

// prefill computes tokens in chunks and reads nothing.
func (n *network) prefill(id tensor.RequestID, tokens []int32, chunk int) {
	n.t.Helper()
	for at := 0; at < len(tokens); at += chunk {
		piece := tokens[at:min(at+chunk, len(tokens))]
		if _, err := n.step(piece, []tensor.Segment{{Request: id, Start: at, Length: len(piece)}}, nil); err != nil {
			n.t.Fatal(err)
		}
	}
}

// save returns the whole cache of a request after that many tokens.
func (n *network) save(id tensor.RequestID, tokens int) (slices [][]byte, state []byte) {
	n.t.Helper()
	block := n.m.CacheSpec().BlockTokens
	for at := 0; at < tokens; at += block {
		p := make([]byte, n.cache.SliceBytes(min(block, tokens-at)))
		if err := n.cache.Save(id, at, min(at+block, tokens), p); err != nil {
			n.t.Fatal(err)
		}
		slices = append(slices, p)
	}
	state = make([]byte, n.cache.StateBytes(tokens))
	if err := n.cache.SaveState(id, state); err != nil {
		n.t.Fatal(err)
	}
	return slices, state
}

// from gives the logits of all tokens from one on, a few at a time.
func (n *network) from(id tensor.RequestID, tokens []int32, at, chunk int) (out []float32) {
	n.t.Helper()
	for ; at < len(tokens); at += chunk {
		piece := tokens[at:min(at+chunk, len(tokens))]
		rows := make([]int, len(piece))
		for i := range rows {
			rows[i] = i
		}
		v, err := n.step(piece, []tensor.Segment{{Request: id, Start: at, Length: len(piece)}}, rows)
		if err != nil {
			n.t.Fatal(err)
		}
		out = append(out, v...)
	}
	return out
}
