package proxy

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/route"
)

// A defect that one response meets does not end the responses of others.
func TestAPanicOfABackgroundResponseEndsItAlone(t *testing.T) {
	for _, c := range []struct {
		cause any
		want  error
	}{{"a defect", errPanicked}, {errors.New("a defect"), errPanicked}, {http.ErrAbortHandler, errIncomplete}} {
		err := runDetached(t.Context(), nil, func(context.Context, *reply) error { panic(c.cause) })
		if !errors.Is(err, c.want) {
			t.Errorf("a panic with %v becomes %v, want %v", c.cause, err, c.want)
		}
	}
}

// broken is a client whose connection has a defect.
type broken struct{ *clock }

func (broken) Write([]byte) (int, error) { panic("a defect") }

func TestAPanicOfAKeepAliveEndsItsResponseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReply(broken{newClock()}, time.Second, dialect.Of(dialect.PathChat), newMetrics(prometheus.NewRegistry(), route.NewTable()))
		w.keepAlives = newKeepAlives(dialect.PathChat, "m", []byte(`{"stream":true}`), freely, atOnce)
		running, cancel := context.WithCancelCause(t.Context())
		s := w.keepOpen(t.Context(), time.Second, cancel)
		time.Sleep(time.Minute)
		if err := s.end(); !errors.Is(err, errPanicked) || !errors.Is(context.Cause(running), errPanicked) {
			t.Errorf("a stream whose keep-alive panics ends with %v", err)
		}
	})
}

// Without a forwarder, asking a Mac panics.
func TestAPanicOfASearchEndsItAlone(t *testing.T) {
	mac, err := new(stored).search(t.Context(), []route.Mac{{Name: "a"}}, responses.NewAnywhere().ID(), func() {})
	if err == nil || mac != "" {
		t.Errorf("a search that panics finds %q, %v", mac, err)
	}
}
