// Package peer lets the Macs of a site copy weights from one another, so that
// each model is downloaded from its source once.
//
// It owns both sides of a copy: the Server, which serves peers on the agent's
// port with a TLS handshake of its own, and the Client, which the store asks
// before the source. The Server refuses requests without the operator's grant for
// that Mac, as its certificate names it, and those weights, and bounds the number
// of copies, in total and of one client, and their bytes per second. The Client
// gives up a peer that is slower than Pace allows, whether it sends bytes or reports
// progress, and avoids it for a time that doubles with each failure. Data of a peer
// is trusted no more than a hub's: the store verifies its digest, and a peer that
// sent wrong bytes is avoided for a day or more.
//
// Start reading at Client.Of and Server.ServeHTTP.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Pace sets the timeouts and the minimum rate of copies.
type Pace struct {
	// Window is the time in which Floor bytes per second must arrive, or must be
	// downloaded by a peer that is waited for. 0 means 30 s and 1 MiB/s.
	Window time.Duration
	Floor  int64
	// Look is how often a peer that downloads is asked again; 0 means 2 s.
	Look time.Duration
	// Begin is how long a peer may take to start its download: its assignment may
	// arrive later than ours. 0 means 10 s.
	Begin time.Duration
	// A copy of a record may take Grace, and the time in which its bytes pass at Fair
	// bytes per second: a source is probably not slower. Time in which this Mac does not
	// read does not count. Peers that download or are busy are waited for as long, but at
	// most for Most. 0 means a minute, 10 MB/s and half an hour.
	Grace time.Duration
	Fair  int64
	Most  time.Duration
}

func (p Pace) withDefaults() Pace {
	if p.Window <= 0 {
		p.Window = 30 * time.Second
	}
	if p.Floor <= 0 {
		p.Floor = 1 << 20
	}
	if p.Look <= 0 {
		p.Look = 2 * time.Second
	}
	if p.Begin <= 0 {
		p.Begin = 10 * time.Second
	}
	if p.Grace <= 0 {
		p.Grace = time.Minute
	}
	if p.Fair <= 0 {
		p.Fair = 10_000_000
	}
	if p.Most <= 0 {
		p.Most = 30 * time.Minute
	}
	return p
}

// allows is how long a peer may take for some bytes.
func (p Pace) allows(bytes int64) time.Duration {
	return p.Grace + time.Duration(float64(bytes)/float64(p.Fair)*float64(time.Second))
}

// least is how many bytes must arrive in a window.
func (p Pace) least() int64 { return int64(float64(p.Floor) * p.Window.Seconds()) }

// ClientConfig configures a Client.
type ClientConfig struct {
	// Assigned returns the peers that assignments name for a record now.
	Assigned func(model.Record) []v1alpha1.Peer
	// TLS returns the configuration to dial a Mac.
	TLS func(mac string) (*tls.Config, error)
	// Blamed is called with the reason why a peer gave no copy, one of Reasons;
	// may be nil.
	Blamed func(reason string)
	Pace   Pace
}

// Client copies weights from peers. Make one with NewClient.
type Client struct {
	ClientConfig
	http *http.Client

	mu      sync.Mutex
	avoided map[string]avoided // by the Mac's name; guarded by mu
}

// Timeouts to connect to a peer and to receive its response header.
const (
	dialLimit   = 5 * time.Second
	answerLimit = 10 * time.Second
)

type addressKey struct{}

// NewClient returns a Client.
func NewClient(c ClientConfig) *Client {
	c.Pace = c.Pace.withDefaults()
	client := &Client{ClientConfig: c, avoided: map[string]avoided{}}
	client.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext: client.dial, ResponseHeaderTimeout: answerLimit, DisableCompression: true,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 1,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return client
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dial connects to the peer in the request's context. The server must prove its
// name before it receives a grant.
func (c *Client) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	n, ok := ctx.Value(addressKey{}).(v1alpha1.Peer)
	if !ok {
		return nil, errors.New("the request has no peer Mac")
	}
	config, err := c.TLS(n.Mac)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	d := tls.Dialer{Config: config}
	return d.DialContext(ctx, network, net.JoinHostPort(n.Address.Host, strconv.Itoa(int(n.Address.Port))))
}

// state is what a peer reports about weights.
type state struct {
	has, busy, fetches, lacks bool
	done                      int64
}

// sight is what all peers report about weights.
type sight struct {
	have    []store.Peer
	waitFor []string // Macs that download the weights or are busy
	busy    bool     // one of them is
	lacks   bool     // one may begin its download later
	done    int64    // the most that a peer has downloaded
}

