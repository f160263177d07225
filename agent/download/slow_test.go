package download

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackAnErrorInManyPieces: the document with the cause of an error comes byte by byte, and
// each of them would keep the request, and the slot of its download, for as long as a stall.
func TestAttackAnErrorInManyPieces(t *testing.T) {
	const stall, parts, most = 200 * time.Millisecond, 10, 5
	var sent atomic.Int64
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusInternalServerError)
		for sent.Load() < 2*most*parts && r.Context().Err() == nil {
			sent.Add(1)
			fmt.Fprint(w, "<")
			w.(http.Flusher).Flush()
			time.Sleep(stall / parts)
		}
	}))
	t.Cleanup(srv.Close)
	c := NewClient(Policy{Allow: loopback, Roots: rootsOf(srv), Stall: stall})
	t.Cleanup(c.Close)
	_, err := c.Get(t.Context(), srv.URL, nil)
	if !IsTransient(err) {
		t.Errorf("error is %v", err)
	}
	srv.Close() // waits for the handler
	if n := sent.Load(); n >= most*parts {
		t.Errorf("%d bytes were waited for, a tenth of a stall each", n)
	}
}

// readBytes counts what is read of a file.
type readBytes struct {
	*os.File
	n *int64
}

func (r readBytes) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	*r.n += int64(n)
	return n, err
}

// TestAttackResponsesOfOneByte: each attempt brings a byte, so that there is no end of them, and
// would hash all that is there.
func TestAttackResponsesOfOneByte(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	o.cuts = append([]int{1_000_000}, slices.Repeat([]int{1}, 20)...)
	f, tg := fetcher(t, o)
	var hashed int64
	f.Open = func(root *os.Root, name string) (File, error) {
		file, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return readBytes{file, &hashed}, err
	}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if n := len(o.seen()); n != 22 || hashed > tg.Bytes {
		t.Errorf("%d requests had %d bytes hashed again, of a file of %d", n, hashed, tg.Bytes)
	}
}

// TestTheWaitForAnAnswerCounts: a login that takes a minute, and a host that takes a minute to
// answer, are as slow as one that sends nothing for that long.
func TestTheWaitForAnAnswerCounts(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	synctest.Test(t, func(t *testing.T) {
		var counted atomic.Int64
		slow := func() { <-time.After(time.Minute) }
		tg := Target{
			URL: "https://example.com/f", Bytes: 1, Root: root, Name: "f", Tries: 1,
			Header: func(h http.Header) (http.Header, error) { slow(); return h, nil },
			Get: func(context.Context, string, http.Header) (*http.Response, error) {
				slow()
				return nil, transientf(errors.New("broken"), "no answer")
			},
			Gained: func(n int) { counted.Add(1) },
		}
		if err := (&Fetcher{}).Fetch(t.Context(), tg, nil); !IsTransient(err) {
			t.Fatal(err)
		}
		if n, want := counted.Load(), int64(2*time.Minute/gainedEvery)-2; n < want {
			t.Errorf("the waits were counted %d times, want %d", n, want)
		}
	})
}
