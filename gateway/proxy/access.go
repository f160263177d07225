package proxy

import (
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// hear takes the agent's own count of tokens, in the header of a whole response or
// the trailer of a stream.
func (w *reply) hear(h http.Header) {
	if n, ok := agentapi.Tokens(h); ok {
		w.tokens = n
	}
	w.meter.hear(h)
}

// access writes the line of the access log of a request that has ended: who asked
// which model, and what came of it. It holds nothing that a client wrote: a model
// is named as its deployment, or not at all.
func (p *Proxy) access(about *scope, w *reply, address string) {
	if !p.AccessLog {
		return
	}
	about.log().WithName("access").Info("Request ended", "key", about.key, "client", address, "model", about.model,
		"status", w.status, "tokens", w.tokens, "seconds", time.Since(w.began).Seconds())
}
