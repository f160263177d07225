package engine_test

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	facts "metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// longContext is the context of a tiny decoder that embeds, many times what a step computes.
const longContext = 8192

// longReader writes such a decoder.
func longReader(t *testing.T) string {
	t.Helper()
	c := tinymodel.Default()
	c.Family, c.Context = tinymodel.Qwen3, longContext
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return path
}

// textOf is a text of n tokens, the first of which is the given one.
func textOf(first, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((first + i) % 100)
	}
	return out
}

// longEncoder writes an encoder that reads long texts.
func longEncoder(t *testing.T, name string, layers int) string {
	t.Helper()
	all := tinymodel.Readers()
	r := all[slices.IndexFunc(all, func(r tinymodel.Reader) bool { return r.Name == name })]
	r.Size = tinymodel.Size{Hidden: 32, Inner: 64, Heads: 2, Layers: layers, Positions: 1024}
	dir := filepath.Join(t.TempDir(), "model")
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAttackALongTextHoldsUpOthers: a text of many chunks, or one that takes an encoder long, is
// computed in turns with those of another tenant, and what its client left of it is dropped.
func TestAttackALongTextHoldsUpOthers(t *testing.T) {
	t.Run("decoder", func(t *testing.T) { testLongText(t, longReader(t), longContext) })
	t.Run("encoder", func(t *testing.T) { testLongText(t, longEncoder(t, "bert mean", 48), 1000) })
}

func testLongText(t *testing.T, path string, size int) {
	e := ready(t, engine.Options{ModelPath: path, Sequences: 2, CacheTokens: 2 * size, Task: facts.Embed}, ref.Options{})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	before := e.Status().Steps
	go func() {
		_, err := e.Embed(ctx, engine.EmbedRequest{Tenant: "hog", Tokens: [][]int32{textOf(0, size-1)}})
		ended <- err
	}()
	for e.Status().Steps == before { // until it is computed
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	for i := range 3 {
		if _, err := e.Embed(t.Context(), engine.EmbedRequest{Tenant: "other", Tokens: [][]int32{textOf(i, 16)}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(ended) > 0 {
		t.Error("three short texts of another tenant waited until the long one was computed")
	}
	leave()
	if err := <-ended; err == nil {
		t.Error("the long text was computed although its client left")
	}
	if _, err := e.Embed(t.Context(), engine.EmbedRequest{Tenant: "other", Tokens: [][]int32{textOf(0, 16)}}); err != nil {
		t.Fatal(err)
	}
	if kept, kv := engine.Kept(e), e.Status().Memory.KV; kept != 0 || kv != 0 {
		t.Errorf("%d requests and %d bytes of the cache are kept", kept, kv)
	}
}

// An encoder that computes a text layer by layer returns what it does for the whole text.
func TestLayersInTurnsHaveTheResultsOfOnePass(t *testing.T) {
	texts := []string{strings.Repeat("a man ", 90), "a man", strings.Repeat("man a ", 80)}
	path := longEncoder(t, "bert mean", 8)
	vectors, _, err := byHand(t, path, facts.Embed).Embed(t.Context(), texts, truncated)
	if err != nil {
		t.Fatal(err)
	}
	ranker := longEncoder(t, "xlm-roberta rerank", 8)
	scores, _, err := byHand(t, ranker, facts.Rerank).Rerank(t.Context(), "a man", texts, truncated)
	if err != nil {
		t.Fatal(err)
	}
	e, r := ready(t, engine.Options{ModelPath: path, Sequences: 2}, ref.Options{}), ready(t, engine.Options{ModelPath: ranker, Sequences: 2}, ref.Options{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			got, err := e.Embed(t.Context(), engine.EmbedRequest{Texts: texts, Options: truncated})
			if err != nil || !slices.EqualFunc(got.Vectors, vectors, slices.Equal) {
				t.Errorf("the vectors are others than of whole texts (%v)", err)
			}
		})
		all.Go(func() {
			got, err := r.Rerank(t.Context(), engine.RerankRequest{Query: "a man", Documents: texts, Options: truncated})
			if err != nil || !slices.Equal(got.Scores, scores) {
				t.Errorf("the scores are others than of whole texts (%v)", err)
			}
		})
	}
	all.Wait()
}

// Vectors of texts that are computed in turns are those of each text alone, also where the
// cache has room for one long text.
func TestTextsInTurnsHaveTheirOwnVectors(t *testing.T) {
	path := longReader(t)
	alone := ready(t, engine.Options{ModelPath: path, Task: facts.Embed}, ref.Options{})
	var requests [][][]int32
	var want []*engine.Embedded
	for i, n := range []int{900, 16, 700, 40, 129, 128, 500, 3} {
		requests = append(requests, [][]int32{textOf(i, n), textOf(i+1, 17), textOf(i+2, n/2+1)})
		one, err := alone.Embed(t.Context(), engine.EmbedRequest{Tokens: requests[i]})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, one)
	}
	for _, cache := range []int{longContext, 2 * longContext} {
		e := ready(t, engine.Options{ModelPath: path, Sequences: 4, CacheTokens: cache, Task: facts.Embed}, ref.Options{})
		var all sync.WaitGroup
		for i, texts := range requests {
			all.Go(func() {
				got, err := e.Embed(t.Context(), engine.EmbedRequest{Tenant: string(rune('a' + i%3)), Tokens: texts})
				if err != nil || !slices.EqualFunc(got.Vectors, want[i].Vectors, slices.Equal) {
					t.Errorf("texts of %d tokens have other vectors in company (%v)", len(texts[0]), err)
				}
			})
		}
		all.Wait()
		if kv := e.Status().Memory.KV; kv != 0 {
			t.Errorf("%d bytes of the cache are kept", kv)
		}
	}
}
