package inspect

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// firstRange is what the first request asks for, enough for a small header;
// each further one asks for twice as much, so that a large vocabulary comes in
// a few, up to lastRange.
const (
	firstRange = 256 << 10
	lastRange  = 4 << 20
)

// getFunc asks for the file once more, with a header.
type getFunc func(http.Header) (*http.Response, error)

// remoteFile reads the start of a file over https, forward. A server that
// ignores ranges is read as a stream that ends with close.
type remoteFile struct {
	get  getFunc
	size int64
	etag string

	// piece holds the bytes from at on; stream continues them, if there is one.
	piece  []byte
	at     int64
	stream io.ReadCloser
	// ask is the size of the next piece.
	ask int64
	// read counts what came over the wire, most is all that may.
	read, most int64
}

// openRemote requests the first part of a file, which also returns its size.
func openRemote(get getFunc, most int64) (*remoteFile, error) {
	f := &remoteFile{get: get, size: -1, ask: firstRange, most: most}
	if err := f.load(0); err != nil {
		f.close()
		return nil, err
	}
	if f.size > maxFileSize {
		f.close()
		return nil, failure(v1alpha1.ReasonInvalidModel, "the file has %d bytes, which is not plausible: the limit is %d", f.size, int64(maxFileSize))
	}
	return f, nil
}

func (f *remoteFile) close() {
	if f.stream != nil {
		f.stream.Close()
		f.stream = nil
	}
}

// ReadAt serves the forward reads of a header reader.
func (f *remoteFile) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at >= f.size {
			return done, io.EOF
		}
		if at < f.at || at >= f.at+int64(len(f.piece)) {
			if err := f.load(at); err != nil {
				return done, err
			}
		}
		done += copy(p[done:], f.piece[at-f.at:])
	}
	return done, nil
}

// load brings the piece that begins at a position.
func (f *remoteFile) load(at int64) error {
	if f.stream != nil {
		return f.next(at)
	}
	last := at + f.ask - 1
	if f.size >= 0 {
		last = min(last, f.size-1)
	}
	resp, err := f.get(http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", at, last)}})
	if err != nil {
		return err
	}
	switch resp.StatusCode {
	case http.StatusPartialContent:
		defer resp.Body.Close()
		return f.partial(resp, at, last)
	case http.StatusOK:
		return f.whole(resp, at)
	}
	resp.Body.Close()
	return failure(v1alpha1.ReasonInvalidModel, "the file at the source is empty; publish it again")
}

func (f *remoteFile) partial(resp *http.Response, at, last int64) error {
	r, err := download.ParseContentRange(resp.Header.Get("Content-Range"))
	if err != nil || r.First != at || r.Last > last || r.Total < 0 {
		return failure(v1alpha1.ReasonSourceUnreachable, "the host returned a missing or wrong Content-Range for a range request; use another host")
	}
	if f.size >= 0 && (r.Total != f.size || resp.Header.Get("ETag") != f.etag) {
		return f.replaced()
	}
	f.size, f.etag = r.Total, resp.Header.Get("ETag")
	return f.fill(resp.Body, at, r.Last-r.First+1)
}

func (f *remoteFile) whole(resp *http.Response, at int64) error {
	f.stream = resp.Body
	switch {
	case at != 0: // it served ranges a moment ago
		return f.replaced()
	case resp.ContentLength < 0:
		return failure(v1alpha1.ReasonSourceUnreachable, "the host does not report the size of the file; use a host that sends Content-Length")
	case resp.ContentLength == 0:
		return failure(v1alpha1.ReasonInvalidModel, "the file at the source is empty; publish it again")
	}
	f.size = resp.ContentLength
	return f.fill(f.stream, 0, min(f.ask, f.size))
}

// next reads on in the stream. The header reader only ever goes forward.
func (f *remoteFile) next(at int64) error {
	if at != f.at+int64(len(f.piece)) {
		return failure(v1alpha1.ReasonSourceUnreachable, "the host cannot serve parts of the file; use one that supports range requests")
	}
	return f.fill(f.stream, at, min(f.ask, f.size-at))
}

func (f *remoteFile) fill(r io.Reader, at, n int64) error {
	if f.read += n; f.read > f.most {
		return failure(v1alpha1.ReasonInvalidModel, "the header of the file is larger than %d MiB; choose another file", f.most>>20)
	}
	f.ask = min(2*f.ask, lastRange)
	f.piece, f.at = make([]byte, n), at
	got, err := io.ReadFull(r, f.piece)
	f.piece = f.piece[:got]
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the connection ended early; retrying"}
	}
	return err
}

func (f *remoteFile) replaced() error {
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the file changed while it was being inspected; inspecting it again"}
}
