//go:build !race

package engine

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// compatible is readerInput of a model of unigrams with the normal form NFKC, whose limit is that of
// larger models.
func compatible(t *testing.T, name string) *inputProcessor {
	t.Helper()
	p := withTokenizer(t, name, func(text string) string { return strings.Replace(text, `"Lowercase"`, `"NFKC"`, 1) })
	p.conventions.Limit = 8192
	return p
}

// mostHeld is the most that the heap grows by while f runs, with the garbage of an engine.
func mostHeld(f func()) (most int64) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	before, stop, ended := live(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, int64(m.HeapAlloc)-before)
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-ended
	return most
}

// TestAttackTextsThatNormalizationMakesLong: the texts of several requests, which are normalized to
// six times their length without a separator, are turned into tokens within the slack of the limit.
func TestAttackTextsThatNormalizationMakesLong(t *testing.T) {
	const sign, bytes = "\u3316", 6 << 20 // of all requests
	for _, c := range []struct {
		name, reader string
		long         int
		query        bool
		prompt       bool
	}{
		{"long texts", "xlm-roberta cls", longBytes, false, false}, {"short texts", "xlm-roberta cls", longTextBytes, false, false},
		{"long queries", "xlm-roberta rerank", longBytes, true, false}, {"long prompts", "xlm-roberta cls", longBytes, false, true},
	} {
		p := compatible(t, c.reader)
		p.context = longBytes
		text := strings.Repeat(sign, (c.long-100)/len(sign))
		held := mostHeld(func() {
			var all sync.WaitGroup
			for range bytes / c.long {
				all.Go(func() {
					if c.prompt {
						if _, refusal := p.tokens(t.Context(), Request{Tenant: "a", Prompt: &text}, nil); refusal != nil {
							t.Errorf("%s: %v", c.name, refusal)
						}
						return
					}
					of := p.embedTexts(EmbedRequest{Texts: []string{text}, Options: embed.Options{Truncate: true}})
					if c.query {
						of, _ = p.rerankTexts(RerankRequest{Query: text, Documents: []string{"a"}, Options: embed.Options{Truncate: true}})
					}
					e, refusal := p.embeddingOf(t.Context(), "a", of)
					if refusal != nil {
						t.Errorf("%s: %v", c.name, refusal)
						return
					}
					e.release()
				})
			}
			all.Wait()
		})
		if slack := footprint.EngineLimit(0); held > slack {
			t.Errorf("%s took %d MiB, but there are %d between the reservation and the limit", c.name, held>>20, slack>>20)
		}
	}
}
