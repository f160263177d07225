package serve

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/serve/internal/responsecache"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/share"
)

// TestLargeBodiesAreDecodedInTurns: a large one waits for a place, and a small one does not. An
// image is fetched without one, as that takes as long as its server likes.
func TestLargeBodiesAreDecodedInTurns(t *testing.T) {
	h := &handler{decoding: share.NewTurns(1), decodingMedium: share.NewTurns(1)}
	large := []byte(strings.Repeat("x", mediumBody+1))
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
	going, leave := context.WithCancel(t.Context())
	medium, err := of(going, "b", large[:mediumBody])
	if err != nil || h.decodingMedium.Free() != 0 {
		t.Fatalf("one of a usual size: %v", err)
	}
	leave()
	if err := medium.takeLarge(); !errors.Is(err, front.ErrClientGone) || h.decodingMedium.Free() != 1 {
		t.Errorf("one of a usual size that makes the agent read a large text: %v", err)
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

// TestStoredItemsAreReadInTurns: a small body may refer to a stored conversation of any size.
func TestStoredItemsAreReadInTurns(t *testing.T) {
	h := NewHandler(Config{}).(*handler)
	h.decoding = share.NewTurns(1)
	item := responses.Item{ID: "msg_1", Type: responses.ItemMessage, Role: openai.RoleUser, Content: []responses.Part{{Type: "input_text", Text: "hi"}}}
	h.cache.Put(responsecache.Entry{Tenant: "a", Response: responses.Response{ID: "resp_1", Status: responses.StatusCompleted}, Talk: []responses.Item{item}})
	ask := func(ctx context.Context, path, body string) error {
		r := httptest.NewRequestWithContext(ctx, "POST", path, nil)
		r.Header.Set(agentapi.HeaderTenant, "a")
		_, err := h.request(httptest.NewRecorder(), r, []byte(body), h.imagesFor(r))
		return err
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, tc := range map[string]struct {
		path, body string
		waits      bool
	}{
		"a response":   {dialect.PathResponses, `{"model":"m","input":"more","previous_response_id":"resp_1"}`, true},
		"an item":      {dialect.PathResponses, `{"model":"m","input":[{"type":"item_reference","id":"msg_1"}]}`, true},
		"their tokens": {dialect.PathInputTokens, `{"model":"m","previous_response_id":"resp_1"}`, true},
		"neither":      {dialect.PathResponses, `{"model":"m","input":"more"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := ask(t.Context(), tc.path, tc.body); err != nil || h.decoding.Free() != 1 {
				t.Fatalf("%v, %d places are free after it", err, h.decoding.Free())
			}
			if err := h.decoding.Take(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			defer h.decoding.Give("b")
			if err := ask(gone, tc.path, tc.body); errors.Is(err, front.ErrClientGone) != tc.waits {
				t.Errorf("while another tenant has the place: %v", err)
			}
		})
	}
}

// TestFetchedImagesAreDecodedInTurns: a small body may name a large image.
func TestFetchedImagesAreDecodedInTurns(t *testing.T) {
	p := (&handler{decoding: share.NewTurns(1)}).largePlace(t.Context(), http.Header{agentapi.HeaderTenant: {"a"}})
	fetched, err := p.without(func(string) ([]byte, error) { return []byte("image"), nil })("https://example.com")
	if err != nil || string(fetched) != "image" || p.turns.Taken("a") != 1 {
		t.Errorf("%q, %v, and %d places after that", fetched, err, p.turns.Taken("a"))
	}
}

// TestStoredResponsesAreEncodedInTurns: a request of a hundred bytes reads one of any size. Only
// the head of it is not encoded at all, and a response is cancelled before it is shown.
func TestStoredResponsesAreEncodedInTurns(t *testing.T) {
	h := NewHandler(Config{}).(*handler)
	h.decoding = share.NewTurns(1)
	cancelled := 0
	h.cache.Put(responsecache.Entry{Tenant: "a", Response: responses.Response{ID: "resp_1", Status: responses.StatusInProgress}, Input: []responses.Item{{ID: "msg_1"}}, Cancel: func() { cancelled++ }})
	ask := func(ctx context.Context, method, path string) (int, error) {
		r := httptest.NewRequestWithContext(ctx, method, dialect.PathResponses+"/resp_1"+path, nil)
		r.Header.Set(agentapi.HeaderTenant, "a")
		w := httptest.NewRecorder()
		err := h.kept(w, r)
		return w.Body.Len(), err
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, read := range []struct{ method, path string }{{"GET", ""}, {"GET", "/input_items"}, {"HEAD", ""}, {"HEAD", "/input_items"}, {"POST", "/cancel"}} {
		t.Run(read.method+read.path, func(t *testing.T) {
			if err := h.decoding.Take(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			waits := read.method != "HEAD"
			if n, err := ask(gone, read.method, read.path); errors.Is(err, front.ErrClientGone) != waits || n > 0 {
				t.Errorf("while another tenant has the place: %d bytes, %v", n, err)
			}
			h.decoding.Give("b")
			if read.method == "POST" {
				return // it is cancelled only once
			}
			if n, err := ask(t.Context(), read.method, read.path); err != nil || (n > 0) != waits || h.decoding.Free() != 1 {
				t.Errorf("%d bytes, %v, %d places are free after it", n, err, h.decoding.Free())
			}
		})
	}
	if cancelled != 1 {
		t.Errorf("cancelled %d times", cancelled)
	}
}

// TestTheHeadOfAStoredResponseWaitsForNoMemory: a gateway that looks for a response asks every Mac,
// and gives up after a few seconds.
func TestTheHeadOfAStoredResponseWaitsForNoMemory(t *testing.T) {
	h := NewHandler(Config{}).(*handler)
	h.cache.Put(responsecache.Entry{Tenant: "a", Response: responses.Response{ID: "resp_1"}})
	for _, hold := range []struct {
		tenant string
		part   int64
	}{{"a", 2}, {"b", 2}, {"a", 4}, {"c", 4}} { // as much as each of them may have
		unread, err := h.answers.Hold(t.Context(), hold.tenant, h.answers.Most()/hold.part, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer unread.Release()
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for path, found := range map[string]bool{"/resp_1": true, "/resp_1/input_items": true, "/resp_1/input_items?order=up": false, "/resp_2": false} {
		r := httptest.NewRequestWithContext(gone, "HEAD", dialect.PathResponses+path, nil)
		r.Header.Set(agentapi.HeaderTenant, "a")
		w := httptest.NewRecorder()
		if err := h.kept(w, r); (err == nil) != found || errors.Is(err, front.ErrClientGone) || w.Body.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", path, err, w.Body.Len())
		}
	}
}

// TestALargeStoredResponseIsShown: one that counts for more than there is for an answer would be
// refused whenever it is read.
func TestALargeStoredResponseIsShown(t *testing.T) {
	h := NewHandler(Config{AnswersBytes: 4 << 20}).(*handler)
	text := strings.Repeat("x", 3<<19)
	h.cache.Put(responsecache.Entry{Tenant: "a", Response: responses.Response{ID: "resp_1"}, Input: []responses.Item{{ID: "fco_1", Output: &text}}})
	for path, least := range map[string]int{"/resp_1": 1, "/resp_1/input_items": len(text)} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", dialect.PathResponses+path, nil)
		r.Header.Set(agentapi.HeaderTenant, "a")
		w := httptest.NewRecorder()
		if err := h.kept(w, r); err != nil || w.Body.Len() < least {
			t.Errorf("%s: %v, %d bytes", path, err, w.Body.Len())
		}
	}
}

// TestAStoredResponseWaitsAShortTimeForMemory: each read that waits has a turn and a connection of
// the gateway, and a stream of its Mac.
func TestAStoredResponseWaitsAShortTimeForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHandler(Config{}).(*handler)
		h.cache.Put(responsecache.Entry{Tenant: "a", Response: responses.Response{ID: "resp_1"}})
		unread, err := h.answers.Hold(t.Context(), "a", h.answers.Most(), func() {})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(ctx context.Context) error {
			r := httptest.NewRequestWithContext(ctx, "GET", dialect.PathResponses+"/resp_1", nil)
			r.Header.Set(agentapi.HeaderTenant, "a")
			return h.kept(httptest.NewRecorder(), r)
		}
		began := time.Now()
		bounded, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		e, retryable := refused(ask(bounded))
		if e.Status != http.StatusServiceUnavailable || e.RetryAfter <= 0 || !retryable || time.Since(began) > 20*time.Second {
			t.Errorf("after %s: %v, retryable: %v", time.Since(began), e, retryable)
		}
		time.AfterFunc(time.Second, unread.Release)
		if err := ask(t.Context()); err != nil {
			t.Errorf("when others are read: %v", err)
		}
	})
}
