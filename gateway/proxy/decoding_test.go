package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
)

// Bodies that take long to decode take at most a part of the processors.
func TestBodiesAreDecodedInTurns(t *testing.T) {
	i := &inference{limits: &limits{decoding: newDecoding()}}
	body := func(n int) []byte {
		return fmt.Appendf(nil, `{"model":"m","messages":[{"content":"%s"}]}`, bytes.Repeat([]byte("x"), n))
	}
	begin := func(ctx context.Context, address string, n int) error {
		_, err := i.outline(ctx, caller{address: address}, dialect.PathChat, body(n))
		return err
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		bytes int
		turns *turns
	}{
		"medium": {mediumBody / 2, i.limits.decoding.medium},
		"large":  {2 * mediumBody, i.limits.decoding.large},
	} {
		var ends []func()
		for range tc.turns.most {
			end, err := tc.turns.begin(t.Context(), "192.0.2.1")
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if err := begin(gone, "192.0.2.2:1", tc.bytes); !errors.Is(err, front.ErrClientGone) {
			t.Errorf("%s: a body is decoded while all turns are taken: %v", name, err)
		}
		if err := begin(gone, "192.0.2.2:1", smallBody/2); err != nil {
			t.Errorf("%s: a small body waits: %v", name, err)
		}
		for _, end := range ends {
			end()
		}
		if err := begin(t.Context(), "192.0.2.2:1", tc.bytes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSettingsOfWaitingStreamsAreDecodedInTurns: hundreds may need theirs at the same moment.
func TestSettingsOfWaitingStreamsAreDecodedInTurns(t *testing.T) {
	i := &inference{limits: &limits{decoding: newDecoding(), bodies: &intake.Bodies{Max: 16 << 20}}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	next := func(ctx context.Context, settings, input int) string {
		body := fmt.Appendf(nil, `{"model":"m","stream":true,"input":"%s","instructions":"%s"}`, bytes.Repeat([]byte("x"), input), bytes.Repeat([]byte("x"), settings))
		event, err := i.keepAlives(ctx, caller{address: "192.0.2.2:1"}, dialect.PathResponses, "m", body).next()
		if err != nil {
			t.Error(err)
		}
		return event
	}
	var ends []func()
	for range i.limits.decoding.medium.most {
		end, err := i.limits.decoding.medium.begin(t.Context(), "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if event := next(gone, 2*smallBody, 1); event != "\n" {
		t.Errorf("settings are decoded while all turns are taken: %.60q", event)
	}
	if event := next(gone, 1, 2*mediumBody); event != "\n" {
		t.Errorf("those of a long input are decoded then: %.60q", event)
	}
	if event := next(gone, 1, 1); event == "\n" {
		t.Error("short settings wait")
	}
	for _, end := range ends {
		end()
	}
	for range 2 { // each turn ends
		if event := next(t.Context(), 2*smallBody, 1); event == "\n" {
			t.Error("settings are not decoded though there are turns")
		}
	}
}
