package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// scripted are peers without a network: have and slow are what it returns.
type scripted struct {
	have, slow []Peer
	waits      time.Duration // in each Of
	waited     time.Duration // what Of received last
	failed     []string
}

func (s *scripted) Of(_ context.Context, _ model.Record, _ string, waited time.Duration) []Peer {
	time.Sleep(s.waits)
	s.waited = waited
	return s.have
}
func (s *scripted) Slow(model.Record, string) []Peer { return s.slow }
func (s *scripted) Failed(mac string, err error)     { s.failed = append(s.failed, mac) }

// errSlow is what a peer that is too slow fails with.
var errSlow = &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: "the Mac is slow"}

// gives returns a peer whose requests get that response.
func gives(mac string, answer func(ctx context.Context) (*http.Response, error)) Peer {
	return Peer{Mac: mac, Get: func(ctx context.Context, _ string, _ http.Header) (*http.Response, error) { return answer(ctx) }}
}

func with(body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, ContentLength: -1, Header: http.Header{}, Body: io.NopCloser(body)}
}

// busy is a peer that refuses while refuses returns true.
func busy(mac string, refuses func() bool, content []byte) Peer {
	return gives(mac, func(context.Context) (*http.Response, error) {
		if refuses() {
			return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Status: http.StatusServiceUnavailable, Transient: true, Message: "busy"}
		}
		return with(bytes.NewReader(content)), nil
	})
}

func always() bool { return true }

// drip is an endless body of a few bytes per second.
type drip struct {
	ctx   context.Context
	bytes int
}

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	return min(d.bytes, len(p)), nil
}

// among opens a store whose sources all refuse connections, and ends it with the test.
func among(t *testing.T, peers Peers, policy download.Policy) *Store {
	t.Helper()
	root, err := OpenRoot("", "", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	client := download.NewClient(policy)
	s, err := Open(ctx, Options{
		Dir: t.TempDir(), Root: root, Peers: peers, Log: logr.Discard(), Fetch: &download.Fetcher{Client: client},
		Namespaces: func(r model.Record, _ string) []string { return strings.Split(r.Source, "/")[3:4] },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); s.Close(); client.Close() })
	return s
}

// recordFor returns a record of some content for a namespace.
func recordFor(namespace string, content []byte) model.Record {
	return recordOf("https://127.0.0.1:1/"+namespace+"/m.gguf", content)
}

// TestAttackCopiesFromAPeerKeepTheirSlots: a peer of two namespaces' models sends a little
// of each, and another namespace waits.
func TestAttackCopiesFromAPeerKeepTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := []byte("good")
		evil := gives("evil", func(ctx context.Context) (*http.Response, error) { return with(drip{ctx, 1024}), nil })
		all := &byNamespace{"team": gives("m", func(context.Context) (*http.Response, error) { return with(bytes.NewReader(good)), nil }), "": evil}
		s := among(t, all, download.Policy{})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for i, namespace := range []string{"a", "a", "b"} {
			rec := recordFor(namespace, make([]byte, 1<<20+i))
			rec.Files[0].Bytes = 64 << 20
			rec.Digest = model.DigestOf(rec.Files)
			go s.Ensure(ctx, rec, "", nil)
		}
		time.Sleep(time.Second)
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		if _, err := s.Ensure(limited, recordFor("team", good), "", nil); err != nil || time.Since(began) > 3*time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestAPeersBytesAreThoseOfAllTurns: it breaks each response off and starts over, and a turn ends
// before it has sent twice the file.
func TestAPeersBytesAreThoseOfAllTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 60 << 10
		s := among(t, &byNamespace{"": gives("evil", func(ctx context.Context) (*http.Response, error) {
			return with(io.LimitReader(drip{ctx, 1024}, size/2)), nil
		})}, download.Policy{})
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		var all sync.WaitGroup
		for i, namespace := range []string{"a", "a", "b", "b"} {
			rec := recordFor(namespace, make([]byte, size+i))
			all.Go(func() {
				began := time.Now()
				if _, err := s.Ensure(ctx, rec, "", nil); download.Reason(err, "") != v1alpha1.ReasonSourceForbidden {
					t.Errorf("download %d: %v after %v, want an error of its source", i, err, time.Since(began))
				}
			})
		}
		all.Wait()
	})
}

