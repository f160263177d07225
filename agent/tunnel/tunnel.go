// Package tunnel opens connections from this Mac to gateways that cannot reach
// it, and gives them to the agent's port as if gateways had opened them.
//
// It owns which gateways there are, one connection to each, and when to try
// again. It refuses a second connection to one gateway and what does not answer
// as one, and reads no more: TLS and its identities are the port's, which serves
// these connections as it serves its own, takes no more requests on them when it
// drains, and finds by pings those that are dead.
//
// Start reading at Listen and Listener.Run.
package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
)

const (
	// lookEach is how often the names of gateways are looked up.
	lookEach = 15 * time.Second
	// againMin and Options.MostWait, or againMax, bound the pause between two
	// attempts; it doubles, and starts again at its minimum after a tunnel ended
	// that had lasted for wellAfter. One address may lead to several gateways,
	// and new ones may appear at any time, so attempts continue while all tunnels
	// work.
	againMin  = 250 * time.Millisecond
	againMax  = 15 * time.Second
	wellAfter = 5 * time.Second
	// dialTime is how long a gateway may take to be reached and to say its name.
	dialTime = 5 * time.Second
	// mostTunnels to gateways at once.
	mostTunnels = 64
)

// Options of the tunnels.
type Options struct {
	// Mac is this Mac's name.
	Mac string
	// Gateways are their addresses, as host:port. A host may have several
	// addresses, and an address may lead to several gateways.
	Gateways []string
	// Lookup finds the addresses of a host; nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
	// MostWait is the longest time between two tries; 0 means 15 s.
	MostWait time.Duration
	Log      logr.Logger
}

// Listener gives the connections of its own port and those of tunnels.
type Listener struct {
	net.Listener
	Options
	conns  chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex      // guards what follows
	tunnels map[string]bool // that are open, by gateway
	refused bool            // the last one that ended did so at once
	lost    chan struct{}   // closed when one went that had lasted
}

// Listen adds tunnels to a port. Run opens them.
func Listen(own net.Listener, o Options) *Listener {
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupHost
	}
	o.MostWait = cmp.Or(o.MostWait, againMax)
	l := &Listener{Listener: own, Options: o, conns: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
		tunnels: map[string]bool{}, lost: make(chan struct{})}
	go l.own() // until the port is closed
	return l
}

// own hands on what is opened by others.
func (l *Listener) own() {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // Accept decides how long to pause
			case <-l.closed:
				return
			}
			continue
		}
		if !l.give(c) {
			return
		}
	}
}

// give passes a connection to Accept; it returns false after Accept has ended.
func (l *Listener) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		_ = c.Close()
		return false
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the port, and takes no more tunnels.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Run keeps a tunnel to every gateway open until ctx ends. Those that are open
// then stay as long as the port serves them.
func (l *Listener) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := map[string]context.CancelFunc{}
	tick := time.NewTicker(lookEach)
	defer tick.Stop()
	for {
		wanted := l.look(ctx, running)
		for address, stop := range running {
			if !wanted[address] {
				stop()
				delete(running, address)
			}
		}
		for address := range wanted {
			if running[address] == nil {
				keeping, stop := context.WithCancel(ctx)
				running[address] = stop
				wg.Go(func() { l.keep(keeping, address, &wg) })
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range running {
				stop()
			}
			return
		case <-tick.C:
		}
	}
}

// look finds the addresses to open tunnels to. A name that cannot be looked up now changes
// nothing. A name may stand for any number of addresses: at most mostTunnels are used, first
// those that are in use already, then the first ones of each name.
func (l *Listener) look(ctx context.Context, before map[string]context.CancelFunc) map[string]bool {
	out := map[string]bool{}
	type address struct {
		at   string
		rank int // among those of its name
	}
	var more []address
	for _, gateway := range l.Gateways {
		host, port, err := net.SplitHostPort(gateway)
		var found []string
		if err == nil {
			found, err = l.Lookup(ctx, host)
		}
		if err != nil {
			l.Log.V(1).Info("cannot resolve a gateway; keeping the known addresses", "gateway", gateway, "reason", err.Error())
			for address := range before {
				out[address] = true
			}
			continue
		}
		for rank, ip := range found {
			if at := net.JoinHostPort(ip, port); before[at] != nil {
				out[at] = true
			} else {
				more = append(more, address{at, rank})
			}
		}
	}
	slices.SortStableFunc(more, func(a, b address) int { return a.rank - b.rank })
	for i, a := range more {
		if len(out) >= mostTunnels {
			l.Log.V(1).Info("gateways have more addresses than tunnels may be opened; using the first", "tunnels", mostTunnels, "unused", len(more)-i)
			break
		}
		out[a.at] = true
	}
	return out
}

