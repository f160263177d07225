package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// LoadOptions configure clients that ask without end.
type LoadOptions struct {
	// Clients ask at the same time, each one question after the other. Every request
	// has another text in front of the client's own, so that no two share a prefix.
	Clients []Question
	// Pause is the time between two requests of one client.
	Pause time.Duration
	// Limit bounds each request; 0: Ready.
	Limit time.Duration
	// Gateways take the clients in turn; none: the first of the fleet.
	Gateways []*Gateway
	// Up, if set, reports whether a gateway accepts requests. Each request is then
	// sent to the next gateway that does, and again to another one if its own is gone
	// before the first byte: as a Service would have it.
	Up func(*Gateway) bool
}

// Request is one request of a load and its outcome.
type Request struct {
	Question
	Answer
	Err error
	// Gateway is the name of the last one that it was sent to.
	Gateway      string
	Began, Ended time.Time
	// Moved counts the gateways that were gone before the first byte.
	Moved int
}

// Whole returns an error unless the answer has all tokens that were asked for.
// The model must be one that never ends an answer by itself.
func (r Request) Whole() error {
	if r.Err == nil && (r.Finish != "length" || r.Usage.CompletionTokens != r.MaxTokens) {
		return fmt.Errorf("an incomplete answer that looks complete: finish reason %q after %d of %d tokens", r.Finish, r.Usage.CompletionTokens, r.MaxTokens)
	}
	return r.Err
}

// Load is a running load. Each client has a goroutine, which End waits for.
type Load struct {
	options LoadOptions
	clients sync.WaitGroup
	stop    chan struct{} // closed by End

	mu    sync.Mutex // guards what follows
	next  int        // number of the next request
	ended []Request
	more  chan struct{} // closed and replaced whenever a request has ended
}

// StartLoad starts every client.
func (f *Fleet) StartLoad(ctx context.Context, o LoadOptions) *Load {
	if len(o.Gateways) == 0 {
		o.Gateways = []*Gateway{f.FirstGateway()}
	}
	if o.Limit == 0 {
		o.Limit = Ready
	}
	l := &Load{options: o, stop: make(chan struct{}), more: make(chan struct{})}
	for n, q := range o.Clients {
		l.clients.Go(func() { l.run(ctx, n, q) })
	}
	return l
}

func (l *Load) run(ctx context.Context, client int, q Question) {
	for i := 0; ; i++ {
		one := q
		one.Text = fmt.Sprintf("%d-%d %s", client, i, q.Text)
		r := l.ask(ctx, client, one)
		if ctx.Err() != nil {
			return // the test ended it
		}
		l.mu.Lock()
		l.ended = append(l.ended, r)
		close(l.more)
		l.more = make(chan struct{})
		l.mu.Unlock()
		if !l.pause(ctx) {
			return
		}
	}
}

// pause waits between two requests of a client. It is false if there is to be no
// further one.
func (l *Load) pause(ctx context.Context) bool {
	timer := time.NewTimer(l.options.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-l.stop:
	}
	select {
	case <-l.stop:
		return false
	default:
		return ctx.Err() == nil
	}
}

func (l *Load) ask(ctx context.Context, client int, q Question) Request {
	ctx, cancel := context.WithTimeoutCause(ctx, l.options.Limit, fmt.Errorf("not within %s", l.options.Limit))
	defer cancel()
	r := Request{Question: q, Began: time.Now()}
	at := client
	if l.options.Up != nil {
		l.mu.Lock()
		at = l.next
		l.next++
		l.mu.Unlock()
	}
	for {
		g := l.options.Gateways[at%len(l.options.Gateways)]
		if l.options.Up != nil && !l.options.Up(g) {
			at++
			g = l.options.Gateways[at%len(l.options.Gateways)]
		}
		r.Gateway = g.Name
		r.Answer, r.Err = Ask(ctx, g.URL, q)
		r.Ended = time.Now()
		var typed *openai.Error
		if r.Err == nil || r.Begun || l.options.Up == nil || ctx.Err() != nil || errors.As(r.Err, &typed) {
			return r
		}
		r.Moved++
		at++
		l.pause(ctx)
	}
}

// Through waits until n more requests have ended.
func (l *Load) Through(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	have, more := l.count()
	for want := have + n; have < want; have, more = l.count() {
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d further requests ended: %w", have-(want-n), n, context.Cause(ctx))
		}
	}
	return nil
}

func (l *Load) count() (int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ended), l.more
}

// Answered reports whether a request that began after a moment was answered by a
// Mac, through a gateway or, with an empty name, any.
func (l *Load) Answered(mac, gateway string, after time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range slices.Backward(l.ended) { // they are in the order of their ends
		if r.Ended.Before(after) {
			return false
		}
		if r.Mac == mac && (gateway == "" || r.Gateway == gateway) && r.Err == nil && r.Began.After(after) {
			return true
		}
	}
	return false
}

// End lets running requests end and returns all. It may be called twice.
func (l *Load) End() []Request {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.clients.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// WantWhole wants every answer whole, and at least one.
func WantWhole(requests []Request) error {
	var errs []error
	failed := 0
	for _, r := range requests {
		if err := r.Whole(); err != nil {
			if failed++; failed <= 3 { // the first ones explain the others
				errs = append(errs, fmt.Errorf("%s: %w", r, err))
			}
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d requests failed, the first:\n%w", failed, len(requests), errors.Join(errs...))
	case len(requests) == 0:
		return errors.New("no request was answered")
	}
	return nil
}

// String describes a request in a message.
func (r Request) String() string {
	kind := "request"
	if r.Stream {
		kind = "stream"
	}
	return fmt.Sprintf("%s of %s at %s, by Mac %q through %s, %.1f s", kind, r.Model, r.Began.UTC().Format("15:04:05.000"), r.Mac, r.Gateway, r.Ended.Sub(r.Began).Seconds())
}

// Summary counts requests by Mac.
func Summary(requests []Request) string {
	macs, longest := map[string]int{}, time.Duration(0)
	for _, r := range requests {
		macs[r.Mac]++
		longest = max(longest, r.Ended.Sub(r.Began))
	}
	text := fmt.Sprintf("%d requests, the longest took %.1f s", len(requests), longest.Seconds())
	for _, name := range slices.Sorted(maps.Keys(macs)) {
		text += fmt.Sprintf(", %d by %q", macs[name], name)
	}
	return text
}

// Stream is a streamed answer that is being read.
type Stream struct {
	// Ended is closed at its end; Answer and Err are read after that.
	Ended  chan struct{}
	Answer Answer
	Err    error
	// Leave ends it as a client that hangs up.
	Leave context.CancelFunc
}

// StartStream asks for a stream and returns once its first text has arrived. It
// ends with ctx.
func (f *Fleet) StartStream(ctx context.Context, q Question) (*Stream, error) {
	ctx, leave := context.WithCancel(ctx)
	s := &Stream{Ended: make(chan struct{}), Leave: leave}
	begun := make(chan struct{})
	var once sync.Once
	q.Stream, q.OnText = true, func(string) { once.Do(func() { close(begun) }) }
	go func() {
		defer close(s.Ended)
		s.Answer, s.Err = Ask(ctx, f.URL, q)
	}()
	timer := time.NewTimer(Ready)
	defer timer.Stop()
	select {
	case <-begun:
		return s, nil
	case <-s.Ended:
		return nil, fmt.Errorf("the stream of %s ended before its first text: %w", q.Model, s.Err)
	case <-timer.C:
		leave()
		return nil, fmt.Errorf("the stream of %s has no text within %s", q.Model, Ready)
	}
}
