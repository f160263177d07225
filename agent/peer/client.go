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

// ClientConfig configures a Client.
type ClientConfig struct {
	// Assigned returns the peers that assignments with a tokenRef name for a record now.
	Assigned func(rec model.Record, tokenRef string) []v1alpha1.Peer
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
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p, ok := ctx.Value(addressKey{}).(v1alpha1.Peer)
	if !ok {
		return nil, errors.New("the request has no peer Mac")
	}
	config, err := c.TLS(p.Mac)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	raw, err := agentapi.Dial(ctx, net.Dialer{}, net.JoinHostPort(p.Address.Host, strconv.Itoa(int(p.Address.Port))), c.failures(p.Mac))
	if err != nil {
		return nil, err
	}
	secure := tls.Client(raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, secure.Close())
	}
	return secure, nil
}

// state is what a peer reports about weights.
type state struct {
	has, busy, fetches, lacks bool
	done                      int64
}

// observation is what all peers report about weights.
type observation struct {
	have    []store.Peer
	waitFor []string // Macs that download the weights or are busy
	busy    bool     // one of them is
	fetches bool     // one of them downloads the weights
	lacks   bool     // one may begin its download later
	done    int64    // the most that a peer has downloaded
}

// Of returns the peers that have the weights, in the order in which they are
// assigned. It waits for peers that download them while they keep the pace, and shorter
// for those that are busy, within the time that Pace allows, of which waited has passed already.
func (c *Client) Of(ctx context.Context, rec model.Record, tokenRef string, waited time.Duration) []store.Peer {
	var w wait
	most := min(c.Pace.allows(rec.Bytes()), c.Pace.Most) - waited
	for began := time.Now(); ; {
		s := c.observe(ctx, rec, tokenRef)
		waits := s.lacks && waited == 0 && time.Since(began) < c.Pace.Begin
		if len(s.waitFor) > 0 {
			fetched := s.fetches && w.continues(s.done, time.Now(), c.Pace)
			waits = time.Since(began) < most && (fetched || s.busy && time.Since(began) < c.Pace.frees(rec.Bytes())-waited)
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

// observe asks the peers that are not avoided.
func (c *Client) observe(ctx context.Context, rec model.Record, tokenRef string) (out observation) {
	for _, p := range c.Assigned(rec, tokenRef) {
		if c.avoids(p.Mac, time.Now()) {
			continue
		}
		switch s := c.look(ctx, p, rec); {
		case s.has:
			now := func() v1alpha1.Peer { return c.assigned(p, rec, tokenRef) }
			out.have = append(out.have, store.Peer{Mac: p.Mac, Get: c.getter(now, &progress{pace: c.Pace, most: rec.Bytes()})})
		case s.busy:
			out.waitFor, out.busy = append(out.waitFor, p.Mac), true
		case s.fetches:
			out.waitFor, out.fetches, out.done = append(out.waitFor, p.Mac), true, max(out.done, min(s.done, rec.Bytes()))
		case s.lacks:
			out.lacks = true
		}
	}
	return out
}

// assigned returns a peer with the grant and address that it has now.
func (c *Client) assigned(p v1alpha1.Peer, rec model.Record, tokenRef string) v1alpha1.Peer {
	for _, now := range c.Assigned(rec, tokenRef) {
		if now.Mac == p.Mac {
			return now
		}
	}
	return p
}

// Slow returns the peers that were slow lately. A copy from one of them has to keep only
// the minimum rate.
func (c *Client) Slow(rec model.Record, tokenRef string) (out []store.Peer) {
	for _, p := range c.Assigned(rec, tokenRef) {
		if c.wasSlow(p.Mac, time.Now()) {
			least := &progress{pace: Pace{Grace: c.Pace.Grace, Fair: c.Pace.Floor}, most: rec.Bytes()}
			out = append(out, store.Peer{Mac: p.Mac, Get: c.getter(func() v1alpha1.Peer { return p }, least)})
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
func (c *Client) look(ctx context.Context, p v1alpha1.Peer, rec model.Record) state {
	url := "https://" + agentapi.MacServerName(p.Mac) + agentapi.WeightsPath(rec.Digest, rec.Files[0].SHA256)
	resp, err := c.ask(ctx, p, http.MethodHead, url, nil)
	if err != nil {
		if ctx.Err() == nil {
			c.Failed(p.Mac, err)
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

// getter returns a download.Target's Get that requests files from one peer. Each response has to
// keep the minimum rate, and all together the pace of sent.
func (c *Client) getter(now func() v1alpha1.Peer, sent *progress) func(context.Context, string, http.Header) (*http.Response, error) {
	return func(ctx context.Context, url string, header http.Header) (*http.Response, error) {
		p := now()
		if sent.run(time.Now()); sent.late(time.Now()) {
			return nil, slowError(p.Mac)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		resp, err := c.ask(ctx, p, http.MethodGet, url, header)
		sent.pause(time.Now(), 0)
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
				Message:   fmt.Sprintf("Mac %s returned HTTP %d", p.Mac, resp.StatusCode),
			}
		}
		resp.Body = newWatched(ctx, resp.Body, p.Mac, c.Pace, sent, cancel)
		return resp, nil
	}
}

// ask sends one request to a peer.
func (c *Client) ask(ctx context.Context, p v1alpha1.Peer, method, url string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, addressKey{}, p), method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("request to Mac %s: %w", p.Mac, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set(agentapi.HeaderGrant, p.Grant)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("cannot reach Mac %s", p.Mac), Err: err}
	}
	return resp, nil
}
