// Package peer lets the Macs of a site copy weights from one another, so that
// each model is downloaded from its source once.
//
// It owns both sides of a copy: the Server, which serves peers on the agent's
// port with a TLS handshake of its own, and the Client, which the store asks
// before the source. The Server refuses requests without the operator's grant for
// that Mac, as its certificate names it, and those weights, and bounds the number
// of copies and their bytes per second. The Client does not wait for a peer that
// makes no progress. Data of a peer is trusted no more than a hub's: the store
// verifies its digest, and a peer that sent wrong bytes is avoided for a day.
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
	// Most is how long peers that download are waited for in all, also if they report
	// progress. 0 means an hour.
	Most time.Duration
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
	if p.Most <= 0 {
		p.Most = time.Hour
	}
	return p
}

// least is how many bytes must arrive in a window.
func (p Pace) least() int64 { return int64(float64(p.Floor) * p.Window.Seconds()) }

// ClientConfig is what an asker is made of.
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

	mu sync.Mutex
	// avoided is the time until which a Mac is not asked, by its name; guarded by
	// mu.
	avoided map[string]time.Time
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
	client := &Client{ClientConfig: c, avoided: map[string]time.Time{}}
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
	has, fetches, lacks bool
	done                int64
}

// Of returns the peers that have the weights, in the order in which they are
// assigned. It waits for peers that download them while they keep the pace.
func (c *Client) Of(ctx context.Context, rec model.Record) []store.Peer {
	var w wait
	for began := time.Now(); ; {
		var have []store.Peer
		most, fetches, lacks := int64(0), false, false
		for _, n := range c.Assigned(rec) {
			if c.avoids(n.Mac, time.Now()) {
				continue
			}
			switch s := c.look(ctx, n, rec); {
			case s.has:
				have = append(have, store.Peer{Mac: n.Mac, Get: c.getter(n)})
			case s.fetches:
				fetches, most = true, max(most, min(s.done, rec.Bytes()))
			case s.lacks:
				lacks = true
			}
		}
		waits := lacks && time.Since(began) < c.Pace.Begin
		if fetches {
			waits = w.continues(most, time.Now(), c.Pace) && time.Since(began) < c.Pace.Most
		}
		if len(have) > 0 || !waits || ctx.Err() != nil {
			return have
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
	done, err := strconv.ParseInt(resp.Header.Get(agentapi.HeaderFetched), 10, 64)
	return state{fetches: resp.StatusCode == http.StatusServiceUnavailable && err == nil && done >= 0, done: done}
}

// getter returns a download.Target's Get that requests files from one peer.
func (c *Client) getter(n v1alpha1.Peer) func(context.Context, string, http.Header) (*http.Response, error) {
	return func(ctx context.Context, url string, header http.Header) (*http.Response, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		resp, err := c.ask(ctx, n, http.MethodGet, url, header)
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
		resp.Body = newWatched(resp.Body, n.Mac, c.Pace, cancel)
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
