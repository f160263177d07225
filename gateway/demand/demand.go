// Package demand reports the load of this gateway to the operator, for autoscaling.
//
// It owns when reports are sent and where: every second, at once when a request begins to
// wait, and a last time when the gateway stops; to each address that the operator's name
// resolves to, because every operator replica listens. Reports are complete, so a failed
// one is not sent again: the next one replaces it. A failed report never affects a request.
//
// Start reading at Publisher.Run.
package demand

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/identity"
)

const (
	// minInterval is the shortest time between two reports, regardless of how many requests
	// begin to wait.
	minInterval = 100 * time.Millisecond
	// timeout bounds one report.
	timeout = 2 * time.Second
	// resolveEvery is how often the operator's name is looked up, and resolveTimeout how long
	// that may take: most of a report's time is left for the addresses that are known.
	resolveEvery   = 10 * time.Second
	resolveTimeout = 500 * time.Millisecond
	// maxTargets addresses of the operator get reports: an operator has a few replicas.
	maxTargets = 16
)

// Publisher sends reports to one operator.
type Publisher struct {
	// Operator is its HOST:PORT; the name may resolve to several addresses.
	Operator string
	// Identity authenticates the gateway to the operator; nil until it is known.
	Identity func() *identity.Identity
	// Fill sets the figures of a report.
	Fill func(*demand.Report)
	// Waiting receives a value when a request begins to wait.
	Waiting <-chan struct{}
	// Lookup returns the addresses of a host; nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
	Log    logr.Logger

	id       string
	began    time.Time
	resolved time.Time
	targets  []string // HOST:PORT, one per resolved address
	used     *identity.Identity
	client   *http.Client
	failing  bool
}

// Run sends reports until ctx ends, and then a last one.
func (p *Publisher) Run(ctx context.Context) {
	p.id, p.began = rand.Text(), time.Now()
	tick := time.NewTicker(demand.Every)
	defer tick.Stop()
	for {
		began := time.Now()
		p.report(ctx, false)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
			p.report(last, true)
			p.closeIdle()
			return
		case <-tick.C:
		case <-p.Waiting:
			p.sleep(ctx, minInterval-time.Since(began))
		}
	}
}

// sleep waits for d, or until ctx ends.
func (p *Publisher) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// report sends one report to all operator replicas. It succeeds if one of them accepts it,
// and logs when that changes.
func (p *Publisher) report(ctx context.Context, last bool) {
	if p.Identity() == nil {
		return // it is loaded shortly after the start
	}
	err := p.try(ctx, last)
	if (err != nil) == p.failing || ctx.Err() != nil {
		return
	}
	if p.failing = err != nil; p.failing {
		p.Log.Info("The operator does not accept demand reports; it neither adds nor removes replicas until it does", "operator", p.Operator, "reason", err.Error())
		return
	}
	p.Log.Info("The operator accepts demand reports", "operator", p.Operator)
}

func (p *Publisher) try(ctx context.Context, last bool) error {
	p.connect()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.resolve(ctx); err != nil {
		return err
	}
	report := demand.Report{Gateway: p.id, UpMillis: time.Since(p.began).Milliseconds(), Last: last}
	p.Fill(&report)
	report.Cut()
	body, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode a report: %w", err)
	}
	results := make(chan error, len(p.targets))
	for _, to := range p.targets {
		go func() { results <- p.post(ctx, to, body) }()
	}
	var errs []error
	for range p.targets {
		if err := <-results; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) < len(p.targets) {
		return nil // the other replicas receive the next report in a second
	}
	p.resolved = time.Time{} // resolve again: the operator may have moved
	return errors.Join(errs...)
}

// connect replaces the HTTP client when the identity has changed.
func (p *Publisher) connect() {
	id := p.Identity()
	if id == p.used {
		return
	}
	p.closeIdle()
	p.used = id
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: id.OperatorTLS(), ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: timeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 1,
		HTTP2: &http.HTTP2Config{SendPingTimeout: timeout, PingTimeout: timeout, WriteByteTimeout: timeout}}} // an operator that hangs is dialled again
}

func (p *Publisher) closeIdle() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// resolve looks up the addresses of the operator's name.
func (p *Publisher) resolve(ctx context.Context) error {
	if time.Since(p.resolved) < resolveEvery {
		return nil
	}
	host, port, err := net.SplitHostPort(p.Operator)
	if err != nil {
		return fmt.Errorf("parse the operator's address: %w", err)
	}
	lookup := p.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupHost
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addresses, err := lookup(ctx, host)
	if err != nil && len(p.targets) == 0 {
		return fmt.Errorf("resolve the operator's address: %w", err)
	}
	p.resolved = time.Now()
	if err != nil {
		return nil // keep using the addresses that are known
	}
	slices.Sort(addresses) // resolvers change their order: the same ones are used each time
	p.targets = nil
	for _, a := range addresses[:min(len(addresses), maxTargets)] {
		p.targets = append(p.targets, net.JoinHostPort(a, port))
	}
	return nil
}

func (p *Publisher) post(ctx context.Context, to string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+to+demand.Path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("report to %s: %w", to, err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("report to %s: %w", to, err)
	}
	defer answer.Body.Close()
	message, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("report to %s: %w", to, err)
	}
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("report to %s: %s: %s", to, answer.Status, message)
	}
	return nil
}
