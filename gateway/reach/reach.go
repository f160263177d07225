// Package reach checks whether this gateway can connect to each Mac, so that a Mac with a
// wrong address, or behind a firewall, is seen before a request fails.
//
// It owns the probes and what they found; the operator combines the findings of all
// gateways in the condition Reachable of a Mac. Only a connection that cannot be opened
// counts against a Mac, and only after several tries: an agent that is busy or drains is
// reachable.
//
// A Mac chooses the address that it advertises, and its owner can read the condition, and sees when a
// name is resolved. To keep both from revealing what is in the network of the gateways, a port that is
// closed, filtered, or open for anything but this Mac's agent is reported alike and after the same time,
// and probed again after the same time.
//
// Start reading at Prober.Run.
package reach

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// every is the time from one probe of a Mac that was reached to the next. again is that of
	// a Mac that was not: longer than a probe takes. A new one is probed at the next tick.
	every = 5 * time.Second
	again = patience + tick
	tick  = time.Second
	// patience is how long a probe may take, and parallel how many run at once: more than a
	// tenant has Macs that are slow at the same time, because those do not delay the others.
	patience = 3 * time.Second
	parallel = 64
	// tries and lasting are how many probes must fail in a row, and for how long, before a
	// Mac is reported as unreachable. lasting is enough for as many that take all of their time,
	// so that they are reported no later than those that are refused.
	tries   = 3
	lasting = (tries-1)*again + patience
	// maxError bounds the text of an error in a report.
	maxError = 200
)

// Prober checks the connections to all Macs.
type Prober struct {
	// Macs returns the Macs with known addresses.
	Macs func() []route.Mac
	// To returns the transport to a Mac.
	To func(route.Mac) http.RoundTripper
	// NotReached reports whether a request failed because no connection could be opened.
	NotReached func(error) bool

	mu      sync.Mutex          // guards the fields after it
	found   map[string]*finding // by the UID of the MacNode
	probing map[string]bool     // UIDs of Macs whose probe has not ended
}

// finding is what the probes of one Mac found.
type finding struct {
	address string
	probed  time.Time // when the last probe began
	reached bool
	failed  int       // probes in a row
	since   time.Time // when the first of them began
	err     string    // of the last one
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, parallel)
	for {
		p.round(ctx, &running, room)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// round starts to probe the Macs that are due. It does not wait for the results: a Mac that
// takes long would delay the probes of others.
func (p *Prober) round(ctx context.Context, running *sync.WaitGroup, room chan struct{}) {
	began := time.Now()
	for _, mac := range p.due(began) {
		room <- struct{}{}
		p.begins(mac)
		running.Go(func() {
			defer func() { <-room }()
			p.ended(ctx, mac, p.probe(ctx, mac), began)
		})
	}
}

func (p *Prober) begins(mac route.Mac) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probing[mac.UID] = true
}

func (p *Prober) ended(ctx context.Context, mac route.Mac, err error, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.probing, mac.UID)
	if ctx.Err() == nil {
		p.record(mac, err, began)
	}
}

// due returns the Macs to probe now, and forgets those that are no longer in the fleet.
func (p *Prober) due(now time.Time) (out []route.Mac) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := map[string]*finding{}
	if p.probing == nil {
		p.probing = map[string]bool{}
	}
	for _, mac := range p.Macs() {
		f := p.found[mac.UID]
		if f != nil && f.address == mac.Address {
			kept[mac.UID] = f
		}
		if p.probing[mac.UID] {
			continue
		}
		wait := again
		if f != nil && f.reached {
			wait = every
		}
		if f == nil || f.address != mac.Address || now.Sub(f.probed) > wait-tick/2 {
			out = append(out, mac)
		}
	}
	p.found = kept
	return out
}

// probe asks an agent whether it is there. Any answer means that it is.
func (p *Prober) probe(ctx context.Context, mac route.Mac) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, Host: mac.Address,
		URL: &url.URL{Scheme: "https", Host: mac.Address, Path: agentapi.PathHealth}}
	resp, err := p.To(mac).RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// record keeps the result of a probe. The lock is held.
func (p *Prober) record(mac route.Mac, err error, began time.Time) {
	f := p.found[mac.UID]
	if f == nil {
		f = &finding{address: mac.Address}
		p.found[mac.UID] = f
	}
	f.probed = began
	switch {
	case err == nil:
		*f = finding{address: mac.Address, probed: began, reached: true}
	case p.NotReached(err):
		if f.failed == 0 {
			f.since = began
		}
		f.failed++
		f.reached, f.err = false, shorten(err.Error())
	}
}

// shorten keeps the beginning of an error as one line of visible characters: it may quote
// the certificate of any server.
func shorten(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "..."
	}
	return text
}

// Report adds what was found of each Mac. A Mac of which nothing is certain yet is left out.
func (p *Prober) Report(r *demand.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r.Reached, r.Unreached = nil, map[string]string{}
	for uid, f := range p.found {
		switch {
		case f.reached:
			r.Reached = append(r.Reached, uid)
		case f.failed >= tries && now.Sub(f.since) >= lasting:
			r.Unreached[uid] = f.err
		}
	}
}
