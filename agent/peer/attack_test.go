package peer

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// scripted is a client whose only peer is without a network: answer answers each request.
type scripted struct {
	*Client
	answer func(*http.Request) *http.Response

	mu     sync.Mutex
	blamed []string // guarded by mu
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := s.answer(r)
	resp.Request = r
	return resp, nil
}

// newScripted is a client with the default pace, whose only peer is the Mac "evil".
func newScripted(answer func(*http.Request) *http.Response) *scripted {
	s := &scripted{answer: answer}
	s.Client = NewClient(ClientConfig{
		Assigned: func(model.Record, string) []v1alpha1.Peer { return []v1alpha1.Peer{{Mac: "evil"}} },
		Blamed: func(reason string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.blamed = append(s.blamed, reason)
		},
	})
	s.http = &http.Client{Transport: s}
	return s
}

func status(code int, body io.Reader) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(body), ContentLength: -1}
}

// sized is a record of one file.
func sized(bytes int64) model.Record {
	rec := record
	rec.Files = []model.File{{Path: "model.gguf", Bytes: bytes, SHA256: sum}}
	return rec
}

// trickle is an endless body at a rate.
type trickle struct{ bytesPerSecond float64 }

func (b trickle) Read(p []byte) (int, error) {
	n := min(len(p), 256<<10)
	time.Sleep(time.Duration(float64(n) / b.bytesPerSecond * float64(time.Second)))
	return n, nil
}

// TestAttackAPeerThatClaimsProgress: it reports the minimum rate for as long as the model
// has bytes, or that it is busy, whenever it is asked.
func TestAttackAPeerThatClaimsProgress(t *testing.T) {
	for name, claims := range map[string]func(resp *http.Response, since time.Duration){
		"that it downloads": func(resp *http.Response, since time.Duration) {
			resp.Header.Set(agentapi.HeaderFetched, strconv.FormatInt(int64(since.Seconds()*1.1*(1<<20)), 10))
		},
		"that it is busy": func(*http.Response, time.Duration) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			s := newScripted(func(*http.Request) *http.Response {
				resp := status(http.StatusServiceUnavailable, http.NoBody)
				claims(resp, time.Since(began))
				return resp
			})
			ask := func(rec model.Record, waited time.Duration) time.Duration {
				at := time.Now()
				if peers := s.Of(t.Context(), rec, "", waited); len(peers) != 0 {
					t.Errorf("%s: peers %v", name, peers)
				}
				return time.Since(at)
			}
			var wasted time.Duration
			for day := time.Now(); time.Since(day) < 24*time.Hour; time.Sleep(time.Minute) {
				wasted += ask(sized(4<<30), 0)
			}
			if len(s.blamed) == 0 || wasted > 90*time.Minute {
				t.Errorf("%s: a Mac that needs weights all day waited for %v, and blamed it %d times", name, wasted, len(s.blamed))
			}
			time.Sleep(3 * 24 * time.Hour)
			if d := ask(sized(1<<40), 0); d > 31*time.Minute {
				t.Errorf("%s: it was waited for for %v for a large model", name, d)
			}
			time.Sleep(3 * 24 * time.Hour)
			if d := ask(sized(4<<30), 7*time.Minute); d > 2*time.Minute {
				t.Errorf("%s: it was waited for for %v more, after 7 min in an earlier turn", name, d)
			}
		})
	}
}

// TestHowLongABusyPeerIsWaitedFor: for the time in which its copies free a slot, also if it reports a
// download in between that stands still. Then the source is asked.
func TestHowLongABusyPeerIsWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes  int64
		free   time.Duration // after it, the peer has a slot; 0: never
		fetch  bool          // every other answer is that it downloads
		waited time.Duration // in an earlier turn
		most   time.Duration
		copied bool
	}{
		"always, a small model":        {bytes: 1 << 20, most: 62 * time.Second},
		"always, 4 GB":                 {bytes: 4e9, most: 102 * time.Second},
		"always, 4 GB, a later turn":   {bytes: 4e9, waited: 90 * time.Second, most: 12 * time.Second},
		"always, or no progress, 4 GB": {bytes: 4e9, fetch: true, most: 102 * time.Second},
		"always, 40 GB":                {bytes: 40e9, most: 462 * time.Second},
		"always, 4 TB":                 {bytes: 4e12, most: 30*time.Minute + 2*time.Second},
		"two copies of 4 GB":           {bytes: 4e9, free: 40 * time.Second, most: 42 * time.Second, copied: true},
		"two copies of 40 GB":          {bytes: 40e9, free: 400 * time.Second, most: 402 * time.Second, copied: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			s := newScripted(func(*http.Request) *http.Response {
				if asked++; tc.free > 0 && time.Since(began) >= tc.free {
					return status(http.StatusOK, http.NoBody)
				}
				resp := status(http.StatusServiceUnavailable, http.NoBody)
				if tc.fetch && asked%2 == 0 {
					resp.Header.Set(agentapi.HeaderFetched, "0")
				}
				return resp
			})
			peers := s.Of(t.Context(), sized(tc.bytes), "", tc.waited)
			if d := time.Since(began); d > tc.most || (len(peers) == 1) != tc.copied || (len(s.blamed) == 0) != tc.copied {
				t.Errorf("%s: %d peers after %v, blamed %q; want a copy: %v within %v", name, len(peers), d, s.blamed, tc.copied, tc.most)
			}
		})
	}
}

