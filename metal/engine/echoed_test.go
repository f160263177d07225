//go:build !race

package engine

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/share"
)

// Tokens of a prompt that is echoed are counted as the text that they make before it is made: of
// requests whose text has no room, none is.
func TestAnEchoedPromptCountsBeforeItIsMade(t *testing.T) {
	const requests, most = 8, 8 << 20
	p := compatible(t, "xlm-roberta cls")
	longest := int32(0)
	for id := range int32(p.tok.Size()) {
		if len(p.tok.Bytes(id)) > len(p.tok.Bytes(longest)) {
			longest = id
		}
	}
	tokens := slices.Repeat([]int32{longest}, most/len(p.tok.Bytes(longest)))
	want := strings.Repeat(string(p.tok.Bytes(longest)), len(tokens))
	echo := func() (*sequence, *Refusal) {
		s := &sequence{tokens: tokens, prompt: len(tokens), stream: newStream(tokens, p.tok.Bytes, unread{share: p.unread, tenant: "a"})}
		refusal := p.echo(s, Request{Tenant: "a", Tokens: tokens, Echo: true})
		if refusal != nil {
			s.stream.Close()
		}
		return s, refusal
	}
	p.unread = share.NewBytes(2 * (most + 1<<10))
	s, refusal := echo()
	if refusal != nil {
		t.Fatal(refusal)
	}
	if n := p.unread.Of("a"); n != int64(len(s.stream.echoed)) || strings.TrimSpace(s.stream.echoed) != strings.TrimSpace(want) {
		t.Errorf("%d bytes are counted of a text of %d, want %d", n, len(s.stream.echoed), len(want))
	}
	held := mostHeld(func() {
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				if _, refusal := echo(); refusal == nil || refusal.Kind != QueueFull {
					t.Errorf("an echo without room: %v", refusal)
				}
			})
		}
		all.Wait()
	})
	if held > 3*most {
		t.Errorf("%d refused requests took %d MiB", requests, held>>20)
	}
	s.stream.Close()
	if n := p.unread.Of("a"); n != 0 {
		t.Errorf("%d bytes are counted after the end", n)
	}
	p.unread = share.NewBytes(most)
	if _, refusal := echo(); refusal == nil || refusal.Kind != Invalid || refusal.Param != "echo" || p.unread.Of("a") != 0 {
		t.Errorf("an echo that never has room: %+v", refusal)
	}
}
