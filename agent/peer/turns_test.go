package peer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// dripping is an endless body of zeros at a rate.
type dripping struct {
	ctx  context.Context
	rate int64
}

func (b dripping) Read(p []byte) (int, error) {
	n := min(len(p), int(b.rate/2))
	clear(p[:n])
	select {
	case <-time.After(time.Duration(n) * time.Second / time.Duration(b.rate)):
		return n, nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

// TestAPeersTimeIsThatOfAllTurns: four downloads of two namespaces take turns. A peer that is too
// slow for one of them alone is as slow in turns, and one that is fast enough is not blamed for the
// time between them.
func TestAPeersTimeIsThatOfAllTurns(t *testing.T) {
	const size, rate = 3_000_000, 10_000 // five turns
	for name, tc := range map[string]struct {
		pace        Pace
		response    int64 // seconds
		least, most time.Duration
		blamed      bool
	}{
		"slow":        {pace: Pace{Floor: 1000, Fair: 20_000}, response: 3600, most: 6 * time.Minute, blamed: true},
		"in pieces":   {pace: Pace{Floor: 11_000, Fair: 20_000}, response: 20, most: 6 * time.Minute, blamed: true},
		"fast enough": {pace: Pace{Floor: 1000, Fair: rate, Grace: 3 * time.Second}, response: 3600, least: 6 * time.Minute, most: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var records []model.Record
				for i, namespace := range []string{"a", "a", "b", "b"} {
					f := []model.File{{Path: store.SingleFile, Bytes: size + int64(i)}}
					f[0].SHA256 = fmt.Sprintf("%x", sha256.Sum256(make([]byte, f[0].Bytes)))
					records = append(records, model.Record{Source: "https://127.0.0.1:1/" + namespace + "/m.gguf", Digest: model.DigestOf(f), Format: model.FormatGGUF, Files: f})
				}
				s := newScripted(func(r *http.Request) *http.Response {
					if r.Method == http.MethodHead {
						return status(http.StatusOK, http.NoBody)
					}
					var from, bytes int64
					_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
					for _, rec := range records {
						if strings.HasSuffix(r.URL.Path, rec.Files[0].SHA256) {
							bytes = rec.Bytes()
						}
					}
					resp := status(http.StatusOK, io.LimitReader(dripping{r.Context(), rate}, min(bytes-from, rate*tc.response)))
					if err == nil {
						resp.StatusCode = http.StatusPartialContent
						resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, bytes-1, bytes))
					}
					return resp
				})
				s.Pace = tc.pace.withDefaults()
				last, failed := downloaded(t, s, records)
				if last < tc.least || last > tc.most || (failed == len(records)) != tc.blamed || (len(s.blamed) > 0) != tc.blamed {
					t.Errorf("%d failed, the last one ended after %v, and the peer is blamed %q", failed, last, s.blamed)
				}
			})
		})
	}
}

// TestALieInTwoResponsesIsOne: a peer that sends wrong bytes is avoided for a day, in as many
// responses as it likes.
func TestALieInTwoResponsesIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 64 << 10
		sent := 0
		s := newScripted(func(r *http.Request) *http.Response {
			var from int64
			if r.Method == http.MethodHead {
				return status(http.StatusOK, http.NoBody)
			}
			sent += size / 2
			if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err != nil {
				return status(http.StatusOK, io.LimitReader(dripping{r.Context(), size}, size/2))
			}
			resp := status(http.StatusPartialContent, io.LimitReader(dripping{r.Context(), size}, size/2))
			resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
			return resp
		})
		rec := sized(size)
		rec.Source, rec.Format, rec.Files[0].Path = "https://127.0.0.1:1/a/m.gguf", model.FormatGGUF, store.SingleFile
		rec.Digest = model.DigestOf(rec.Files)
		if _, failed := downloaded(t, s, []model.Record{rec}); failed != 1 || !slices.Equal(s.blamed, []string{reasonLied}) || sent != size {
			t.Errorf("%d failed, and the peer sent %d bytes and is blamed %q", failed, sent, s.blamed)
		}
	})
}

// downloaded downloads records whose source is forbidden. It returns after how long the last one
// ended, and how many failed.
func downloaded(t *testing.T, peers store.Peers, records []model.Record) (last time.Duration, failed int) {
	root, err := store.OpenRoot("", "", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	client := download.NewClient(download.Policy{})
	defer client.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	st, err := store.Open(ctx, store.Options{
		Dir: t.TempDir(), Root: root, Peers: peers, Log: logr.Discard(), Fetch: &download.Fetcher{Client: client},
		Namespaces: func(r model.Record, _ string) []string { return strings.Split(r.Source, "/")[3:4] },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	defer stop()
	began, errs := time.Now(), make([]error, len(records))
	var all sync.WaitGroup
	for i, rec := range records {
		all.Go(func() { _, errs[i] = st.Ensure(ctx, rec, "", nil) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return time.Since(began), failed
}

// TestALaterTurnHasTheGrantOfThen: that of the first turn may have expired.
func TestALaterTurnHasTheGrantOfThen(t *testing.T) {
	got, grant := "", "first"
	s := newScripted(func(r *http.Request) *http.Response {
		got = r.Header.Get(agentapi.HeaderGrant)
		return status(http.StatusOK, http.NoBody)
	})
	s.Assigned = func(model.Record, string) []v1alpha1.Peer { return []v1alpha1.Peer{{Mac: "evil", Grant: grant}} }
	peers := s.Of(t.Context(), sized(1), "", 0)
	grant = "second"
	resp, err := peers[0].Get(t.Context(), "https://evil/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got != grant {
		t.Errorf("the request has the grant %q, want %q", got, grant)
	}
}