// Of returns the peers that have the weights, in the order in which they are
// assigned. It waits for peers that download them while they keep the pace, or that
// are busy, within the time that Pace allows, of which waited has passed already.
func (c *Client) Of(ctx context.Context, rec model.Record, waited time.Duration) []store.Peer {
	var w wait
	most := min(c.Pace.allows(rec.Bytes()), c.Pace.Most) - waited
	for began := time.Now(); ; {
		s := c.see(ctx, rec)
		waits := s.lacks && waited == 0 && time.Since(began) < c.Pace.Begin
		if len(s.waitFor) > 0 {
			waits = (s.busy || w.continues(s.done, time.Now(), c.Pace)) && time.Since(began) < most
		}
		if len(s.have) > 0 || ctx.Err() != nil {
			return s.have
		}
		if !waits {
			for _, mac := range s.waitFor {
				c.Failed(mac, fmt.Errorf("wait for Mac %s: %w", mac, errSlow))
			}
			return nil
		}
		timer := time.NewTimer(c.Pace.Look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// see asks the peers that are not avoided.
func (c *Client) see(ctx context.Context, rec model.Record) (out sight) {
	for _, n := range c.Assigned(rec) {
		if c.avoids(n.Mac, time.Now()) {
			continue
		}
		switch s := c.look(ctx, n, rec); {
		case s.has:
			out.have = append(out.have, store.Peer{Mac: n.Mac, Get: c.getter(n, &progress{pace: c.Pace, most: rec.Bytes()})})
		case s.busy:
			out.waitFor, out.busy = append(out.waitFor, n.Mac), true
		case s.fetches:
			out.waitFor, out.done = append(out.waitFor, n.Mac), max(out.done, min(s.done, rec.Bytes()))
		case s.lacks:
			out.lacks = true
		}
	}
	return out
}

// Slow returns the peers that were slow lately. A copy from one of them has to keep only
// the minimum rate.
func (c *Client) Slow(rec model.Record) (out []store.Peer) {
	for _, n := range c.Assigned(rec) {
		if c.wasSlow(n.Mac, time.Now()) {
			out = append(out, store.Peer{Mac: n.Mac, Get: c.getter(n, nil)})
		}
	}
	return out
}

// wait is the progress of a download that is waited for, and when it was made.
type wait struct {
	since time.Time
	done  int64
}

// continues reports whether to wait longer for a download with done bytes.
func (w *wait) continues(done int64, now time.Time, p Pace) bool {
	switch {
	case w.since.IsZero() || done >= w.done+p.least():
		w.since, w.done = now, done
		return true
	default:
		return now.Sub(w.since) < p.Window
	}
}

// look asks a peer whether it has the weights.
func (c *Client) look(ctx context.Context, n v1alpha1.Peer, rec model.Record) state {
	url := "https://" + agentapi.MacServerName(n.Mac) + agentapi.WeightsPath(rec.Digest, rec.Files[0].SHA256)
	resp, err := c.ask(ctx, n, http.MethodHead, url, nil)
	if err != nil {
		if ctx.Err() == nil {
			c.Failed(n.Mac, err)
		}
		return state{}
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return state{has: true}
	case http.StatusNotFound:
		return state{lacks: true}
	}
	said := resp.Header.Get(agentapi.HeaderFetched)
	if resp.StatusCode != http.StatusServiceUnavailable || said == "" {
		return state{busy: resp.StatusCode == http.StatusServiceUnavailable}
	}
	done, err := strconv.ParseInt(said, 10, 64)
	return state{fetches: err == nil && done >= 0, done: done}
}

// getter returns a download.Target's Get that requests files from one peer. Its
// responses have to keep the minimum rate and, unless so is nil, the pace of so.
func (c *Client) getter(n v1alpha1.Peer, so *progress) func(context.Context, string, http.Header) (*http.Response, error) {
	return func(ctx context.Context, url string, header http.Header) (*http.Response, error) {
		if so.run(time.Now()); so.late(time.Now()) {
			return nil, slowly(n.Mac)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		resp, err := c.ask(ctx, n, http.MethodGet, url, header)
		so.pause(time.Now(), 0)
		if err != nil {
			cancel(nil)
			return nil, err
		}
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
			resp.Body.Close()
			cancel(nil)
			return nil, &download.Error{
				Reason: v1alpha1.ReasonSourceUnreachable, Status: resp.StatusCode,
				Transient: resp.StatusCode == http.StatusServiceUnavailable,
				Message:   fmt.Sprintf("Mac %s returned HTTP %d", n.Mac, resp.StatusCode),
			}
		}
		resp.Body = newWatched(resp.Body, n.Mac, c.Pace, so, cancel)
		return resp, nil
	}
}

// ask sends one request to a peer.
func (c *Client) ask(ctx context.Context, n v1alpha1.Peer, method, url string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, addressKey{}, n), method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("request to Mac %s: %w", n.Mac, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set(agentapi.HeaderGrant, n.Grant)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("cannot reach Mac %s", n.Mac), Err: err}
	}
	return resp, nil
}
