package proxy

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/intake"
)

// freely holds any amount of memory.
func freely(int64) (intake.Kept, error) { return intake.Kept{}, nil }

// atOnce gives a turn to everyone.
func atOnce() (end func(), err error) { return func() {}, nil }

// TestAttackSettingsInKeepAlives: what a waiting stream keeps of its request is small, and
// counted until the stream ends.
func TestAttackSettingsInKeepAlives(t *testing.T) {
	bodies := &intake.Bodies{Max: 1 << 20}
	begin := func(instructions string) *keepAlives {
		body := []byte(`{"model":"m","stream":true,"input":"x","instructions":"` + instructions + `"}`)
		return newKeepAlives(dialect.PathResponses, "m", body, func(n int64) (intake.Kept, error) { return bodies.Hold("a tenant", n) }, atOnce)
	}
	long := begin(strings.Repeat("\u2028", 349_000))
	for range 2 {
		if event, err := long.next(); err != nil || event != "\n" || long.body != nil || bodies.Held() != 0 {
			t.Errorf("long settings: an event of %d bytes, %v; %d bytes of the body are kept, %d counted", len(event), err, len(long.body), bodies.Held())
		}
	}
	k := begin(strings.Repeat("\u2028", 4000))
	event, err := k.next()
	if err != nil || !strings.HasPrefix(event, "event: response.created\n") || k.body != nil {
		t.Fatalf("%.60q, %v; %d bytes of the body are kept", event, err, len(k.body))
	}
	if held := bodies.Held(); held < int64(3*len(event)) {
		t.Errorf("%d bytes are counted for events of %d", held, len(event))
	}
	if next, err := begin(strings.Repeat("x", 12_000)).next(); err != nil || next != "\n" {
		t.Errorf("without memory the event is %.60q, %v", next, err)
	}
	k.leaveBody()
	if bodies.Held() == 0 {
		t.Error("the answer is not counted, and may still be written")
	}
	k.forget()
	if bodies.Held() != 0 || k.answer != nil {
		t.Errorf("%d bytes are counted after the end", bodies.Held())
	}
}

// TestAttackEventsOfADetachedResponse: an event is not copied for a client that reads slowly,
// and its writer, whose memory is counted, waits for that client.
func TestAttackEventsOfADetachedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &detached{head: http.Header{}, parts: make(chan part), left: make(chan struct{})}
		event, written := bytes.Repeat([]byte("x"), 1<<20), make(chan struct{})
		go func() {
			defer close(written)
			_, _ = d.Write(event)
		}()
		next := <-d.parts
		synctest.Wait()
		select {
		case <-written:
			t.Error("the write ended before the client had the event")
		default:
		}
		if &next.data[0] != &event[0] {
			t.Error("the event was copied")
		}
		close(next.done)
		<-written
		crowded := errors.New("no memory")
		d.events = true
		if _, err := d.relay(nil, part{data: event}, false, func(n int64) (intake.Kept, error) {
			if n < int64(len(event)) {
				t.Errorf("only %d bytes are counted", n)
			}
			return intake.Kept{}, crowded
		}); !errors.Is(err, crowded) {
			t.Error(err)
		}
	})
}
