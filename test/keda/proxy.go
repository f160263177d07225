package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// proxy hands connections on by name (CONNECT), in the place of a cluster's DNS: KEDA
// says the name that the operator's certificate has, and is led to this machine.
type proxy struct {
	address string
	names   map[string]string
	server  *http.Server
	ended   chan error
	wg      sync.WaitGroup
}

func newProxy(names map[string]string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{address: l.Addr().String(), names: names, ended: make(chan error, 1)}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { p.ended <- p.server.Serve(l) }()
	return p, nil
}

// ServeHTTP leads one connection to where its name is.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, ok := p.names[r.Host]
	if r.Method != http.MethodConnect || !ok {
		http.Error(w, "no such host", http.StatusBadGateway)
		return
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	near, rest, err := w.(http.Hijacker).Hijack()
	if err != nil {
		_ = far.Close()
		return
	}
	defer near.Close()
	defer far.Close()
	if _, err := near.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err != nil {
		return
	}
	p.wg.Go(func() {
		_, _ = io.Copy(far, rest)
		_ = far.Close()
	})
	_, _ = io.Copy(near, far)
}

func (p *proxy) stop() error {
	err := p.server.Close()
	if ended := <-p.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	p.wg.Wait()
	return err
}
