package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/route"
)

// maxAddress bounds the path and query of a request for a stored response.
const maxAddress = 4 << 10

// stored finds responses that Macs store, and forwards requests for them.
type stored struct {
	gate      *gate
	limits    *limits
	table     *route.Table
	forwarder *forwarder
	// searches bounds the searches for responses whose ids name no Mac, reads all requests
	// for stored responses: each is a stream to a Mac, where it may wait for memory.
	searches, reads *turns
	there           macTurns // of reads, by Mac
	// searched bounds the searches of one client.
	searched searched
	silent   silent
}

// silent are the Macs that gave no answer when they were last asked for a response. The zero value
// is ready for use.
type silent struct {
	mu   sync.Mutex
	macs map[string]bool // guarded by mu
}

// last returns the Macs with those at the end that will hardly answer: a search would spend its time
// on them.
func (s *silent) last(macs []route.Mac) []route.Mac {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out, late []route.Mac
	kept := map[string]bool{}
	for _, m := range macs {
		if s.macs[m.Name] {
			kept[m.Name] = true
		}
		if kept[m.Name] || !m.Open {
			late = append(late, m)
		} else {
			out = append(out, m)
		}
	}
	s.macs = kept
	return append(out, late...)
}

// note records whether a Mac answered.
func (s *silent) note(mac string, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		delete(s.macs, mac)
		return
	}
	if s.macs == nil {
		s.macs = map[string]bool{}
	}
	s.macs[mac] = true
}

// searched counts searches by client. The zero value is ready for use.
type searched struct {
	mu    sync.Mutex
	debts health.Debts // guarded by mu
}

const (
	// missedBurst is how many searches of one client may find nothing at once, and missedPerSecond
	// how many in each second after that: each asks every Mac, and a client that invents ids finds
	// nothing.
	missedBurst, missedPerSecond = 64, 1
	// askedPerMiss is how many Macs may be asked for what is found, for as much as one search that
	// finds nothing: a client may read a response that it has as often as it likes.
	askedPerMiss = 2048
)

// wait returns how long a client has to wait before it may search.
func (s *searched) wait(client string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.debts.Most, s.debts.PerSecond = missedBurst, missedPerSecond
	return s.debts.Wait(client, 1, now)
}

// add counts a search of a client that asked a number of Macs.
func (s *searched) add(client string, found bool, macs int, now time.Time) {
	cost := 1.0
	if found {
		cost = min(1, float64(macs)/askedPerMiss)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.debts.Add(client, cost, now)
}

// storedAt returns the Mac that a request has to be sent to, because it stores the response
// that the request continues, and the candidates that run there. The id contains the Mac's
// name; the gateway stores nothing about it, so its restart loses nothing.
func (s *stored) storedAt(ctx context.Context, c caller, envelope openai.Envelope, candidates []*route.Model) (mac string, there []*route.Model, err error) {
	id := cmp.Or(envelope.Previous, envelope.Reference)
	if id == "" {
		return "", candidates, nil
	}
	mac, ok, err := s.macOf(ctx, c, id)
	if err != nil {
		return "", nil, err
	}
	if ok {
		for _, m := range candidates {
			if slices.ContainsFunc(m.Endpoints(), func(e route.Endpoint) bool { return e.Mac == mac }) {
				there = append(there, m)
			}
		}
		if len(there) > 0 {
			return mac, there, nil
		}
	}
	if envelope.Previous == "" {
		return "", nil, responses.ItemNotFound("input", id)
	}
	return "", nil, responses.PreviousNotFound(id)
}

// serve forwards a request to the Mac that stores a response. The agent checks the tenant.
// No other Mac has it, so a read is retried once if the connection fails.
func (s *stored) serve(ctx context.Context, c caller, w *reply, r *http.Request) error {
	if err := s.gate.ready(); err != nil {
		return err
	}
	if err := front.AllowMethods(w, r, http.MethodGet, http.MethodPost, http.MethodDelete); err != nil {
		return err // the agent would refuse a long one, as if the Mac failed
	}
	if len(r.URL.Path)+len(r.URL.RawQuery) > maxAddress { // the agent would refuse it, as if the Mac failed
		return openai.RouteNotFound(r.Method, openai.Shorten(r.URL.Path))
	}
	if _, err := responses.ParseQuery(r.URL.RawQuery); err != nil {
		return err // the agent receives the parameters that could be parsed
	}
	id := responses.IDOf(r.URL.Path)
	if id == responses.CompactID {
		return responses.NoCompaction()
	}
	ctx, cancel, _, err := s.limits.bound(ctx, r)
	if err != nil {
		return err
	}
	defer cancel()
	mac, end, err := s.turn(ctx, c, id)
	if err != nil {
		return err
	}
	defer end()
	failed, err := s.ask(ctx, w, r, mac)
	if failed == nil {
		return err
	}
	if failed.Refusal != nil {
		return failed.Refusal
	}
	if failed.Reason == dispatch.ReasonConnection {
		s.forwarder.dispatcher.Avoid(logOf(ctx), mac.Name, failed.Err)
	}
	return unreached(id, failed.Err)
}

// turn waits for the turn of a request for a response, at the gateway and at the Mac that stores it.
func (s *stored) turn(ctx context.Context, c caller, id string) (mac route.Mac, end func(), err error) {
	waiting, stop := context.WithTimeout(ctx, beginTime)
	defer stop()
	began, err := s.reads.begin(waiting, c.share())
	if err != nil {
		return mac, nil, noTurn(ctx, err)
	}
	defer func() {
		if err != nil {
			began()
		}
	}()
	name, ok, err := s.macOf(ctx, c, id)
	if err != nil {
		return mac, nil, err
	}
	if ok {
		mac, ok = s.table.Mac(name)
	}
	if !ok {
		return mac, nil, responses.NotFound(id)
	}
	beganThere, err := s.there.begin(waiting, mac.Name, c.share())
	if err != nil {
		return mac, nil, noTurn(ctx, err)
	}
	return mac, func() { beganThere(); began() }, nil
}

// noTurn is the error of a request that got no turn.
func noTurn(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errTurns):
		return openai.RateLimited(dispatch.RetryAfter)
	case ctx.Err() != nil:
		return dispatch.Ended(ctx)
	}
	return openai.Overloaded(dispatch.RetryAfter)
}