// byNamespace are peers by the namespace of the record; that of "" has all others.
type byNamespace map[string]Peer

func (b byNamespace) Of(_ context.Context, r model.Record, _ string, _ time.Duration) []Peer {
	if p, ok := b[strings.Split(r.Source, "/")[3]]; ok {
		return []Peer{p}
	}
	return []Peer{b[""]}
}
func (b byNamespace) Slow(model.Record, string) []Peer { return nil }
func (b byNamespace) Failed(string, error)             {}

// TestAttackPeersThatAreAlwaysBusy: they have the weights when they are asked, and refuse to
// send them. The source, which is forbidden here, is used soon, and no slot waits.
func TestAttackPeersThatAreAlwaysBusy(t *testing.T) {
	late := func(mac string) Peer {
		refuse := busy(mac, always, nil).Get
		return Peer{Mac: mac, Get: func(ctx context.Context, url string, h http.Header) (*http.Response, error) {
			time.Sleep(9 * time.Second)
			return refuse(ctx, url, h)
		}}
	}
	for name, tc := range map[string]struct {
		peers []Peer
		most  time.Duration
	}{
		"at once":   {peers: []Peer{busy("a", always, nil), busy("b", always, nil), busy("c", always, nil)}, most: 40 * time.Second},
		"each late": {peers: []Peer{late("a"), late("b"), late("c")}, most: 90 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			peers := &scripted{have: tc.peers}
			s := among(t, peers, download.Policy{})
			began := time.Now()
			_, err := s.Ensure(t.Context(), recordFor("team", []byte("weights")), "", nil)
			if download.Reason(err, "") != v1alpha1.ReasonSourceForbidden || time.Since(began) > tc.most {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			if len(peers.failed) != len(tc.peers) {
				t.Errorf("%s: %q failed", name, peers.failed)
			}
		})
	}
}

// TestBusyPeersAreWaitedForWithoutASlot, and then copied from.
func TestBusyPeersAreWaitedForWithoutASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content, until := []byte("weights"), time.Now().Add(15*time.Second)
		peers := &scripted{waits: time.Second}
		s := among(t, peers, download.Policy{})
		taken := 0
		peers.have = []Peer{busy("a", always, nil), busy("b", func() bool {
			s.slots.mu.Lock()
			taken += len(s.slots.running)
			s.slots.mu.Unlock()
			return time.Now().Before(until)
		}, content)}
		go func() {
			time.Sleep(10*time.Second + time.Second/2)
			s.slots.mu.Lock()
			defer s.slots.mu.Unlock()
			if n := len(s.slots.running); n != 0 {
				t.Errorf("%d slots are in use while the peers are busy", n)
			}
		}()
		if _, err := s.Ensure(t.Context(), recordFor("team", content), "", nil); err != nil {
			t.Error(err)
		}
		if len(peers.failed) != 0 || peers.waited < 4*time.Second || taken == 0 {
			t.Errorf("%q failed, the last question came after %v of waiting, %d slots were used", peers.failed, peers.waited, taken)
		}
	})
}

// TestASlowPeerIsTheOnlyWay: the source cannot be reached, and the model arrives.
func TestASlowPeerIsTheOnlyWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := bytes.Repeat([]byte("weights!"), 1<<20)
		slow := gives("a", func(context.Context) (*http.Response, error) { return nil, errSlow })
		patient := gives("a", func(ctx context.Context) (*http.Response, error) {
			return with(&lazy{rest: content}), nil
		})
		peers := &scripted{have: []Peer{slow}, slow: []Peer{patient}}
		s := among(t, peers, download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
		began := time.Now()
		path, err := s.Ensure(t.Context(), recordFor("team", content), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("it took %v, so the source was not tried", took)
		}
		peers.slow = nil
		_, err = s.Ensure(t.Context(), recordFor("team", append(content, 1)), "", nil)
		if !download.IsTransient(err) || errors.Is(err, errBusy) {
			t.Errorf("without a peer: %v", err)
		}
	})
}

// lazy is a body of 64 KiB per second.
type lazy struct{ rest []byte }

func (l *lazy) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Second)
	n := copy(p[:min(len(p), 64<<10)], l.rest)
	l.rest = l.rest[n:]
	return n, nil
}