// errHave means that there is a tunnel to a gateway already.
var errHave = errors.New("a tunnel to that gateway exists")

// keep opens tunnels to the gateways at one address.
func (l *Listener) keep(ctx context.Context, address string, wg *sync.WaitGroup) {
	again, well := againMin, true
	for ctx.Err() == nil {
		lost := l.watch()
		gateway, t, err := l.open(ctx, address)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = t.Close()
				l.forget(gateway, 0)
			}
			return
		case err == nil:
			wg.Go(func() { l.hand(ctx, gateway, t) })
			well = true
		case errors.Is(err, errHave):
			well = true
		default:
			if well {
				l.Log.Info("cannot open a tunnel to a gateway; retrying", "gateway", address, "reason", err.Error())
			}
			well = false
		}
		timer := time.NewTimer(again/2 + rand.N(again/2))
		again = min(2*again, l.MostWait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-lost: // by all Macs at the same time, perhaps
			again = againMin
			pause(ctx, again/2+rand.N(again/2))
		}
		timer.Stop()
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// open opens a tunnel, and counts it.
func (l *Listener) open(ctx context.Context, address string) (gateway string, t *told, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", nil, err
	}
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return "", nil, errors.Join(err, c.Close())
	}
	if err := agentapi.SayTunnel(c, l.Mac); err != nil {
		return "", nil, errors.Join(fmt.Errorf("start a tunnel: %w", err), c.Close())
	}
	if gateway, err = agentapi.HearGateway(c); err != nil {
		return "", nil, errors.Join(err, c.Close())
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return "", nil, errors.Join(err, c.Close())
	}
	if err := l.note(gateway); err != nil {
		return gateway, nil, errors.Join(err, c.Close())
	}
	return gateway, &told{Conn: agentapi.Tunnel(c), ended: make(chan struct{})}, nil
}

// hand has the port serve a tunnel, and waits for its end.
func (l *Listener) hand(ctx context.Context, gateway string, t *told) {
	began := time.Now()
	defer func() { l.forget(gateway, time.Since(began)) }()
	if !l.give(t) {
		return
	}
	log := l.Log.WithValues("gateway", t.RemoteAddr().String(), "id", gateway)
	log.V(1).Info("tunnel to a gateway is open")
	select {
	case <-t.ended:
	case <-ctx.Done(): // the tunnel stays open without us
		return
	}
	switch lasted := time.Since(began); {
	case lasted >= wellAfter:
		log.Info("tunnel to a gateway closed; opening another one", "lasted", lasted.Round(time.Second).String())
	case !l.wasRefused():
		log.Info("a tunnel was closed immediately: one end rejected the other's certificate, or the gateway is shutting down; retrying")
	}
}

// note counts a tunnel that comes, unless there is one to that gateway.
func (l *Listener) note(gateway string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tunnels[gateway]:
		return errHave
	case len(l.tunnels) >= mostTunnels:
		return fmt.Errorf("tunnels to %d gateways are open, which is the maximum", mostTunnels)
	}
	l.tunnels[gateway] = true
	return nil
}

// forget notes that a tunnel ended that had lasted for a while.
func (l *Listener) forget(gateway string, lasted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tunnels, gateway)
	if l.refused = lasted < wellAfter; !l.refused {
		close(l.lost)
		l.lost = make(chan struct{})
	}
}

// wasRefused reports whether the previous tunnel ended at once, too.
func (l *Listener) wasRefused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// watch returns a channel that is closed when an established tunnel ends.
func (l *Listener) watch() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// told says when it was closed.
type told struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

// Close closes the connection.
func (t *told) Close() error {
	err := t.Conn.Close()
	t.once.Do(func() { close(t.ended) })
	return err
}
