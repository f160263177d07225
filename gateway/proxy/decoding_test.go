package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
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
