package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// answerOnly is a response whose client reads everything at once.
type answerOnly struct{ *httptest.ResponseRecorder }

func (answerOnly) SetWriteDeadline(time.Time) error { return nil }

// TestAClientWithManyRequestsLeavesProcessorsToOthers: also one whose requests are refused, or are
// probes. Alone it may have all processors.
func TestAClientWithManyRequestsLeavesProcessorsToOthers(t *testing.T) {
	const most, flood = 10, 25
	for name, path := range map[string]string{"refused requests": "/v1/images", "probes": "/", "lists": "/v1/models"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Config{Table: route.NewTable(), Identity: func() *identity.Identity { return nil }, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
				defer p.Close()
				p.pace.debts = health.Debts{Most: most, PerSecond: most}
				ask := func(address, path string) (waited time.Duration) {
					r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
					r.RemoteAddr = address
					began := time.Now() // of the bubble: it passes only while all wait
					p.ServeHTTP(answerOnly{httptest.NewRecorder()}, r)
					return time.Since(began)
				}
				floods := func() (longest time.Duration) {
					var all sync.WaitGroup
					took := make([]time.Duration, flood)
					for i := range took {
						all.Go(func() { took[i] = ask("192.0.2.1:1", path) })
					}
					synctest.Wait()
					if late := ask("192.0.2.2:1", "/"); late > 0 {
						t.Errorf("another client waits for %s", late)
					}
					all.Wait()
					for _, one := range took {
						longest = max(longest, one)
					}
					return longest
				}
				ask("192.0.2.1:1", "/v1/models")
				if late := floods(); late > 0 {
					t.Errorf("the only client waits for %s", late)
				}
				ask("192.0.2.3:1", "/v1/models")
				if got, want := floods().Round(time.Millisecond), (flood-most)*time.Second/most; got != want {
					t.Errorf("the last of %d requests waits for %s, want %s", flood, got, want)
				}
				time.Sleep(paceAlone)
				if late := ask("192.0.2.1:1", "/v1/models"); late > 0 {
					t.Errorf("the only client of the last minutes waits for %s", late)
				}
			})
		})
	}
}

// TestRequestsThatLeaveHoldUpNoOther: many clients may have one address, such as that of a load
// balancer.
func TestRequestsThatLeaveHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace()
		p.debts = health.Debts{Most: 10, PerSecond: 10}
		p.begin("192.0.2.1", false, time.Now())
		p.begin("192.0.2.2", false, time.Now())
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", nil)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { _ = p.await(ctx, "192.0.2.1", false, r) })
		}
		synctest.Wait()
		leave()
		all.Wait()
		began := time.Now() // of the bubble: it passes only while all wait
		if err := p.await(t.Context(), "192.0.2.1", false, r); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > time.Second/10 {
			t.Errorf("after 1,000 requests that left, another one of their address waits for %s", waited)
		}
	})
}

// floodOf returns a proxy whose processors suffice for ten requests of a client in a second, and a function
// that sends requests of a client with the same key at once, whose client leaves at once if leave is true.
func floodOf(t *testing.T, store *keys.Store) (ask func(address, token string, n int, leave bool) (longest time.Duration)) {
	p := New(Config{Table: route.NewTable(), Keys: store, Identity: func() *identity.Identity { return nil }, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	t.Cleanup(p.Close)
	p.pace.debts = health.Debts{Most: 10, PerSecond: 10}
	return func(address, token string, n int, leave bool) (longest time.Duration) {
		var all sync.WaitGroup
		took := make([]time.Duration, n)
		for i := range took {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/models", nil)
				r.RemoteAddr = address
				r.Header.Set("Authorization", "Bearer "+token)
				if leave {
					time.AfterFunc(time.Millisecond, cancel)
				}
				began := time.Now()
				p.ServeHTTP(answerOnly{httptest.NewRecorder()}, r)
				took[i] = time.Since(began)
			})
		}
		all.Wait()
		return slices.Max(took)
	}
}

// keysOf returns a store and a function that adds a key of a tenant to it.
func keysOf(t *testing.T) (store *keys.Store, add func(name string, expires time.Time) (token string)) {
	store = keys.NewStore(keys.Options{Registry: prometheus.NewRegistry()})
	store.MarkSynced()
	return store, func(name string, expires time.Time) string {
		secret, token, err := keys.NewSecret("tenant", name, keys.Grant{Models: []string{"m"}, Tenant: "a", Expires: expires})
		if err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{}
		for member, value := range secret.StringData {
			secret.Data[member] = []byte(value)
		}
		store.Set(secret)
		return token
	}
}

// TestAnExpiredKeyDelaysNoOthersOfItsTenant: its requests are those of an address.
func TestAnExpiredKeyDelaysNoOthersOfItsTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, add := keysOf(t)
		good, old := add("good", time.Time{}), add("old", time.Now().Add(time.Second))
		time.Sleep(time.Minute)
		ask := floodOf(t, store)
		ask("192.0.2.1:1", good, 1, false)
		ask("192.0.2.3:1", "", 1, false)
		ask("192.0.2.2:1", old, 100, true)
		if late := ask("192.0.2.1:1", good, 1, false); late > 0 {
			t.Errorf("a client with a valid key waits for %s", late)
		}
	})
}

// TestNoClientWaitsLongToBegin: also if many requests of its address, which may be that of a load balancer, have ended
// before they began.
func TestNoClientWaitsLongToBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := floodOf(t, nil)
		ask("192.0.2.1:1", "", 1, false)
		ask("192.0.2.2:1", "", 100, true)
		if late := ask("192.0.2.2:1", "", 1, false); late > paceLongest {
			t.Errorf("a request waits for %s", late)
		}
	})
}