// TestAttackAPeerThatIsJustFastEnough: it keeps the minimum rate, in one response or in
// very many, and each time that it is asked.
func TestAttackAPeerThatIsJustFastEnough(t *testing.T) {
	for name, answer := range map[string]func() *http.Response{
		"in one response":   func() *http.Response { return status(http.StatusOK, trickle{1.1 * (1 << 20)}) },
		"a byte a response": func() *http.Response { return status(http.StatusOK, io.LimitReader(trickle{1 << 20}, 1)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newScripted(func(r *http.Request) *http.Response {
				if r.Method == http.MethodHead {
					return status(http.StatusOK, http.NoBody)
				}
				return answer()
			})
			var last time.Duration
			for i := range 5 {
				rec := sized(40 << 30)
				peers := s.Of(t.Context(), rec, "", 0)
				if len(peers) != 1 {
					t.Fatalf("%s: peers %v", name, peers)
				}
				at := time.Now()
				err := drain(t.Context(), peers[0], rec.Bytes())
				if reason, _ := verdict(err); reason != reasonSlow || time.Since(at) > 2*time.Minute {
					t.Errorf("%s: %v after %v", name, err, time.Since(at))
				}
				s.Failed("evil", err)
				at = time.Now()
				for len(s.Of(t.Context(), rec, "", 0)) == 0 {
					time.Sleep(time.Minute)
				}
				if d := time.Since(at); d < 10*time.Minute || d < 2*last-time.Minute {
					t.Errorf("%s: after %d failures it is avoided for %v, before for %v", name, i+1, d, last)
				} else {
					last = d
				}
			}
		})
	}
}

// drain reads some bytes from a peer, over as many responses as it takes.
func drain(ctx context.Context, p store.Peer, bytes int64) error {
	for got := int64(0); got < bytes; {
		resp, err := p.Get(ctx, "https://evil/", nil)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, bytes-got))
		resp.Body.Close()
		if err != nil {
			return err
		}
		got += n
		time.Sleep(time.Second)
	}
	return nil
}

// A slow line is no attack: it has no source, or its own reader is slow.
func TestSlowLinesAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := 3e6
		s := newScripted(func(r *http.Request) *http.Response { return status(http.StatusOK, trickle{rate}) })
		rec := sized(1 << 30)
		err := drain(t.Context(), s.Of(t.Context(), rec, "", 0)[0], rec.Bytes())
		s.Failed("evil", err)
		if slow := s.Slow(rec, ""); err == nil || len(slow) != 1 {
			t.Fatalf("%v, slow peers %v", err, slow)
		} else if err := drain(t.Context(), slow[0], rec.Bytes()); err != nil {
			t.Errorf("with no other source: %v", err)
		}
		rate = 0.9 * (1 << 20)
		if err := drain(t.Context(), s.Slow(rec, "")[0], rec.Bytes()); err == nil {
			t.Error("a peer that is slower than the minimum rate was read to its end")
		}
		s.answer = func(*http.Request) *http.Response {
			return status(http.StatusOK, io.LimitReader(trickle{40e3}, 20*40e3))
		}
		began := time.Now()
		if err := drain(t.Context(), s.Slow(rec, "")[0], rec.Bytes()); err == nil || time.Since(began) > 2*time.Minute {
			t.Errorf("one that is slower, in responses of 20 s each: %v after %v", err, time.Since(began))
		}
		s.answer = func(*http.Request) *http.Response { return status(http.StatusOK, trickle{rate}) }
		s.Failed("evil", &download.Error{Reason: v1alpha1.ReasonDigestMismatch})
		if slow := s.Slow(rec, ""); len(slow) != 0 {
			t.Errorf("of a Mac that sent wrong bytes: %v", slow)
		}
		time.Sleep(8 * 24 * time.Hour)
		rate = 1e9
		resp, err := s.Of(t.Context(), rec, "", 0)[0].Get(t.Context(), "https://evil/", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for range 100 { // 2.5 MB/s, because of its own disk or limit
			if _, err := io.ReadFull(resp.Body, make([]byte, 5<<20)); err != nil {
				t.Fatalf("this Mac reads slowly: %v", err)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// TestAttackAPeerThatStartsOver answers fast, breaks each response off, and starts over.
func TestAttackAPeerThatStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = int64(64 << 20)
		s := newScripted(func(r *http.Request) *http.Response {
			if r.Method == http.MethodHead {
				return status(http.StatusOK, http.NoBody)
			}
			return status(http.StatusOK, io.LimitReader(trickle{25e6}, size*3/4))
		})
		peers := s.Of(t.Context(), sized(size), "", 0)
		if len(peers) != 1 {
			t.Fatalf("peers %v", peers)
		}
		began := time.Now()
		err := drain(t.Context(), peers[0], 100*size)
		if reason, _ := verdict(err); reason != reasonSlow || time.Since(began) > s.Pace.allows(size)+time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
