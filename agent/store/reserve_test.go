//go:build !race

package store

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// A source may start over as often as it likes: what is written again stays reserved.
func TestAFileThatIsWrittenAgainStaysReserved(t *testing.T) {
	w := newWorld(t)
	w.spared = wants()
	w.tight(mib + mib/2)
	again, hold := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	resumed := sync.OnceFunc(func() { close(again) })
	requests := 0
	w.origin.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		send := func(part []byte) {
			_, _ = rw.Write(part)
			rw.(http.Flusher).Flush()
		}
		rw.Header().Set("Content-Length", "1048576")
		if requests++; requests == 1 {
			send(w.content[:mib-2000])
			time.Sleep(300 * time.Millisecond) // longer than progress is reported
			send(w.content[mib-2000 : mib-1000])
			panic(http.ErrAbortHandler)
		}
		send(w.content[:1000]) // of the whole file, to a request for its rest
		resumed()
		<-hold
		send(w.content[1000:])
	})
	s, _ := w.start()
	done := make(chan error, 1)
	go func() {
		_, err := s.Ensure(t.Context(), recordOf(w.source(), w.content), "", nil)
		done <- err
	}()
	<-again
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.Ensure(soon, recordOf(w.origin.URL+"/other.gguf", append(blob(mib-1), 'x')), "", nil)
	wantReason(t, err, v1alpha1.ReasonDiskFull)
	if free, err := s.Unreserved(); err != nil || free > diskMargin+mib/2+mib/8 {
		t.Errorf("%d bytes are not reserved (%v), want the margin and half a MiB about", free, err)
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A file that is removed because its bytes were wrong is written again by the next source.
func TestAFileThatWasWrongIsReservedAgain(t *testing.T) {
	w := newWorld(t)
	s, _ := w.start()
	w.serve("/wrong.gguf", []byte(strings.Repeat("w", mib)))
	rec := recordOf(w.origin.URL+"/wrong.gguf", w.content)
	target, _, err := s.objects.stage(rec, rec.Files[0], rec.Source, origin{})
	if err != nil {
		t.Fatal(err)
	}
	dropped := int64(0)
	target.Dropped = func(n int64) { dropped += n }
	err = s.opt.Fetch.Fetch(context.Background(), target, func(download.Progress) {})
	wantReason(t, err, v1alpha1.ReasonDigestMismatch)
	if dropped != mib {
		t.Errorf("%d bytes were reported as dropped, want %d", dropped, mib)
	}
}
