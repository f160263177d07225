package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// bytesPerToken of a request body, to guess its prompt before a Mac has counted
// it: about what English in JSON has.
const bytesPerToken = 4

// meter counts the tokens of one request against its key: a guess when it is
// let in, each event of a stream as it passes, and in the end what the agent
// says it was. A nil meter counts nothing.
type meter struct {
	keys    *keys.Store
	key     *keys.Key
	counted int64 // against the key so far
	told    int64 // by the agent; 0 while unknown
}

// meter claims what the prompt is thought to need.
func (p *Proxy) meter(ctx context.Context, c caller, w *reply, model string, body []byte) (*meter, error) {
	if c.key == nil {
		return nil, nil
	}
	guess := 1 + int64(len(body))/bytesPerToken
	v := c.key.TakeTokens(guess, p.Keys.Now())
	tellRate(w.Header(), "Tokens", v)
	if v.OK {
		return &meter{keys: p.Keys, key: c.key, counted: guess}, nil
	}
	p.denied(ctx, c, keys.ReasonTokens, model)
	if v.Never {
		w.Header().Set("X-Should-Retry", "false") // OpenAI's clients heed it
		e := openai.RateLimited(0)
		e.Message = fmt.Sprintf("The request has about %d tokens, but the API key '%s' may use %d per minute. Send a shorter one.", guess, c.key.Name, v.Limit)
		return nil, e
	}
	e := openai.RateLimited(v.Wait)
	e.Message = fmt.Sprintf("The API key '%s' may use %d tokens per minute and has %d left; the request has about %d. Try again in %s.",
		c.key.Name, v.Limit, v.Remaining, guess, inSeconds(v.Wait))
	return nil, e
}

// events counts what passes: a token or more for each.
func (m *meter) events(block []byte) {
	if m == nil {
		return
	}
	n := int64(bytes.Count(block, []byte("\ndata: ")))
	if bytes.HasPrefix(block, []byte("data: ")) {
		n++
	}
	m.add(n)
}

// hear takes the agent's own count, in the header of a whole answer or the
// trailer of a stream.
func (m *meter) hear(h http.Header) {
	if m == nil {
		return
	}
	if n, ok := agentapi.Tokens(h); ok {
		m.told = n
	}
}

func (m *meter) add(n int64) {
	if n != 0 {
		m.key.AddTokens(n, m.keys.Now())
		m.counted += n
	}
}

// settle ends the count. A request that was refused used nothing; one that
// ended without the agent's word, because somebody hung up, used what was
// counted so far.
func (m *meter) settle(status int) {
	switch {
	case m == nil:
		return
	case m.told > 0:
		m.add(m.told - m.counted)
	case status >= http.StatusBadRequest:
		m.add(-m.counted)
	}
	m.keys.CountTokens(m.key, m.counted)
}
