package serve_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
)

// sips is a connection whose client takes one write per pause.
type sips struct {
	header   http.Header
	pause    time.Duration
	deadline time.Time
	got      int
}

func (s *sips) Header() http.Header                { return s.header }
func (s *sips) WriteHeader(int)                    {}
func (s *sips) FlushError() error                  { return nil }
func (s *sips) SetWriteDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *sips) Write(p []byte) (int, error) {
	if left := time.Until(s.deadline); !s.deadline.IsZero() && left < s.pause {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(s.pause)
	s.got += len(p)
	return len(p), nil
}

// TestAttackAMacThatReadsWeightsSlowly: each of its reads is in time for the write that
// waits for it, and it has one of the few slots.
func TestAttackAMacThatReadsWeightsSlowly(t *testing.T) {
	pair, err := agentapitest.NewCA(t).Mac("asker").Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	const file, piece = 64 << 20, 32 << 10
	for name, tc := range map[string]struct {
		pause time.Duration
		whole bool
	}{
		"a write each 25 s":     {pause: 25 * time.Second},
		"64 KiB/s":              {pause: piece * time.Second / (64 << 10)},
		"2 MiB/s, a slow line":  {pause: piece * time.Second / (2 << 20), whole: true},
		"100 MiB/s, a good one": {pause: piece * time.Second / (100 << 20), whole: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			weights := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for range file / piece {
					if _, err := w.Write(make([]byte, piece)); err != nil {
						return
					}
				}
			})
			w := &sips{header: http.Header{}, pause: tc.pause}
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.ProtoMajor, r.TLS = 1, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
			began := time.Now()
			serve.NewHandler(serve.Config{Weights: weights, Log: logr.Discard()}).ServeHTTP(w, r)
			if took := time.Since(began); took > 2*time.Minute || (w.got == file) != tc.whole {
				t.Errorf("%s: %d of %d bytes in %v", name, w.got, file, took)
			}
		})
	}
}
