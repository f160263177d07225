package engine

import (
	"bytes"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

const (
	// toolsBytes are what the schemas of tools of all requests take at most until these have
	// ended, and leastToolsBytes what they may take in any engine. The guard counts those that
	// are held.
	toolsBytes, leastToolsBytes = 128 << 20, 4 << 20
	// toolCopies is how often the text of a schema is in memory then: as it was sent, for the
	// form of calls, and as values, for their parser.
	toolCopies = 2
)

// heldBytes are the bytes that a request has of an account of all, until it ends.
type heldBytes struct {
	account  *share.Bytes
	tenant   string
	bytes    int64
	released atomic.Bool
}

// holdTools counts the tools of a request until it ends. A template need not write all of them,
// so that a request with a short prompt may have many.
func (p *inputProcessor) holdTools(r Request) (*heldBytes, *Refusal) {
	n := toolCopies*int64(len(r.Chat.Tools)) + valueBytes*int64(chat.Values(r.Chat.Tools)) + toolcall.ShapesBytes(bytes.Count(r.Chat.Tools, []byte("{")))
	if most := p.tools.Limit(r.owner()); n > most {
		return nil, invalid(toolsParam, "the tools take %d bytes of memory, want at most %d; send fewer tools, or shorter schemas", n, most)
	}
	if !p.tools.Take(r.owner(), n) {
		return nil, &Refusal{Kind: QueueFull, Param: toolsParam, Message: "the tools of other requests take too much memory; try again, or send fewer tools", RetryAfter: retryAfter}
	}
	return &heldBytes{account: p.tools, tenant: r.owner(), bytes: n}, nil
}

// release returns the bytes; twice does nothing.
func (h *heldBytes) release() {
	if h != nil && !h.released.Swap(true) {
		h.account.Give(h.tenant, h.bytes)
	}
}
