package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Relay is what an administrator puts in front of a port that listens on a
// Mac's loopback alone: connections to one address of the Mac go on to another.
// Its sockets are the Mac's, so that a cut link cuts them too.
type Relay struct {
	listener net.Listener
	network  string // file of the namespace
	to       string
	ends     sync.WaitGroup

	mu    sync.Mutex // guards open and ended
	open  map[net.Conn]bool
	ended bool
}

// Relay listens on an address of the Mac and takes connections to another.
func (m *Mac) Relay(listen, to string) (*Relay, error) {
	r, err := relay(namespaces+"/"+m.Name, listen, to)
	if err != nil {
		return nil, fmt.Errorf("relay on Mac %s: %w", m.Name, err)
	}
	return r, nil
}

func relay(network, listen, to string) (*Relay, error) {
	r := &Relay{network: network, to: to, open: map[net.Conn]bool{}}
	err := within(network, func() (err error) {
		r.listener, err = net.Listen("tcp", listen)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.ends.Go(r.accept)
	return r, nil
}

// within runs f on a thread that is in another network: sockets that it makes
// belong there. A thread that cannot come back stays locked, and so ends with
// its goroutine.
func within(network string, f func() error) error {
	ended := make(chan error)
	go func() { ended <- enter(network, f) }()
	return <-ended
}

func enter(network string, f func() error) error {
	runtime.LockOSThread()
	back, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return err
	}
	defer back.Close()
	there, err := os.Open(network)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network %s: %w", network, err)
	}
	err = f()
	if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func (r *Relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return // Close was called
		}
		r.ends.Go(func() {
			defer from.Close()
			var on net.Conn
			if err := within(r.network, func() (err error) {
				on, err = net.Dial("tcp", r.to)
				return err
			}); err != nil {
				return // nobody is there: whoever asked sees the connection end
			}
			defer on.Close()
			if r.hold(from, on) {
				defer r.release(from, on)
				r.carry(from, on)
			}
		})
	}
}

// carry moves bytes both ways until one side ends.
func (r *Relay) carry(a, b net.Conn) {
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // it ends with its connection
			a.Close()
			b.Close()
		})
	}
	both.Wait()
}

// hold has connections end with the relay.
func (r *Relay) hold(all ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		r.open[c] = true
	}
	return !r.ended
}

func (r *Relay) release(all ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		delete(r.open, c)
	}
}

// Close ends the relay and what goes through it.
func (r *Relay) Close() error {
	err := r.listener.Close()
	r.mu.Lock()
	r.ended = true
	for c := range r.open {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	r.mu.Unlock()
	r.ends.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
