package agents

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// exchange is one request of a program and what the gateway answered.
type exchange struct {
	Method, Path string
	Request      []byte
	// Status is 0 until a response begins.
	Status int
	// Ignored are the fields that the response names as ignored.
	Ignored []string
	// Response is as much of it as the program was sent, Ended if that is all.
	Response []byte
	Ended    bool
	// Failed is why the gateway could not be asked.
	Failed error
}

// recorder stands between programs and the gateway. It passes everything on
// unchanged and keeps a copy.
type recorder struct {
	*httptest.Server

	mu      sync.Mutex // guards what follows
	all     []*exchange
	running int
	changed chan struct{} // closed and replaced with each change
}

// record starts a recorder in front of a gateway.
func record(gateway string) (*recorder, error) {
	target, err := url.Parse(gateway)
	if err != nil {
		return nil, err
	}
	r := &recorder{changed: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(target) },
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() == nil { // else the program left
				r.change(func() { w.(*copied).e.Failed = err })
				w.WriteHeader(http.StatusBadGateway)
			}
		},
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the program left
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		e := &exchange{Method: req.Method, Path: req.URL.Path, Request: body}
		r.change(func() { r.all, r.running = append(r.all, e), r.running+1 })
		defer r.change(func() { r.running-- })
		proxy.ServeHTTP(&copied{w, r, e}, req) // panics where a response breaks off
		r.change(func() { e.Ended = true })
	}))
	return r, nil
}

// copied is a response that is recorded.
type copied struct {
	http.ResponseWriter
	r *recorder
	e *exchange
}

func (c *copied) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *copied) WriteHeader(status int) {
	c.r.change(func() {
		c.e.Status = status
		if names := c.Header().Get("X-Metalfleet-Ignored"); names != "" {
			c.e.Ignored = strings.Split(names, ", ")
		}
	})
	c.ResponseWriter.WriteHeader(status)
}

func (c *copied) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.r.change(func() { c.e.Response = append(c.e.Response, p[:n]...) })
	return n, err
}

func (r *recorder) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// exchanges returns those from number first on.
func (r *recorder) exchanges(first int) (out []exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all[first:] {
		out = append(out, *e)
	}
	return out
}

// waitPieces waits until a response from number first on, of the API at path, has
// n events with a piece of an answer.
func (r *recorder) waitPieces(ctx context.Context, first int, path string, n int) error {
	return r.wait(ctx, fmt.Sprintf("no response of %s was streamed", path), func() bool {
		for _, e := range r.all[first:] {
			if e.Path == path && bytes.Count(e.Response, []byte(`"delta"`)) >= n {
				return true
			}
		}
		return false
	})
}

// waitIdle waits until no request runs.
func (r *recorder) waitIdle(ctx context.Context) error {
	return r.wait(ctx, "a request still runs", func() bool { return r.running == 0 })
}

func (r *recorder) wait(ctx context.Context, failed string, done func() bool) error {
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", failed, context.Cause(ctx))
		}
	}
}