// macTurns are turns of each Mac. The zero value is ready for use.
type macTurns struct {
	mu   sync.Mutex
	macs map[string]*ofMac // guarded by mu
}

type ofMac struct {
	*turns
	users int // guarded by mu of macTurns
}

// begin waits for a turn of a tenant at a Mac, which end ends.
func (s *macTurns) begin(ctx context.Context, mac, tenant string) (end func(), err error) {
	s.mu.Lock()
	if s.macs == nil {
		s.macs = map[string]*ofMac{}
	}
	at := s.macs[mac]
	if at == nil {
		at = &ofMac{turns: newReads(maxReadsOfMac, readsEach)}
		s.macs[mac] = at
	}
	at.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if at.users--; at.users == 0 {
			delete(s.macs, mac)
		}
	}
	began, err := at.begin(ctx, tenant)
	if err != nil {
		leave()
		return nil, err
	}
	return func() { began(); leave() }, nil
}

// ask sends a request to the Mac that stores a response, and a read that failed once more.
func (s *stored) ask(ctx context.Context, w *reply, r *http.Request, mac route.Mac) (*dispatch.Failure, error) {
	lease, req := dispatch.LeaseOf(mac), &request{client: r, within: beginTime}
	failed, err := s.forwarder.try(ctx, w, req, lease)
	if !mayReread(failed, r.Method) {
		return failed, err
	}
	s.forwarder.metrics.retries.WithLabelValues(failed.Reason).Inc()
	if err := pauseToReread(ctx); err != nil {
		return nil, err
	}
	return s.forwarder.try(ctx, w, req, lease)
}

// macOf returns the Mac that stores a response.
func (s *stored) macOf(ctx context.Context, c caller, id string) (mac string, known bool, err error) {
	if responses.IsAnywhere(id) {
		return s.find(ctx, c, id)
	}
	mac, known = responses.MacOf(id)
	return mac, known, nil
}

// rereadAfter is the pause before a stored response is read again from the only Mac that
// has it. A connection that was lost because a machine is busy works again by then.
const rereadAfter = 250 * time.Millisecond

// mayReread reports whether a failed request may be sent to the same Mac again: it is a
// read, the agent did not refuse it, and it did not time out.
func mayReread(f *dispatch.Failure, method string) bool {
	reads := method == http.MethodGet || method == http.MethodHead
	return f != nil && reads && (f.Reason == dispatch.ReasonConnection || f.Reason == dispatch.ReasonStream)
}

// pauseToReread waits for rereadAfter, and returns an error if the request ended earlier.
func pauseToReread(ctx context.Context) error {
	pause := time.NewTimer(rereadAfter)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return dispatch.Ended(ctx)
	}
}

func unreached(id string, cause error) error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeNoEndpoint, RetryAfter: dispatch.RetryAfter,
		Message: fmt.Sprintf("The Mac that stores the response '%s' cannot be reached. Try again later.", openai.Shorten(id)), Cause: cause}
}

