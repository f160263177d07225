package engine

import (
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/share"
)

const (
	// toolsBytes are what the schemas of tools of all requests take at most until these have
	// ended. The guard counts those that are held.
	toolsBytes = 128 << 20
	// leastTools are what they may take under any limit.
	leastTools = 4 << 20
	// toolsPart of the slack of footprint.EngineLimit may be tools. The rest is for texts that
	// are received, renders, constraints and output that is not read yet.
	toolsPart = 4
	// toolCopies is how often the text of a schema is in memory then: as it was sent, for the
	// form of calls, and as values, for their parser.
	toolCopies = 2
)

// mostTools are what the tools of all requests may take in a process with a limit, 0 for none.
func mostTools(limit, reserved int64) int64 {
	if limit == 0 {
		return toolsBytes
	}
	return min(toolsBytes, max(leastTools, (limit-reserved)/toolsPart))
}

// heldTools are the bytes that a request has of the tools of all.
type heldTools struct {
	account  *share.Bytes
	tenant   string
	bytes    int64
	released atomic.Bool
}

// holdTools counts the tools of a request until it ends. A template need not write all of them,
// so that a request with a short prompt may have many.
func (p *inputProcessor) holdTools(r Request) (*heldTools, *Refusal) {
	n := toolCopies*int64(len(r.Chat.Tools)) + valueBytes*int64(chat.Values(r.Chat.Tools))
	if most := p.tools.Limit(r.Tenant); n > most {
		return nil, invalid(toolsParam, "the tools take %d bytes of memory, want at most %d; send fewer tools, or shorter schemas", n, most)
	}
	if !p.tools.Take(r.Tenant, n) {
		return nil, &Refusal{Kind: QueueFull, Param: toolsParam, Message: "the tools of other requests take too much memory; try again, or send fewer tools", RetryAfter: retryAfter}
	}
	return &heldTools{account: p.tools, tenant: r.Tenant, bytes: n}, nil
}

// release returns the bytes; twice does nothing.
func (h *heldTools) release() {
	if h != nil && !h.released.Swap(true) {
		h.account.Give(h.tenant, h.bytes)
	}
}
