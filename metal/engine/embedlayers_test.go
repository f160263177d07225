//go:build !race

package engine_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	facts "metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
)

// An encoder that computes a text layer by layer returns what it does for the whole text.
func TestLayersInTurnsHaveTheResultsOfOnePass(t *testing.T) {
	texts := []string{strings.Repeat("a man ", 90), "a man", strings.Repeat("man a ", 80)}
	path := longEncoder(t, "bert mean")
	vectors, _, err := byHand(t, path, facts.Embed).Embed(t.Context(), texts, truncated)
	if err != nil {
		t.Fatal(err)
	}
	ranker := longEncoder(t, "xlm-roberta rerank")
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
