package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// meter counts the tokens of one request against its key: an estimate at admission, then
// each event of a stream, and finally the agent's own count, as far as the gateway sees that: the rest
// counts for its Mac, which may have been stolen. A nil meter counts nothing.
type meter struct {
	keys    *keys.Store
	key     *keys.Key
	counted int64 // against the key so far
	total   int64 // as the agent reported it; 0 if unknown
	refused int64 // as agents reported it that refused the request; another one may answer it
	// soFar is what the agent reported of a response that has not begun: it is used if the
	// client leaves before the end.
	soFar *atomic.Int64
	// allowed is the most that the request can use.
	allowed int64
	seen    seen
	// unseen is what counted for Macs.
	unseen int64
	// mac has the request since a time.
	mac   string
	since time.Time
	// began is set once a stream has sent something.
	began bool
}

const (
	// maxReports is how many informational responses a Mac may send to a request at once, and
	// reportEvery how often it may send another one. An agent sends two each second, and
	// several come at once after a stall. One of more than two seconds ends the connection.
	maxReports  = 256
	reportEvery = 100 * time.Millisecond
)

// errReports ends a request whose Mac sends informational responses without an end.
var errReports = errors.New("the Mac sent too many informational responses")

// following returns a context for a request to an agent, whose reports of tokens so far are
// counted.
func (m *meter) following(ctx context.Context, mac string) context.Context {
	if m == nil {
		return ctx
	}
	soFar := new(atomic.Int64) // a late report counts for no other Mac
	m.mac, m.since, m.soFar = mac, m.keys.Now(), soFar
	began, reports := time.Now(), 0
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		if reports++; reports > maxReports+int(time.Since(began)/reportEvery) {
			return errReports
		}
		if n, ok := agentapi.Tokens(http.Header(h)); ok {
			soFar.Store(n.Sum())
		}
		return nil
	}})
}

// most is how many tokens of the request are seen until now.
func (m *meter) most() int64 { return min(m.allowed, m.seen.after(m.keys.Now().Sub(m.since))) }

// split returns how many of the tokens that its Mac reports are seen. The others count for the Mac.
func (m *meter) split(reported int64) int64 {
	reported = min(reported, m.allowed)
	n := min(reported, m.most())
	m.key.AddUnseen(m.mac, reported-n, m.keys.Now())
	m.unseen += reported - n
	return n
}

// events counts what the agent reported before the first event, the tokens of the prompt, and at least
// one token per event, up to what is seen of the request.
func (m *meter) events(block []byte) {
	if m == nil {
		return
	}
	if !m.began {
		m.began = true
		m.add(max(0, min(m.soFar.Load(), m.most())-m.counted))
	}
	n := int64(bytes.Count(block, dataLine))
	if bytes.HasPrefix(block, dataLine[1:]) {
		n++
	}
	m.add(max(0, min(n, m.most()-m.counted)))
}

// reported sets the agent's own count.
func (m *meter) reported(n int64) {
	if m != nil {
		m.total = n
	}
}

// refusedWith counts what an agent computed before it refused the request.
func (m *meter) refusedWith(h http.Header) {
	if m == nil {
		return
	}
	if n, ok := agentapi.Tokens(h); ok {
		m.refused = min(m.allowed, m.refused+m.split(n.Sum()))
	}
}

func (m *meter) add(n int64) {
	if n != 0 {
		m.key.AddTokens(n, m.keys.Now())
		m.counted += n
	}
}

// settle corrects the count at the end, to the agent's total if there is one, with what those computed
// that refused the request. Without it, a
// refused or failed request used what the agent reported so far, for example nothing, and a
// request whose connection was closed, or whose time was over, used the larger of what was counted
// and reported.
func (m *meter) settle(status int) {
	if m == nil {
		return
	}
	used, known := m.total, m.total > 0
	if !known {
		used, known = m.soFar.Load(), status >= http.StatusBadRequest && status != http.StatusGatewayTimeout
	}
	n := min(m.split(used)+m.refused, m.allowed) - m.counted
	if known || n > 0 {
		m.add(n)
	}
	m.keys.CountTokens(m.key, m.counted+m.unseen)
}
