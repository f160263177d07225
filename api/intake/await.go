package intake

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// awaitEach is the pause before another attempt to get a port.
const awaitEach = time.Second

// Await is Listen, which gets a port later that another program has: any local user may take it while
// this program starts. It calls busy with the error of the first attempt.
func Await(address string, busy func(error)) (net.Listener, error) {
	l, err := Listen(address)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	at, failed := net.ResolveTCPAddr("tcp", address)
	if failed != nil {
		return nil, err
	}
	if at.IP == nil {
		at.IP = net.IPv6unspecified
	}
	busy(err)
	return &awaited{address: address, at: at, closed: make(chan struct{})}, nil
}

// awaited is a listener whose port another program had.
type awaited struct {
	address string
	at      net.Addr
	closed  chan struct{}

	mu       sync.Mutex
	listener net.Listener // nil until the port is free
	ended    bool
}

// Accept implements net.Listener.
func (a *awaited) Accept() (net.Conn, error) {
	tick := time.NewTicker(awaitEach)
	defer tick.Stop()
	for {
		l, err := a.listen()
		if l != nil {
			return l.Accept()
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-a.closed:
		}
	}
}

// listen returns the listener, once the port is free.
func (a *awaited) listen() (net.Listener, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, net.ErrClosed
	}
	if a.listener != nil {
		return a.listener, nil
	}
	l, err := Listen(a.address)
	if err == nil {
		a.listener = l
	}
	return a.listener, err
}

// Close implements net.Listener.
func (a *awaited) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		close(a.closed)
	}
	a.ended = true
	if a.listener == nil {
		return nil
	}
	return a.listener.Close()
}

// Addr implements net.Listener.
func (a *awaited) Addr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener == nil {
		return a.at
	}
	return a.listener.Addr()
}