const (
	// maxSearches is how many searches run concurrently, because each asks every Mac;
	// searchesEach is how many of one tenant may run and wait.
	maxSearches, searchesEach = 2, 16
	// maxReads is how many requests for stored responses run concurrently, and readsEach how
	// many of one tenant.
	maxReads, readsEach = 1024, 64
	// maxReadsOfMac is how many of them one Mac has: with what is kept for others, less than a third
	// of the streams that its tunnel has for all requests.
	maxReadsOfMac = 256
	// beginTime bounds the wait for a turn, and the time until the Mac begins its response: one that
	// waits for memory is refused earlier.
	beginTime = 30 * time.Second
	// searchAtOnce is how many Macs one search asks concurrently, and searchTime bounds the
	// search.
	searchAtOnce = 16
	searchTime   = 3 * time.Second
	// disputeTime is how long the search continues after one Mac has proved that it was sent a
	// response: another one may have been sent it later.
	disputeTime = 250 * time.Millisecond
)

// claim is a Mac that proved which of the Macs it was that were sent a request.
type claim struct {
	mac  string
	sent int
}

// find asks all Macs which one stores a response whose id names none: its client received
// the id while the request waited for a replica. Of several that prove that they were sent the
// request, the last one stores it.
func (s *stored) find(ctx context.Context, c caller, id string) (mac string, found bool, err error) {
	if wait := s.searched.wait(c.share(), time.Now()); wait > 0 {
		return "", false, openai.RateLimited(wait)
	}
	end, err := s.searches.begin(ctx, c.share())
	switch {
	case errors.Is(err, errTurns):
		return "", false, openai.RateLimited(searchTime)
	case err != nil:
		return "", false, dispatch.Ended(ctx)
	}
	end = sync.OnceFunc(end)
	defer end()
	macs := s.table.Macs()
	mac, err = s.search(ctx, macs, id, end)
	s.searched.add(c.share(), mac != "", len(macs), time.Now())
	return mac, mac != "", err
}

// search is find without its limits. mac is empty if none stores the response. It calls asked once it only
// waits for Macs that answer late: other searches do not wait for these.
func (s *stored) search(ctx context.Context, macs []route.Mac, id string, asked func()) (mac string, err error) {
	asking, stop := context.WithTimeout(ctx, searchTime)
	defer stop()
	defer time.AfterFunc(disputeTime, asked).Stop()
	var all errgroup.Group
	all.SetLimit(searchAtOnce)
	claims := make(chan claim, len(macs))
	for _, m := range s.silent.last(macs) {
		all.Go(func() error {
			return runDetached(asking, nil, func(context.Context, *reply) error {
				if asking.Err() != nil {
					return asking.Err()
				}
				sent, err := s.sent(asking, m, id)
				if err != nil && pauseToReread(asking) == nil {
					sent, err = s.sent(asking, m, id)
				}
				if !errors.Is(asking.Err(), context.Canceled) { // then it had no time
					s.silent.note(m.Name, err == nil)
				}
				if sent > 0 {
					claims <- claim{m.Name, sent}
					time.AfterFunc(disputeTime, stop)
					asked()
				}
				return err
			})
		})
	}
	err = all.Wait()
	close(claims)
	var last claim
	for one := range claims {
		if one.sent > last.sent {
			last = one
		}
	}
	switch {
	case last.sent > 0:
		return last.mac, nil
	case ctx.Err() != nil:
		return "", dispatch.Ended(ctx)
	case err != nil:
		return "", unreached(id, err)
	}
	return "", nil
}

// sent asks one Mac whether it stores a response, and returns which of the Macs it is that were
// sent the request, counted from 1; 0 for one that does not prove it.
func (s *stored) sent(ctx context.Context, m route.Mac, id string) (int, error) {
	ask := &http.Request{Method: http.MethodHead, URL: &url.URL{Scheme: "https", Host: m.Address, Path: dialect.PathResponses + "/" + id}, Host: m.Address,
		Header: http.Header{"User-Agent": {userAgent}}}
	if tenant := tenantOf(ctx); tenant != "" {
		ask.Header.Set(agentapi.HeaderTenant, tenant)
	}
	resp, err := s.forwarder.macs.To(dispatch.LeaseOf(m).Endpoint).RoundTrip(ask.WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("ask %s for a response: %w", m.Name, err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return 0, err
	}
	sent := responses.Proven(id, resp.Header.Get(agentapi.HeaderResponseProof))
	if sent == 0 {
		logOf(ctx).Info("A Mac claims to store a response and does not prove it; it is not believed", "MacNode", m.Name)
	}
	return sent, nil
}
