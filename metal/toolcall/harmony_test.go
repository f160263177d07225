//go:build !race

package toolcall

import (
	"strings"
	"testing"
)

// A header that does not end is kept in part, and the message after it is read.
func TestAttackAHeaderOfACallThatDoesNotEnd(t *testing.T) {
	h := newHarmony(newLexer(Harmony, nil), Tools{})
	out := &sink{}
	for _, b := range []byte(strings.Repeat("x ", 1<<20)) {
		h.push(symbol(b), out)
	}
	if n := h.header.Len(); n > mostHeader {
		t.Errorf("%d bytes of a header are kept", n)
	}
	h.push(tagMessage, out)
	h.push(symbol('a'), out)
	if !h.body || h.kind != Text {
		t.Errorf("the message after it is of kind %v", h.kind)
	}
}
