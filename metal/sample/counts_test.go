//go:build !race

package sample

import (
	"runtime"
	"testing"
)

// Requests that wait in the queue have counts, too: those of a prompt of 131,072 tokens took
// 2.3 MB, and dozens of them more than an engine's limit leaves.
func TestCountsOfALongPromptTakeLittleMemory(t *testing.T) {
	const tokens, requests, most = 1 << 17, 8, 32 << 10
	ids := make([]int32, tokens)
	for i := range ids {
		ids[i] = int32(i)
	}
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	counts := make([]Counts, requests)
	for i := range counts {
		counts[i].Prompt(ids)
	}
	if took := (live() - before) / requests; took > most {
		t.Errorf("counts of a prompt of %d tokens take %d bytes, want at most %d", tokens, took, most)
	}
	runtime.KeepAlive(counts)
	runtime.KeepAlive(ids)
}

// A penalty takes what the prompt and the answer have in common once.
func TestTokensOfPromptAndAnswerAreRepeatedOnce(t *testing.T) {
	p := Greedy()
	p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 2, 0.5, 0.25
	var counts Counts
	counts.Prompt([]int32{1, 64, 300})
	counts.Prompt([]int32{2})
	for _, id := range []int32{2, 2, 3} {
		counts.Add(id)
	}
	logits := make([]float32, 66)
	for i := range logits {
		logits[i] = 4
	}
	got := New(len(logits)).adjust(p, logits, &counts)
	for id, want := range map[int]float32{0: 4, 1: 2, 2: 1, 3: 1.25, 64: 2, 65: 4} {
		if got[id] != want {
			t.Errorf("logit of token %d is %v, want %v", id, got[id], want)
		}
	}
}
