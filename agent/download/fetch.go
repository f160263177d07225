package download

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	copyBytes      = 256 << 10
	reportEvery    = 200 * time.Millisecond
	maxBackoff     = 30 * time.Second
	fruitlessTries = 6
	gainedEvery    = 5 * time.Second
)

// File is a partial file on disk.
type File interface {
	io.Reader
	io.Writer
	io.Seeker
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// Target is a file to fetch.
type Target struct {
	// URL to fetch, and the size and digest that the file must have.
	URL    string
	Bytes  int64
	SHA256 string
	// Name of the partial file under Root; its resume notes are stored next to
	// it.
	Root *os.Root
	Name string
	// Header adds authorization to each request; nil if none is needed. A request
	// that a host denies is repeated only by the next Fetch, and the partial file
	// stays: access may still be granted.
	Header func(http.Header) (http.Header, error)
	// Gained is called with the number of bytes that arrive over the network, and with 0
	// every few seconds between attempts, while a partial file is hashed, and until a request is
	// answered; may be nil.
	Gained func(n int)
	// Dropped is called with the size of the partial file before it is removed or emptied, after
	// which its bytes are still to be written; may be nil.
	Dropped func(bytes int64)
	// Get requests the URL; nil means the fetcher's client.
	Get func(ctx context.Context, url string, header http.Header) (*http.Response, error)
	// Tries is the number of attempts without a new byte after which Fetch gives
	// up; 0 means six.
	Tries int
	// Hashed keeps the hash of the file from one call to the next; nil if there is none.
	Hashed *Hashed
	// Most is the number of bytes that may arrive in all attempts before no other one is
	// made; 0 means any. Responses that break off and start over are endless otherwise.
	Most int64
	// Immutable means that the URL always has the same bytes. Those of several responses with
	// another digest are a failure then, and not a file that changed between them.
	Immutable bool
}

// Begun reports whether a partial file exists that Fetch would resume.
func Begun(t Target) bool {
	info, err := t.Root.Stat(t.Name)
	return err == nil && info.Size() > 0 && readNotes(t).match(t)
}

// Fetcher fetches files with a client.
type Fetcher struct {
	Client *Client
	// Open opens or creates a partial file for reading and writing; nil means in
	// the target's root.
	Open func(root *os.Root, name string) (File, error)
	// Limit bounds all fetches together; nil means none.
	Limit *Limit
	// Backoff is the first wait between attempts; 0 means one second.
	Backoff time.Duration
}

// Fetch stores the target's file under its name in its root, complete, synced and
// with the right digest, or returns an error.
//
// After an interruption another attempt resumes at the last byte; bytes that are
// on disk from an earlier call are hashed again, unless Target.Hashed has their
// hash. After several attempts without a new byte Fetch gives up, and the partial
// file stays for a later call, as it does when ctx ends; a complete one is not
// fetched again. After a failure that a retry cannot fix (wrong digest, too many
// bytes, full disk) the partial file is removed; it stays if a later call may succeed (MayPass).
func (f *Fetcher) Fetch(ctx context.Context, t Target, report func(Progress)) error {
	if report == nil {
		report = func(Progress) {}
	}
	wait := f.Backoff
	if wait <= 0 {
		wait = time.Second
	}
	first := wait
	gained := int64(0)
	last := t.Hashed
	if last == nil {
		last = new(Hashed)
	}
	for fruitless := 0; ; {
		a := &attempt{f: f, t: t, report: report, last: last}
		err := a.run(ctx)
		*last = Hashed{a.sum, a.done, a.received}
		if err == nil {
			return removeNotes(t)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("fetch %s: %w", path.Base(t.Name), context.Cause(ctx))
		}
		if t.Header != nil && Denied(err) || a.done > 0 && MayPass(err) {
			return err
		}
		if !IsTransient(err) {
			return errors.Join(err, discard(t))
		}
		fruitless++
		if a.gained > 0 {
			fruitless, wait = 0, first
		}
		if gained += a.gained; fruitless >= cmp.Or(t.Tries, fruitlessTries) || t.Most > 0 && gained >= t.Most {
			return err
		}
		if err := t.pause(ctx, max(wait+rand.N(wait/2+1), retryAfter(err))); err != nil {
			return fmt.Errorf("fetch %s: %w", path.Base(t.Name), err)
		}
		wait = min(2*wait, maxBackoff)
	}
}

// Hashed is the hash of a partial file, for the next call of Fetch by the same process. The zero
// value has none.
type Hashed struct {
	sum  hash.Hash
	done int64 // bytes
	// received of them came from the URL, and not from the disk.
	received int64
}

// Complete reports whether the file is on the disk as this process fetched it, so that Fetch has
// nothing to do.
func Complete(t Target) bool {
	if t.Hashed == nil || t.Hashed.sum == nil || t.Hashed.done != t.Bytes || hex.EncodeToString(t.Hashed.sum.Sum(nil)) != t.SHA256 {
		return false
	}
	info, err := t.Root.Lstat(t.Name)
	return err == nil && info.Mode().IsRegular() && info.Size() == t.Bytes && readNotes(t) == (notes{})
}

// dropped reports that the partial file will be gone.
func (t Target) dropped(bytes int64) {
	if t.Dropped != nil {
		t.Dropped(bytes)
	}
}

// discard removes the partial file and its notes.
func discard(t Target) error {
	if info, err := t.Root.Lstat(t.Name); err == nil {
		t.dropped(info.Size())
	}
	if err := t.Root.Remove(t.Name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove part file: %w", err)
	}
	return removeNotes(t)
}

func retryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// pause waits between two attempts. The time counts: a source that asks for long waits
// must not look like one that sends.
func (t Target) pause(ctx context.Context, d time.Duration) error {
	for ; d > 0; d -= gainedEvery {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(d, gainedEvery)):
		}
		if t.Gained != nil {
			t.Gained(0)
		}
	}
	return nil
}

