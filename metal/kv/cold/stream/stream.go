// Package stream carries leases and reports of the disk cache between an engine
// and the agent that owns the folder.
//
// It implements both ends of the call Cache of metal/wire: Serve for an
// engine's tier, Follow for the owner. It refuses an engine that does not
// identify the origin of its blocks, and a report before the previous one was
// answered, so that no request for space is granted twice. It does not touch
// the disk and decides nothing.
//
// Start reading at Follow, then Serve.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

// maxOrigin bounds the parts of an origin together, in bytes; real ones have hundreds.
const maxOrigin = 1 << 14

// maxReport bounds a report in bytes, of maxKeys and cold.MaxDamaged keys. No budget counts the reports that
// wait, of each engine one, while another engine's is taken.
const maxReport = 4 << 20

// Lease is an engine's leave to write, as its owner keeps it.
type Lease interface {
	// Current returns the lease to send; Changed has a value when it has to be
	// sent again.
	Current() cold.Lease
	Changed() <-chan struct{}
	// Report books what the engine did, and answers what it may do now.
	Report(cold.Report) cold.Lease
	// End ends the lease for good.
	End()
}

// Follow opens an engine's stream and grants it what open's lease says, until
// the engine stops (nil), the stream breaks or ctx ends. The lease has ended when
// Follow returns.
func Follow(ctx context.Context, engine wire.EngineClient, open func(kv.Origin) (Lease, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer cancel()
	s, err := engine.Cache(ctx, grpc.MaxCallRecvMsgSize(maxReport))
	if err != nil {
		return err
	}
	first, err := s.Recv()
	if err != nil {
		return err
	}
	o := first.GetOrigin()
	if o.GetModel() == "" || o.GetNumerics() == "" || o.GetLayout() == "" {
		return errors.New("the engine sent an incomplete block origin")
	}
	if n := len(o.GetModel()) + len(o.GetNumerics()) + len(o.GetLayout()); n > maxOrigin {
		return fmt.Errorf("the engine sent a block origin of %d bytes, want at most %d", n, maxOrigin)
	}
	lease, err := open(kv.Origin{Model: o.GetModel(), Numerics: o.GetNumerics(), Layout: o.GetLayout()})
	if err != nil {
		return err
	}
	defer lease.End()
	reports, broken := make(chan *wire.CacheReport), make(chan error, 1)
	receiving.Go(func() { broken <- receive(ctx, s.Recv, reports) })
	return grant(s, lease, reports, broken)
}

// receive hands messages over until the stream ends.
func receive[M any](ctx context.Context, next func() (*M, error), to chan<- *M) error {
	for {
		m, err := next()
		if err != nil {
			return err
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// grant answers reports and sends changed leases to the engine.
func grant(s grpc.BidiStreamingClient[wire.CacheLease, wire.CacheReport], lease Lease, reports <-chan *wire.CacheReport, broken <-chan error) error {
	var answers int64
	now := lease.Current()
	for {
		if err := s.Send(toLease(now, answers)); err != nil {
			return fmt.Errorf("send the lease to the engine: %w", reason(err, reports, broken))
		}
		select {
		case r := <-reports:
			if r.GetSequence() != answers+1 {
				return fmt.Errorf("the engine sent report %d after report %d", r.GetSequence(), answers)
			}
			report, err := fromReport(r)
			if err != nil {
				return err
			}
			answers, now = r.GetSequence(), lease.Report(report)
			if r.GetLast() {
				return s.CloseSend()
			}
		case <-lease.Changed():
			now = lease.Current()
		case err := <-broken:
			return err
		}
	}
}

// reason is why a stream broke. Send says no more than io.EOF of a stream that has
// ended already: the reason is what the receiving side ends with.
func reason(err error, reports <-chan *wire.CacheReport, broken <-chan error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		select {
		case <-reports: // no report is left to answer
		case err := <-broken:
			return err
		}
	}
}

// Serve speaks for an engine's tier of an origin until ctx ends or the stream
// does: after over and the last report the agent closes it. The tier is detached
// then: what is on the disk can still be read.
func Serve(ctx context.Context, s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport], t *cold.Tier, o kv.Origin, over <-chan struct{}) error {
	defer t.Detach()
	if err := s.Send(&wire.CacheReport{Origin: &wire.CacheOrigin{Model: o.Model, Numerics: o.Numerics, Layout: o.Layout}}); err != nil {
		return err
	}
	leases, broken := make(chan *wire.CacheLease), make(chan error, 1)
	go func() { broken <- receive(s.Context(), s.Recv, leases) }() // it ends with the call, when Serve returned
	var sequence, answers int64
	for ending, last := false, false; ; {
		news := t.News()
		if sequence > answers || last {
			news = nil
		}
		select {
		case m := <-leases:
			answers = m.GetAnswers()
			if err := attach(t, m); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			continue
		case <-news:
		case <-over:
			ending, over = true, nil
		case err := <-broken:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		sequence++
		report := t.Report()
		last = ending && !t.Unreported()
		if err := s.Send(toReport(report, sequence, last)); err != nil {
			return err
		}
	}
}

// attach takes a lease; one without an epoch is none for now.
func attach(t *cold.Tier, m *wire.CacheLease) error {
	if m.GetEpoch() == "" {
		t.Detach()
		return nil
	}
	return t.Attach(cold.Lease{Dir: m.GetDirectory(), Epoch: m.GetEpoch(), GrantedBytes: m.GetGrantedBytes(), Final: m.GetFinal()})
}
