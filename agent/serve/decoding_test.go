package serve

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/metal/share"
)

// TestLargeBodiesAreDecodedInTurns: a large one waits for a place, and a small one does not. An
// image is fetched without one, as that takes as long as its server likes.
func TestLargeBodiesAreDecodedInTurns(t *testing.T) {
	h := &handler{decoding: share.NewTurns(1)}
	large := []byte(strings.Repeat("x", smallBody+1))
	of := func(ctx context.Context, tenant string, body []byte) (*place, error) {
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/responses", nil)
		r.Header.Set(agentapi.HeaderTenant, tenant)
		return h.placeFor(r, body)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	first, err := of(t.Context(), "a", large)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := of(gone, "b", large); !errors.Is(err, front.ErrClientGone) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := of(gone, "b", large[:smallBody]); err != nil {
		t.Errorf("a small one: %v", err)
	}
	fetched, err := first.without(func(string) ([]byte, error) {
		other, err := of(t.Context(), "b", large)
		if err != nil || h.decoding.Free() != 0 {
			t.Errorf("while an image is fetched: %v", err)
		}
		other.give()
		return []byte("image"), nil
	})("https://example.com")
	if err != nil || string(fetched) != "image" || h.decoding.Taken("a") != 1 {
		t.Errorf("%q, %v, and %d places after that", fetched, err, h.decoding.Taken("a"))
	}
	first.give()
	first.give()
	if h.decoding.Free() != 1 {
		t.Errorf("%d places are free", h.decoding.Free())
	}
	if first.without(nil) != nil {
		t.Error("images are fetched where none may be")
	}
}