// counting counts the time until the function that it returns is called.
func (t Target) counting(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var counting sync.WaitGroup
	counting.Go(func() { _ = t.pause(ctx, math.MaxInt64) }) // it ends with ctx
	return func() {
		cancel()
		counting.Wait()
	}
}

// attempt is one attempt to fetch a target.
type attempt struct {
	f      *Fetcher
	t      Target
	report func(Progress)
	// last is the file as the attempt before left it.
	last *Hashed

	file File
	sum  hash.Hash
	// done bytes are in the file and in sum; gained of them arrived in this
	// attempt, received in this and those before.
	done, gained, received int64
	meter                  meter
	reported               time.Time
}

func (a *attempt) run(ctx context.Context) error {
	var err error
	if a.file, err = a.open(); err != nil {
		return DiskError(err, "open")
	}
	defer a.file.Close()
	n, err := a.resumeFrom(ctx)
	if err != nil {
		return err
	}
	if a.done < a.t.Bytes {
		if err := a.transfer(ctx, n); err != nil {
			return err
		}
	}
	if err := a.file.Sync(); err != nil {
		return DiskError(err, "sync")
	}
	a.show(true)
	if got := hex.EncodeToString(a.sum.Sum(nil)); got != a.t.SHA256 {
		return a.mismatch(got)
	}
	return nil
}

// mismatch handles a complete file with the wrong digest. One that was assembled
// from two transfers is fetched once more, as a whole, unless its URL is immutable.
func (a *attempt) mismatch(got string) error {
	if a.gained < a.t.Bytes && (!a.t.Immutable || a.received < a.t.Bytes) {
		if err := a.restart(); err != nil {
			return err
		}
		return transientf(nil, "the resumed file had SHA-256 %s instead of %s; downloading it again", got, a.t.SHA256)
	}
	return failf(v1alpha1.ReasonDigestMismatch, "the file has SHA-256 %s, but the expected SHA-256 is %s; correct model.sha256 or the source", got, a.t.SHA256)
}

func (a *attempt) open() (File, error) {
	if a.f.Open != nil {
		return a.f.Open(a.t.Root, a.t.Name)
	}
	return a.t.Root.OpenFile(a.t.Name, os.O_RDWR|os.O_CREATE, 0o600)
}

// resumeFrom hashes the file of an earlier attempt, if it was for this target, or of an
// earlier call that completed it, which left no notes. It continues after the bytes that have been
// hashed: a source may end each attempt after a byte, and the time of a turn while this hashes.
func (a *attempt) resumeFrom(ctx context.Context) (notes, error) {
	a.sum = sha256.New()
	n := readNotes(a.t)
	size, err := a.file.Seek(0, io.SeekEnd)
	if err != nil {
		return n, DiskError(err, "read")
	}
	whole := n == notes{} && size == a.t.Bytes
	if !whole && !n.match(a.t) || size > a.t.Bytes {
		return newNotes(a.t), a.restart()
	}
	if a.last.sum != nil && a.last.done <= size {
		a.sum, a.done, a.received = a.last.sum, a.last.done, a.last.received
	}
	if _, err := a.file.Seek(a.done, io.SeekStart); err != nil {
		return n, DiskError(err, "read")
	}
	defer a.t.counting(ctx)()
	buf := make([]byte, copyBytes)
	for a.done < size {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		k, err := a.file.Read(buf[:min(int64(len(buf)), size-a.done)])
		a.sum.Write(buf[:k])
		a.done += int64(k)
		if err != nil && (!errors.Is(err, io.EOF) || a.done < size) {
			return n, DiskError(err, "read")
		}
		a.show(false)
	}
	if whole && hex.EncodeToString(a.sum.Sum(nil)) != a.t.SHA256 {
		return newNotes(a.t), a.restart()
	}
	a.meter.reset()
	return n, nil
}

