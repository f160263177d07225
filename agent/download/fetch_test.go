package download

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

func fetcher(t *testing.T, o *origin) (*Fetcher, Target) {
	f := &Fetcher{Client: clientFor(t, o.Server), Backoff: time.Millisecond}
	return f, Target{URL: o.URL + "/m.gguf", Bytes: int64(len(o.content)), SHA256: digest(o.content), Root: place(t), Name: "m.gguf"}
}

func wantFile(t *testing.T, tg Target, want []byte) {
	t.Helper()
	got, err := tg.Root.ReadFile(tg.Name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("file has %d bytes with SHA-256 %s, want %d with %s", len(got), digest(got), len(want), digest(want))
	}
	if exists(tg.Root, notesName(tg)) {
		t.Error("notes remain next to a finished file")
	}
}

func wantGone(t *testing.T, tg Target) {
	t.Helper()
	if exists(tg.Root, tg.Name) || exists(tg.Root, notesName(tg)) {
		t.Error("the part file still takes disk")
	}
}

func TestFetchBringsTheWholeFile(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	var last Progress
	if err := f.Fetch(t.Context(), tg, func(p Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if last.Done != tg.Bytes || last.Total != tg.Bytes {
		t.Errorf("last progress is %+v", last)
	}
}

func TestFetchResumesAfterCuts(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	o.cuts = []int{300_000, 200_000}
	f, tg := fetcher(t, o)
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	seen := o.seen()
	if len(seen) != 3 {
		t.Fatalf("%d requests, want 3", len(seen))
	}
	for i, want := range []string{"", "bytes=300000-", "bytes=500000-"} {
		if got := seen[i].Get("Range"); got != want {
			t.Errorf("request %d has Range %q, want %q", i, got, want)
		}
	}
	if seen[1].Get("If-Range") != `"one"` {
		t.Errorf("If-Range is %q", seen[1].Get("If-Range"))
	}
}

// A partial file that an earlier agent left is hashed, not trusted.
func TestFetchDoesNotBelieveAPartFile(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	part := append([]byte(nil), o.content[:400_000]...)
	part[17] ^= 1
	if err := tg.Root.WriteFile(tg.Name, part, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeNotes(tg, newNotes(tg)); err != nil {
		t.Fatal(err)
	}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if n := len(o.seen()); n != 2 {
		t.Errorf("%d requests, want a resume and a whole fetch", n)
	}
}

func TestFetchGoesOnWhereAnEarlierCallEnded(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	if err := tg.Root.WriteFile(tg.Name, o.content[:400_000], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeNotes(tg, newNotes(tg)); err != nil {
		t.Fatal(err)
	}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if got := o.seen()[0].Get("Range"); got != "bytes=400000-" {
		t.Errorf("Range is %q", got)
	}
}

// readsOf counts what is read of a file on the disk.
type readsOf struct {
	File
	bytes *int
}

func (r readsOf) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	*r.bytes += n
	return n, err
}

// TestAHashIsKeptForTheNextCall: a download that gives way each minute does not read its files again
// each time, neither the one that is begun nor those that are complete.
func TestAHashIsKeptForTheNextCall(t *testing.T) {
	for _, kept := range []bool{true, false} {
		o := newOrigin(t, blob(1<<20))
		o.cuts = []int{400_000}
		f, tg := fetcher(t, o)
		if kept {
			tg.Hashed = new(Hashed)
		}
		read := 0
		f.Open = func(r *os.Root, name string) (File, error) {
			file, err := r.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
			return readsOf{file, &read}, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		tg.Gained = func(int) { cancel() }
		if err := f.Fetch(ctx, tg, nil); err == nil {
			t.Fatal("it is not interrupted")
		}
		tg.Gained = nil
		for _, what := range []string{"begun", "complete"} {
			read = 0
			if err := f.Fetch(t.Context(), tg, nil); err != nil {
				t.Fatal(err)
			}
			wantFile(t, tg, o.content)
			if (read == 0) != kept {
				t.Errorf("with the hash kept = %v, %d bytes of a file that is %s are read again", kept, read, what)
			}
		}
	}
}

// A partial file without notes may be anything: it is not resumed.
func TestFetchDropsAPartOfAnotherTarget(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	if err := tg.Root.WriteFile(tg.Name, o.content[:400_000], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if got := o.seen()[0].Get("Range"); got != "" {
		t.Errorf("Range is %q, want none", got)
	}
}

// The files of a model that are complete stay so while others of it are fetched later.
func TestFetchKeepsACompleteFile(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	for range 2 {
		if err := f.Fetch(t.Context(), tg, nil); err != nil {
			t.Fatal(err)
		}
		wantFile(t, tg, o.content)
	}
	if n := len(o.seen()); n != 1 {
		t.Errorf("%d requests for a file that was complete after the first", n)
	}
	if err := tg.Root.WriteFile(tg.Name, make([]byte, tg.Bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	tg.Tries = 1
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
}

// TestResponsesOfAnImmutableURLAreOneFile: with another digest they are no file that changed
// between them. What an earlier process left on the disk may have been lost there.
func TestResponsesOfAnImmutableURLAreOneFile(t *testing.T) {
	for name, tc := range map[string]struct {
		immutable, left bool
		cuts            []int
		requests        int
	}{
		"in two responses": {immutable: true, cuts: []int{500_000}, requests: 2},
		"of another URL":   {cuts: []int{500_000}, requests: 3},
		"a part was left":  {immutable: true, left: true, requests: 2},
	} {
		o := newOrigin(t, blob(1<<20))
		f, tg := fetcher(t, o)
		tg.Immutable, tg.SHA256, o.cuts = tc.immutable, digest(nil), tc.cuts
		if tc.left {
			n := newNotes(tg)
			n.Validator = o.etag
			if err := errors.Join(tg.Root.WriteFile(tg.Name, make([]byte, 300_000), 0o600), writeNotes(tg, n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Fetch(t.Context(), tg, nil); Reason(err, "") != v1alpha1.ReasonDigestMismatch || len(o.seen()) != tc.requests {
			t.Errorf("%s: %v after %d requests, want %d", name, err, len(o.seen()), tc.requests)
		}
	}
}

func TestFetchStartsAnewWhenTheFileChanged(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	other := make([]byte, 300_000)
	if err := tg.Root.WriteFile(tg.Name, other, 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNotes(tg)
	n.Validator = `"zero"`
	if err := writeNotes(tg, n); err != nil {
		t.Fatal(err)
	}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, o.content)
	if n := len(o.seen()); n != 1 {
		t.Errorf("%d requests, want one that If-Range turned into a whole fetch", n)
	}
}

func TestFetchFromAServerThatIgnoresRange(t *testing.T) {
	content := blob(500_000)
	cut := true
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cut {
			cut = false
			w.Header().Set("Content-Length", "500000")
			w.Write(content[:100_000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		w.Write(content)
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	tg := Target{URL: srv.URL, Bytes: 500_000, SHA256: digest(content), Root: place(t), Name: "m"}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, content)
}

// wantFailure fetches and requires a reason, and no disk usage.
func wantFailure(t *testing.T, f *Fetcher, tg Target, reason string) {
	t.Helper()
	err := f.Fetch(t.Context(), tg, nil)
	var e *Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("error is %v, want reason %s", err, reason)
	}
	wantGone(t, tg)
}

func TestFetchRefusesAnotherDigest(t *testing.T) {
	o := newOrigin(t, blob(100_000))
	f, tg := fetcher(t, o)
	tg.SHA256 = digest([]byte("other"))
	wantFailure(t, f, tg, v1alpha1.ReasonDigestMismatch)
	if n := len(o.seen()); n != 1 {
		t.Errorf("a final mismatch was fetched %d times", n)
	}
}

func TestFetchRefusesAnotherLength(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"announced longer":   func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 1001)) },
		"announced shorter":  func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 999)) },
		"unannounced longer": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.Write(make([]byte, 1<<20)) },
		"range of a longer file": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-999/2000")
			w.WriteHeader(http.StatusPartialContent)
			w.Write(make([]byte, 1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewTLSServer(serve)
			t.Cleanup(srv.Close)
			f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
			wantFailure(t, f, Target{URL: srv.URL, Bytes: 1000, SHA256: digest(make([]byte, 1000)), Root: place(t), Name: "m"}, v1alpha1.ReasonDigestMismatch)
		})
	}
}

// A server that returns another range than requested must not be able to write
// bytes in the wrong place.
func TestFetchRefusesAnotherRange(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 10-999/1000")
		w.WriteHeader(http.StatusPartialContent)
		w.Write(make([]byte, 990))
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	wantFailure(t, f, Target{URL: srv.URL, Bytes: 1000, SHA256: digest(make([]byte, 1000)), Root: place(t), Name: "m"}, v1alpha1.ReasonSourceUnreachable)
}

func TestFetchNamesTheReasonOfAStatus(t *testing.T) {
	for status, reason := range map[int]string{
		404: v1alpha1.ReasonSourceNotFound, 410: v1alpha1.ReasonSourceNotFound,
		401: v1alpha1.ReasonSourceForbidden, 403: v1alpha1.ReasonSourceForbidden,
		400: v1alpha1.ReasonSourceUnreachable, 204: v1alpha1.ReasonSourceUnreachable,
	} {
		srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
		wantFailure(t, f, Target{URL: srv.URL, Bytes: 1, SHA256: digest([]byte{0}), Root: place(t), Name: "m"}, reason)
		srv.Close()
	}
}

func TestFetchTriesAgainAfterServerErrors(t *testing.T) {
	content, tries := blob(1000), 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Write(content)
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	tg := Target{URL: srv.URL, Bytes: 1000, SHA256: digest(content), Root: place(t), Name: "m"}
	if err := f.Fetch(t.Context(), tg, nil); err != nil {
		t.Fatal(err)
	}
	wantFile(t, tg, content)
}

func TestFetchGivesUpOnAServerThatStaysAway(t *testing.T) {
	tries := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries++
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	err := f.Fetch(t.Context(), Target{URL: srv.URL, Bytes: 1, SHA256: digest([]byte{0}), Root: place(t), Name: "m"}, nil)
	if !IsTransient(err) || tries != fruitlessTries {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// TestFetchBoundsWhatArrives: a server that breaks each response off, and starts over, would
// be asked for ever.
func TestFetchBoundsWhatArrives(t *testing.T) {
	content := blob(1 << 20)
	tries := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries++
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:3*len(content)/4])
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	ctx, end := context.WithTimeout(t.Context(), patience.Of(t))
	defer end()
	err := f.Fetch(ctx, Target{URL: srv.URL, Bytes: int64(len(content)), SHA256: digest(content), Root: place(t), Name: "m", Tries: 1, Most: 2 << 20}, nil)
	if ctx.Err() != nil || !IsTransient(err) || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}

// TestWaitsBetweenAttemptsAreReported to Gained, every few seconds.
func TestWaitsBetweenAttemptsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := 0
		f := &Fetcher{Client: NewClient(Policy{})}
		defer f.Client.Close()
		_ = f.Fetch(t.Context(), Target{Bytes: 1, SHA256: digest([]byte{0}), Root: place(t), Name: "m", Tries: 2,
			Gained: func(int) { waits++ },
			Get: func(context.Context, string, http.Header) (*http.Response, error) {
				return nil, &Error{Reason: v1alpha1.ReasonSourceUnreachable, RetryAfter: 5 * time.Minute, Transient: true}
			}}, nil)
		if waits != 60 {
			t.Errorf("%d reports in five minutes", waits)
		}
	})
}

