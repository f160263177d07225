//go:build !race

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/text"
)

// TestAttackLongInputsThatWait: those that wait for the turn among long texts take no more than
// the share of their tenant, and another tenant's still has room.
func TestAttackLongInputsThatWait(t *testing.T) {
	p := tinyInput(t)
	p.context = 1 << 20
	long := strings.Repeat("x", receivedBytes/8)
	for name, r := range map[string]Request{
		"prompts":       {Prompt: &long},
		"conversations": {Chat: saying(long)},
		"forms":         {Chat: saying(strings.Repeat("x", longBytes+1)), Constraint: &Constraint{}},
	} {
		if r.Constraint != nil {
			r.Constraint.Source = long
		}
		synctest.Test(t, func(t *testing.T) {
			if err := p.long.Take(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			const requests = 8
			refused := make(chan *Refusal, requests+1)
			ask := func(tenant string) {
				r := r
				r.Tenant = tenant
				go func() {
					_, refusal := p.sequenceOf(t.Context(), r)
					refused <- refusal
				}()
				synctest.Wait()
			}
			for range requests {
				ask("hog")
			}
			if n := p.received.Of("hog"); n > receivedBytes/2 || len(refused) < requests/2 {
				t.Errorf("%s: %d bytes of one tenant wait, %d requests are refused", name, n, len(refused))
			}
			for range len(refused) {
				if refusal := <-refused; refusal == nil || refusal.Kind != QueueFull || refusal.RetryAfter == 0 {
					t.Errorf("%s: %v", name, refusal)
				}
			}
			if ask("victim"); len(refused) > 0 {
				t.Errorf("%s: another tenant's is refused", name)
			}
			p.long.Give("other")
			synctest.Wait()
			if p.received.Held() != 0 {
				t.Errorf("%s: %d bytes are held after the end", name, p.received.Held())
			}
		})
	}
}

// Texts of embeddings and their token lists count as prompts do.
func TestTextsForVectorsCountAsPromptsDo(t *testing.T) {
	p := readerInput(t, "qwen3 embed")
	if err := p.long.Take(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", 1<<20)
	for name, r := range map[string]EmbedRequest{
		"texts":  {Texts: []string{text, text, text, text}},
		"tokens": {Tokens: [][]int32{make([]int32, 1<<20)}},
	} {
		if n := p.embedTexts(r).received(); n < 4<<20 || n > 5<<20 {
			t.Errorf("%s count as %d bytes", name, n)
		}
	}
	if !p.received.Take("hog", receivedBytes/2) {
		t.Fatal("one tenant does not get half")
	}
	if _, refusal := p.embeddingOf(t.Context(), "hog", p.embedTexts(EmbedRequest{Texts: []string{"x"}})); refusal == nil || refusal.Kind != QueueFull {
		t.Errorf("a text of a tenant that has its share: %v", refusal)
	}
}

// An input that can have no room is refused as too long, so that the beginning of a
// conversation may be left out, and one that is longer than the context before it waits.
func TestInputsThatAreTooLongDoNotWait(t *testing.T) {
	p := tinyInput(t)
	if err := p.long.Take(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ context, bytes int }{
		"no room for it":          {1 << 20, receivedBytes/2 + 1},
		"longer than the context": {512, 2 << 20},
	} {
		p.context = c.context
		for _, r := range []Request{{Chat: saying(strings.Repeat("x", c.bytes))}, {Prompt: new(strings.Repeat("x", c.bytes))}, {Tokens: make([]int32, c.bytes/4)}} {
			r.Tenant = "a"
			if _, refusal := p.sequenceOf(t.Context(), r); refusal == nil || refusal.Kind != ContextLength {
				t.Errorf("%s: %v", name, refusal)
			}
		}
	}
	if _, refusal := p.sequenceOf(t.Context(), Request{}); !errors.As(refusal, new(*Refusal)) || refusal.Kind != Invalid {
		t.Errorf("a request without input: %v", refusal)
	}
}

// Stop strings of requests that wait are held with a table of them, so they count until the request
// ends.
func TestStopStringsOfRequestsThatWaitCount(t *testing.T) {
	p := tinyInput(t)
	prompt := "x"
	held := func(stops ...string) int64 {
		s, refusal := p.sequenceOf(t.Context(), Request{Tenant: "a", Prompt: &prompt, Stop: stops})
		if refusal != nil {
			t.Fatal(refusal)
		}
		defer s.held.release()
		return p.prompts.Of("a")
	}
	many := slices.Repeat([]string{strings.Repeat("y", maxStopBytes)}, maxStops)
	if more := held(many...) - held(); more < 9*maxStops*maxStopBytes {
		t.Errorf("%d stop strings of %d bytes count as %d bytes", maxStops, maxStopBytes, more)
	}
	if n := (Request{Stop: many}).inputBytes(); n < 9*maxStops*maxStopBytes {
		t.Errorf("before the prompt is read they count as %d bytes", n)
	}
	if n := p.prompts.Held(); n != 0 {
		t.Errorf("%d bytes are held after the end", n)
	}
}

// TestClientsOfOneTenantShareAsTenantsDo: without API keys, requests of a client count for it alone;
// what the engine remembers of prompts is everyone's.
func TestClientsOfOneTenantShareAsTenantsDo(t *testing.T) {
	p := tinyInput(t)
	prompt := strings.Repeat("x", 50)
	for _, r := range []Request{{Client: "a"}, {Tenant: "a"}, {Tenant: "a", Client: "b"}} {
		r.Prompt = &prompt
		s, refusal := p.sequenceOf(t.Context(), r)
		if refusal != nil {
			t.Fatal(refusal)
		}
		if p.prompts.Of("a") == 0 || s.owner != "a" || s.stream.unread.tenant != "a" {
			t.Errorf("tenant %q, client %q: the prompt counts for %q, the answer for %q", r.Tenant, r.Client, s.owner, s.stream.unread.tenant)
		}
		if s.prefix.salt.Tenant != r.Tenant {
			t.Errorf("tenant %q, client %q: caches are those of %q", r.Tenant, r.Client, s.prefix.salt.Tenant)
		}
		s.held.release()
	}
}

// TestTokensOfImagesCountWhileTheseWaitToBeDecoded: an image of some bytes has thousands of tokens.
func TestTokensOfImagesCountWhileTheseWaitToBeDecoded(t *testing.T) {
	p := seeingInput(t)
	_, data := sixteen(t)
	r := Request{Tenant: "a", Images: [][]byte{data}, Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Parts: []chat.Part{{Image: true}}}}}}
	s, refusal := p.sequenceOf(t.Context(), r)
	if refusal != nil {
		t.Fatal(refusal)
	}
	size := p.prompts.Held()
	s.images.release()
	s.held.release()
	synctest.Test(t, func(t *testing.T) {
		if err := p.images.decoding.Take(t.Context(), "slow"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go p.sequenceOf(ctx, r)
		synctest.Wait()
		if n := p.prompts.Held(); n != size || n == 0 {
			t.Errorf("%d bytes of tokens are counted, want %d", n, size)
		}
		cancel()
		synctest.Wait()
		p.images.decoding.Give("slow")
		if n, images := p.prompts.Held(), p.images.bytes(); n != 0 || images != 0 {
			t.Errorf("%d bytes of tokens and %d of images are counted after the request was cancelled", n, images)
		}
	})
}
