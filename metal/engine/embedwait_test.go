//go:build !race

package engine

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
)

// TestAttackRerankRequestsThatWait: requests that repeat a long query or instruction for each of
// many short texts hold it once while they wait, and what they hold is counted until they end.
func TestAttackRerankRequestsThatWait(t *testing.T) {
	const requests, count = 8, 100
	for _, name := range []string{"bert rerank", "qwen3 rerank", "qwen3 embed"} {
		p := readerInput(t, name)
		p.conventions.Limit = 4096 // nothing is computed
		long, short := strings.Repeat("a ", 3500), slices.Repeat([]string{"a"}, count)
		read := func() *embedding {
			all := p.embedTexts(EmbedRequest{Texts: short, Options: embed.Options{Instruction: long}})
			if p.task == model.Rerank {
				var refusal *Refusal
				if all, refusal = p.rerankTexts(RerankRequest{Query: long, Documents: short}); refusal != nil {
					t.Fatal(refusal)
				}
			}
			e, refusal := p.embeddingOf(t.Context(), "a", all)
			if refusal != nil {
				t.Fatal(name, refusal)
			}
			return e
		}
		var waiting []*embedding
		before := live()
		for range requests {
			waiting = append(waiting, read())
		}
		grown, repeated := live()-before, int64(waiting[0].allTokens())*tokenBytes
		if one := waiting[0].inputs[1].Input(); int64(len(one.IDs)*count)*tokenBytes != repeated || repeated < count*3500*tokenBytes {
			t.Errorf("%s: %d tokens in an input, %d bytes of all", name, len(one.IDs), repeated)
		}
		if grown > requests*repeated/10 {
			t.Errorf("%s: %d requests hold %d bytes, a tenth of the tokens that they repeat is %d", name, requests, grown, requests*repeated/10)
		}
		if counted := p.texts.Held(); counted < requests*count*textBytes || grown > 2*counted {
			t.Errorf("%s: %d bytes are counted of %d", name, counted, grown)
		}
		for _, e := range waiting {
			e.end(nil)
		}
		if p.texts.Held() != 0 {
			t.Errorf("%s: %d bytes are counted when all requests have ended", name, p.texts.Held())
		}
	}
}

// live is the size of the objects in use.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
