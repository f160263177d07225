// Package demand tells the operator what is asked of this gateway, for
// autoscaling.
//
// It owns when that is told, and to whom: every second, at once when a request
// begins to wait, and a last time when the gateway ends; to each address behind
// the operator's name, all of which listen. It keeps nothing and
// tries nothing twice: the next report says all there is. It refuses to let a
// failed report touch a request.
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
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/identity"
)

const (
	// soonest is the time between two reports, however much begins to wait.
	soonest = 100 * time.Millisecond
	// patience is how long one report may take.
	patience = 2 * time.Second
	// resolveEvery is how often the operator's name is looked up.
	resolveEvery = 10 * time.Second
)

// Publisher tells one operator.
type Publisher struct {
	// Operator is its HOST:PORT; a name may stand for several addresses.
	Operator string
	// Identity with which it is dialled; nil until it is known.
	Identity func() *identity.Identity
	// Figures fills a report.
	Figures func(*demand.Report)
	// Wakes is sent something when a request begins to wait.
	Wakes <-chan struct{}
	Log   logr.Logger

	id       string
	began    time.Time
	resolved time.Time
	targets  []string // HOST:PORT, each one address
	used     *identity.Identity
	client   *http.Client
	failing  bool
}

// Run reports until ctx ends, and then a last time.
func (p *Publisher) Run(ctx context.Context) {
	p.id, p.began = rand.Text(), time.Now()
	tick := time.NewTicker(demand.Every)
	defer tick.Stop()
	for {
		began := time.Now()
		p.tell(ctx, false)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			p.tell(last, true)
			p.closeIdle()
			return
		case <-tick.C:
		case <-p.Wakes:
			p.rest(ctx, soonest-time.Since(began))
		}
	}
}

// rest waits for a moment.
func (p *Publisher) rest(ctx context.Context, d time.Duration) {
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

// tell sends one report to all operators. It is told if one took it.
func (p *Publisher) tell(ctx context.Context, last bool) {
	if p.Identity() == nil {
		return // it comes a moment after the start
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
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.resolve(ctx); err != nil {
		return err
	}
	report := demand.Report{Gateway: p.id, UpMillis: time.Since(p.began).Milliseconds(), Last: last}
	p.Figures(&report)
	body, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode a report: %w", err)
	}
	answers := make(chan error, len(p.targets))
	for _, to := range p.targets {
		go func() { answers <- p.post(ctx, to, body) }()
	}
	var errs []error
	for range p.targets {
		if err := <-answers; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) < len(p.targets) {
		return nil // the others are told again in a second
	}
	p.resolved = time.Time{} // it may have moved
	return errors.Join(errs...)
}

// connect makes a client of the identity of now.
func (p *Publisher) connect() {
	id := p.Identity()
	if id == p.used {
		return
	}
	p.closeIdle()
	p.used = id
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: id.OperatorTLS(), ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: patience, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 1}}
}

func (p *Publisher) closeIdle() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// resolve finds the addresses behind the operator's name.
func (p *Publisher) resolve(ctx context.Context) error {
	if time.Since(p.resolved) < resolveEvery {
		return nil
	}
	host, port, err := net.SplitHostPort(p.Operator)
	if err != nil {
		return fmt.Errorf("parse the operator's address: %w", err)
	}
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil && len(p.targets) == 0 {
		return fmt.Errorf("resolve the operator's address: %w", err)
	}
	if err != nil {
		return nil // those known before are asked on
	}
	p.resolved, p.targets = time.Now(), nil
	for _, a := range addresses {
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
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("report to %s: %w", to, err)
	}
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("report to %s: %s: %s", to, answer.Status, said)
	}
	return nil
}
