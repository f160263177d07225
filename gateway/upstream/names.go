package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/api/agentapi"
)

const (
	// minNameWait is how long a Mac keeps the name that it changed to before the next one is looked up. The
	// wait doubles with each further change, up to maxNameWait, until one name was kept for nameSettled.
	minNameWait = 4 * time.Second
	maxNameWait = 10 * time.Minute
	nameSettled = 24 * time.Hour
	// namesPerMinute and nameBurst bound how often all Macs together change to another name. The first
	// change of each is not counted, so that Macs that change often delay only one another.
	namesPerMinute = 10
	nameBurst      = 20
	// maxRecords bounds the answer for a name, for each kind of address. net opens a socket for each
	// address to sort them.
	maxRecords = 16
)

// errNamesChange is constant, because it is reported in the status of the Mac.
var errNamesChange = errors.New("its name changed several times, and is looked up again some minutes later; set agent --advertise to a name or an IP address that stays")

var errLongAnswer = fmt.Errorf("the DNS answer for its name has more than %d records, or is too long for UDP; remove some, or set agent --advertise to an IP address", maxRecords)

// resolver asks the cluster's DNS for the names of Macs. A Mac may choose a name whose answer is as
// long as TCP carries, which DNS servers then keep in memory.
func resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, server string) (net.Conn, error) {
		if !strings.HasPrefix(network, "udp") {
			if long, ok := ctx.Value(longKey{}).(*atomic.Bool); ok {
				long.Store(true)
			}
			return nil, errLongAnswer
		}
		var d net.Dialer
		raw, err := d.DialContext(ctx, network, server)
		if err != nil {
			return nil, err
		}
		udp, ok := raw.(*net.UDPConn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("connect to the DNS server %s: network %s is not UDP", server, network), raw.Close())
		}
		return shortAnswers{udp}, nil
	}}
}

// longKey is the key of a context's *atomic.Bool, which is set if an answer is too long: net returns
// another error if the name has no addresses of the other kind.
type longKey struct{}

// shortAnswers marks a DNS response that has more than maxRecords as truncated.
type shortAnswers struct{ *net.UDPConn }

// Read implements net.Conn.
func (s shortAnswers) Read(p []byte) (int, error) {
	n, err := s.UDPConn.Read(p)
	if n >= 12 && binary.BigEndian.Uint16(p[6:]) > maxRecords {
		p[2] |= 2 // the bit TC
	}
	return n, err
}

// lookups has what the lookups for all Macs share.
type lookups struct {
	resolver *net.Resolver
	changes  *rate.Limiter // of names
}

func newLookups() lookups {
	return lookups{resolver(), rate.NewLimiter(rate.Every(time.Minute/namesPerMinute), nameBurst)}
}

// names limits how often a MacNode changes the name that gateways look up: each name takes memory of the
// cluster's DNS, also after it expired.
type names struct {
	lookups

	mu    sync.Mutex // guards the fields after it
	host  string     // looked up last; empty before the first
	since time.Time  // when that began
	wait  time.Duration
}

// dial opens a TCP connection to the MacNode, if the name in its address may be looked up.
func (n *names) dial(ctx context.Context, address string, failures uint32) (net.Conn, error) {
	if err := n.admit(address, time.Now()); err != nil {
		return nil, err
	}
	var long atomic.Bool
	d := net.Dialer{Timeout: connectTimeout, KeepAlive: -1, Resolver: n.resolver} // HTTP/2 pings replace KeepAlive
	raw, err := agentapi.Dial(context.WithValue(ctx, longKey{}, &long), d, address, failures)
	if failed := (*net.DNSError)(nil); errors.As(err, &failed) && long.Load() {
		return nil, errLongAnswer
	}
	return raw, err
}

// admit returns an error if the host of an address may not be looked up yet. IP addresses always may.
func (n *names) admit(address string, now time.Time) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address of a Mac: %w", err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if host == n.host {
		return nil
	}
	kept := now.Sub(n.since)
	if kept >= nameSettled {
		n.wait = 0
	}
	if n.wait > 0 && (kept < n.wait || !n.changes.AllowN(now, 1)) {
		return errNamesChange
	}
	if n.host != "" {
		n.wait = min(max(2*n.wait, minNameWait), maxNameWait)
	}
	n.host, n.since = host, now
	return nil
}
