package proxy

import (
	"net/http"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestAttackATimeLimitThatRoundsToNone: no header of a client lifts the time limit of the
// gateway.
func TestAttackATimeLimitThatRoundsToNone(t *testing.T) {
	for _, text := range []string{"1e-10", "5e-324", "0.000000001", "1", "86400", ""} {
		l := &limits{total: time.Hour}
		r := &http.Request{Header: http.Header{agentapi.HeaderTimeout: {text}}}
		ctx, cancel, deadline, err := l.bound(t.Context(), r)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if end, bounded := ctx.Deadline(); !bounded || end != deadline || time.Until(deadline) > time.Hour {
			t.Errorf("%q: the request may last until %v, bounded %t", text, end, bounded)
		}
		cancel()
	}
}