// fullDisk is a partial file on a disk that is full after some bytes.
type fullDisk struct {
	File
	left int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) > d.left {
		return 0, &os.PathError{Op: "write", Path: "m", Err: syscall.ENOSPC}
	}
	d.left -= len(p)
	return d.File.Write(p)
}

func TestFetchSaysThatTheDiskIsFull(t *testing.T) {
	o := newOrigin(t, blob(1<<20))
	f, tg := fetcher(t, o)
	f.Open = func(r *os.Root, name string) (File, error) {
		file, err := r.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return &fullDisk{File: file, left: 300_000}, err
	}
	wantFailure(t, f, tg, v1alpha1.ReasonDiskFull)
}

func TestFetchEndsWithItsContextAndKeepsThePart(t *testing.T) {
	content := blob(1 << 20)
	released := make(chan struct{})
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1048576")
		w.Write(content[:200_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(released)
	}))
	t.Cleanup(srv.Close)
	f := &Fetcher{Client: clientFor(t, srv), Backoff: time.Millisecond}
	tg := Target{URL: srv.URL, Bytes: 1 << 20, SHA256: digest(content), Root: place(t), Name: "m"}
	ctx, cancel := context.WithCancel(t.Context())
	err := f.Fetch(ctx, tg, func(p Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v", err)
	}
	select {
	case <-released:
	case <-time.After(patience.Of(t)):
		t.Fatal("the connection is still open")
	}
	if !exists(tg.Root, tg.Name) {
		t.Error("the part is gone, nothing to resume from")
	}
}