// restart removes everything on disk.
func (a *attempt) restart() error {
	size, err := a.file.Seek(0, io.SeekEnd)
	if err != nil {
		return DiskError(err, "read")
	}
	a.t.dropped(size)
	if err := a.file.Truncate(0); err != nil {
		return DiskError(err, "truncate")
	}
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return DiskError(err, "read")
	}
	a.sum, a.done, a.received = sha256.New(), 0, 0
	a.meter.reset()
	return nil
}

// transfer requests the missing bytes and appends them.
func (a *attempt) transfer(ctx context.Context, n notes) error {
	header := http.Header{}
	if a.done > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", a.done))
		if n.Validator != "" {
			header.Set("If-Range", n.Validator)
		}
	}
	resp, err := a.request(ctx, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := a.accept(resp); err != nil {
		return err
	}
	n.Validator = validator(resp.Header)
	if err := writeNotes(a.t, n); err != nil {
		return DiskError(err, "write")
	}
	return a.copy(ctx, resp.Body)
}

// request requests the target's URL. The time until it is answered counts, with that for a login.
func (a *attempt) request(ctx context.Context, header http.Header) (_ *http.Response, err error) {
	defer a.t.counting(ctx)()
	if a.t.Header != nil {
		if header, err = a.t.Header(header); err != nil {
			return nil, err
		}
	}
	get := a.t.Get
	if get == nil {
		get = a.f.Client.Get
	}
	return get(ctx, a.t.URL, header)
}

// accept decides where the response's bytes belong.
func (a *attempt) accept(resp *http.Response) error {
	host := hostOf(a.t.URL)
	switch resp.StatusCode {
	case http.StatusOK: // from the start, regardless of the requested range
		if resp.ContentLength >= 0 && resp.ContentLength != a.t.Bytes {
			return a.wrongLength(resp.ContentLength, true)
		}
		return a.restart()
	case http.StatusPartialContent:
		r, err := ParseContentRange(resp.Header.Get("Content-Range"))
		if err != nil {
			return failf(v1alpha1.ReasonSourceUnreachable, "host %s: %v", host, err)
		}
		if r.Total >= 0 && r.Total != a.t.Bytes {
			return a.wrongLength(r.Total, true)
		}
		if r.First != a.done {
			return failf(v1alpha1.ReasonSourceUnreachable, "host %s was asked for bytes from %d but sent bytes from %d", host, a.done, r.First)
		}
		return nil
	}
	// 416: the file there ends before our partial one does.
	if a.done == 0 {
		return failf(v1alpha1.ReasonSourceUnreachable, "host %s returned HTTP %d to a request without a range", host, resp.StatusCode)
	}
	if err := a.restart(); err != nil {
		return err
	}
	return transientf(nil, "host %s cannot resume the file; downloading it again", host)
}

func (a *attempt) wrongLength(got int64, unread bool) error {
	e := failf(v1alpha1.ReasonDigestMismatch, "the file at the source has %d bytes, but had %d when it was inspected; correct the source or model.sha256", got, a.t.Bytes)
	e.Unread = unread
	return e
}

// copy appends the body, at most one byte more than expected.
func (a *attempt) copy(ctx context.Context, src io.Reader) error {
	buf := make([]byte, a.f.Limit.most())
	for {
		want := a.t.Bytes - a.done
		n, err := src.Read(buf[:min(int64(len(buf)), want+1)])
		if int64(n) > want {
			return a.wrongLength(a.t.Bytes+1, false)
		}
		if n > 0 {
			if _, err := a.file.Write(buf[:n]); err != nil {
				return DiskError(err, "write")
			}
			a.sum.Write(buf[:n])
			a.done += int64(n)
			a.gained += int64(n)
			a.received += int64(n)
			if a.t.Gained != nil {
				a.t.Gained(n)
			}
			a.show(false)
			if err := a.f.Limit.took(ctx, n); err != nil {
				return err
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && a.done == a.t.Bytes {
			return nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return transientf(nil, "the connection to %s ended %d bytes early; resuming", hostOf(a.t.URL), a.t.Bytes-a.done)
		}
		return err
	}
}

// show reports progress, at most once per reportEvery.
func (a *attempt) show(final bool) {
	now := time.Now()
	if !final && now.Sub(a.reported) < reportEvery {
		return
	}
	a.reported = now
	a.report(progressOf(a.done, a.t.Bytes, a.meter.observe(now, a.done)))
}

func hostOf(source string) string {
	u, err := url.Parse(source)
	if err != nil {
		return "of the source"
	}
	return u.Hostname()
}

// DiskError turns a failed file operation into an *Error.
func DiskError(err error, verb string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &Error{Reason: v1alpha1.ReasonDiskFull, Message: "the Mac's disk is full; free disk space on it or delete models it no longer needs", Err: err}
	}
	return &Error{Reason: v1alpha1.ReasonDownloadFailed, Message: "the Mac cannot " + verb + " the file on its disk", Err: err}
}
