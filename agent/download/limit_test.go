package download

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inMemory is a partial file in memory.
type inMemory struct{ bytes.Buffer }

func (*inMemory) Seek(int64, int) (int64, error) { return 0, nil }
func (*inMemory) Close() error                   { return nil }
func (*inMemory) Sync() error                    { return nil }
func (*inMemory) Truncate(int64) error           { return nil }

// paced copies content under a limit and reports its rate.
func paced(ctx context.Context, f *Fetcher, content []byte, report func(Progress)) error {
	a := &attempt{f: f, t: Target{Bytes: int64(len(content))}, report: report, file: &inMemory{}, sum: sha256.New()}
	return a.copy(ctx, bytes.NewReader(content))
}

// TestDownloadsShareOneRate, in virtual time: together they take as long as the
// rate allows, none starves, and each reports a correct estimate.
func TestDownloadsShareOneRate(t *testing.T) {
	const mib = 1 << 20
	for name, many := range map[string]int{"one": 1, "three": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &Fetcher{Limit: NewLimit(mib)}
				content := make([]byte, 20*mib)
				began := time.Now()
				var all sync.WaitGroup
				for range many {
					var half Progress
					var at time.Time
					all.Go(func() {
						err := paced(t.Context(), f, content, func(p Progress) {
							if half.Done == 0 && p.Done >= 10*mib {
								half, at = p, time.Now()
							}
						})
						if err != nil {
							t.Error(err)
						}
						left := time.Since(at)
						if off := half.ETA - left; off < -left/10 || off > left/10 {
							t.Errorf("half way it said %v, and took %v", half.ETA, left)
						}
					})
				}
				all.Wait()
				took, want := time.Since(began), time.Duration(20*many)*time.Second
				if took < want-time.Second || took > want+time.Second {
					t.Errorf("%d files of 20 MiB at 1 MiB/s took %v, want %v", many, took, want)
				}
			})
		})
	}
}

// TestALimitChangesWhileADownloadRuns, in virtual time: a lower, a higher and no limit.
func TestALimitChangesWhileADownloadRuns(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		to   int64
		want time.Duration
	}{
		"lower":  {to: mib / 2, want: 10*time.Second + 20*time.Second},
		"higher": {to: 2 * mib, want: 10*time.Second + 5*time.Second},
		"none":   {to: 0, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &Fetcher{Limit: NewLimit(mib)}
				began := time.Now()
				time.AfterFunc(10*time.Second, func() { f.Limit.Set(tc.to) })
				if err := paced(t.Context(), f, make([]byte, 20*mib), func(Progress) {}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < tc.want-time.Second || took > tc.want+time.Second {
					t.Errorf("20 MiB took %v, want %v", took, tc.want)
				}
			})
		})
	}
}

func TestALimitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("no longer wanted")
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		if err := paced(ctx, &Fetcher{Limit: NewLimit(MinRate)}, make([]byte, 1<<20), func(Progress) {}); !errors.Is(err, why) {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it went on for %v", took)
		}
	})
}

// TestALimitedDownloadIsNotTakenForAStandstill: reads are so small that each of
// many downloads reads again well before a request counts as stalled.
func TestALimitedDownloadIsNotTakenForAStandstill(t *testing.T) {
	for _, bytesPerSecond := range []int64{1, MinRate, 1 << 20, 1 << 40} {
		l := NewLimit(bytesPerSecond)
		const atOnce = 16
		if wait := float64(l.most()*atOnce) / float64(l.bucket().Limit()); wait > defaultStall.Seconds()/4 {
			t.Errorf("at %d bytes/s, %d downloads wait %.0f s for their turn", bytesPerSecond, atOnce, wait)
		}
	}
	var none *Limit
	if NewLimit(0).most() != copyBytes || none.most() != copyBytes || none.took(t.Context(), 1<<30) != nil {
		t.Error("no limit limits")
	}
}

// TestResponsesOfALimitedClientShareTheRate with downloads, and their own time does not pass while
// they wait for it.
func TestResponsesOfALimitedClientShareTheRate(t *testing.T) {
	const mib = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		limit, late := NewLimit(mib), errors.New("late")
		ctx, cancel := WithTime(t.Context(), 10*time.Second, late)
		defer cancel()
		began, content := time.Now(), make([]byte, 20*mib)
		var all sync.WaitGroup
		all.Go(func() {
			b := &body{ReadCloser: io.NopCloser(bytes.NewReader(content)), ctx: ctx, limit: limit}
			b.watch = &stallWatch{after: time.Minute, timer: time.AfterFunc(time.Minute, func() {}), cancel: func(error) {}}
			defer b.Close()
			if n, err := io.Copy(io.Discard, b); n != int64(len(content)) || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
		all.Go(func() {
			if err := paced(t.Context(), &Fetcher{Limit: limit}, content, func(Progress) {}); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if took := time.Since(began); took < 39*time.Second {
			t.Errorf("40 MiB at 1 MiB/s took %v", took)
		}
		if ctx.Err() != nil {
			t.Error("the wait for the limit counts")
		}
		<-time.After(10 * time.Second)
		<-ctx.Done()
		if context.Cause(ctx) != late {
			t.Errorf("it ended with %v", context.Cause(ctx))
		}
	})
}

// TestALimitedClientGivesItsLimitToResponses, and the one that it was made from does not.
func TestALimitedClientGivesItsLimitToResponses(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	c, limit := NewClient(Policy{Allow: loopback, Roots: rootsOf(srv)}), NewLimit(MinRate)
	defer c.Close()
	for client, want := range map[*Client]*Limit{c: nil, c.Limited(limit): limit} {
		resp, err := client.Get(t.Context(), srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Body.(*body).limit; got != want {
			t.Errorf("limit %v, want %v", got, want)
		}
		resp.Body.Close()
	}
}
