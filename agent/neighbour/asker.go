// Package neighbour lets the Macs of a site copy weights from one another, so
// that a hub is asked for them once.
//
// It owns both sides of a copy: the giver, which answers Macs in a handshake of its
// own on the agent's port, and the asker, which the store asks before a source.
// It refuses to give anything without the operator's grant for the Mac that
// asks, by its certificate, and for those weights; more Macs at once, or more
// bytes per second, than it was told; and to wait for a neighbour that makes no
// progress. What a neighbour sends is believed no more than what a hub does: the
// store hashes it. Who lied is not asked again for a day.
//
// Start reading at Asker.Of and Giver.ServeHTTP.
package neighbour

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

// Pace is how patient an asker is.
type Pace struct {
	// Window is a stretch of time in which Floor bytes per second have to come, or
	// have to be fetched where they are waited for. 0 means 30 s and 1 MiB/s.
	Window time.Duration
	Floor  int64
	// Look is how often it looks whether a neighbour has fetched; 0 means 2 s.
	Look time.Duration
	// Begin is how long a neighbour gets to begin: its order may come later than
	// ours. 0 means 10 s.
	Begin time.Duration
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
	return p
}

// least is what has to come in a window.
func (p Pace) least() int64 { return int64(float64(p.Floor) * p.Window.Seconds()) }

// AskerConfig is what an asker is made of.
type AskerConfig struct {
	// Ordered are the neighbours that orders name for a record now.
	Ordered func(model.Record) []v1alpha1.Peer
	// TLS is how this Mac dials another one.
	TLS func(mac string) (*tls.Config, error)
	// Blamed is told why a neighbour gave no copy, a word of Reasons; nil: nobody is.
	Blamed func(reason string)
	Pace   Pace
}

// Asker asks neighbours for weights. Make one with NewAsker.
type Asker struct {
	AskerConfig
	http *http.Client

	mu sync.Mutex
	// avoided until, by the name of the Mac; guarded by mu.
	avoided map[string]time.Time
}

// How long a neighbour may take to be reached and to begin its answer.
const (
	dialLimit   = 5 * time.Second
	answerLimit = 10 * time.Second
)

type addressKey struct{}

// NewAsker makes an asker.
func NewAsker(c AskerConfig) *Asker {
	c.Pace = c.Pace.withDefaults()
	a := &Asker{AskerConfig: c, avoided: map[string]time.Time{}}
	a.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext: a.dial, ResponseHeaderTimeout: answerLimit, DisableCompression: true,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 1,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a
}

// Close drops idle connections.
func (a *Asker) Close() { a.http.CloseIdleConnections() }

// dial opens a connection to the Mac whose order the request carries. Whoever
// listens there has to prove its name before it reads a grant.
func (a *Asker) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	n, ok := ctx.Value(addressKey{}).(v1alpha1.Peer)
	if !ok {
		return nil, errors.New("the request has no peer Mac")
	}
	config, err := a.TLS(n.Mac)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	d := tls.Dialer{Config: config}
	return d.DialContext(ctx, network, net.JoinHostPort(n.Address.Host, strconv.Itoa(int(n.Address.Port))))
}

// state is what a neighbour says of weights.
type state struct {
	has, fetches, lacks bool
	done                int64
}

// Of are the neighbours that have the weights, in the order that they are named
// in. Those that fetch them are waited for while they keep the pace.
func (a *Asker) Of(ctx context.Context, rec model.Record) []store.Neighbour {
	var w wait
	for began := time.Now(); ; {
		var have []store.Neighbour
		most, fetches, lacks := int64(0), false, false
		for _, n := range a.Ordered(rec) {
			if a.avoids(n.Mac, time.Now()) {
				continue
			}
			switch s := a.look(ctx, n, rec); {
			case s.has:
				have = append(have, store.Neighbour{Mac: n.Mac, Get: a.getter(n)})
			case s.fetches:
				fetches, most = true, max(most, min(s.done, rec.Bytes()))
			case s.lacks:
				lacks = true
			}
		}
		waits := lacks && time.Since(began) < a.Pace.Begin
		if fetches {
			waits = w.goesOn(most, time.Now(), a.Pace)
		}
		if len(have) > 0 || !waits || ctx.Err() != nil {
			return have
		}
		timer := time.NewTimer(a.Pace.Look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// wait is how far a download was that is waited for, and when.
type wait struct {
	since time.Time
	done  int64
}

// goesOn says whether a download that has come so far is waited for still.
func (w *wait) goesOn(done int64, now time.Time, p Pace) bool {
	switch {
	case w.since.IsZero() || done >= w.done+p.least():
		w.since, w.done = now, done
		return true
	default:
		return now.Sub(w.since) < p.Window
	}
}

// look asks a neighbour whether it has the weights.
func (a *Asker) look(ctx context.Context, n v1alpha1.Peer, rec model.Record) state {
	url := "https://" + agentapi.MacServerName(n.Mac) + agentapi.WeightsPath(rec.Digest, rec.Files[0].SHA256)
	resp, err := a.ask(ctx, n, http.MethodHead, url, nil)
	if err != nil {
		if ctx.Err() == nil {
			a.Failed(n.Mac, err)
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

// getter asks one neighbour for files, as a store does.
func (a *Asker) getter(n v1alpha1.Peer) func(context.Context, string, http.Header) (*http.Response, error) {
	return func(ctx context.Context, url string, header http.Header) (*http.Response, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		resp, err := a.ask(ctx, n, http.MethodGet, url, header)
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
		resp.Body = newWatched(resp.Body, n.Mac, a.Pace, cancel)
		return resp, nil
	}
}

// ask sends one request to a neighbour.
func (a *Asker) ask(ctx context.Context, n v1alpha1.Peer, method, url string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, addressKey{}, n), method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("request to Mac %s: %w", n.Mac, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set(agentapi.HeaderGrant, n.Grant)
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("cannot reach Mac %s", n.Mac), Err: err}
	}
	return resp, nil
}
