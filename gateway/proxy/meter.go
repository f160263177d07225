package proxy

import (
	"bytes"
	"net/http"

	"metalfleet.dev/metalfleet/gateway/keys"
)

// meter counts the tokens of one request against its key: an estimate at admission, then
// each event of a stream, and finally the agent's own count. A nil meter counts nothing.
type meter struct {
	keys    *keys.Store
	key     *keys.Key
	counted int64 // against the key so far
	total   int64 // as the agent reported it; 0 if unknown
}

// events counts at least one token per event.
func (m *meter) events(block []byte) {
	if m == nil {
		return
	}
	n := int64(bytes.Count(block, dataLine))
	if bytes.HasPrefix(block, dataLine[1:]) {
		n++
	}
	m.add(n)
}

// reported sets the agent's own count.
func (m *meter) reported(n int64) {
	if m != nil {
		m.total = n
	}
}

func (m *meter) add(n int64) {
	if n != 0 {
		m.key.AddTokens(n, m.keys.Now())
		m.counted += n
	}
}

// settle corrects the count at the end. A refused request used nothing. A request without
// the agent's count, because a connection was closed, used what was counted so far.
func (m *meter) settle(status int) {
	switch {
	case m == nil:
		return
	case m.total > 0:
		m.add(m.total - m.counted)
	case status >= http.StatusBadRequest:
		m.add(-m.counted)
	}
	m.keys.CountTokens(m.key, m.counted)
}
