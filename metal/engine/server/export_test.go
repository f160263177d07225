package server

import (
	"context"

	"google.golang.org/grpc"
)

// Attached waits until an agent gave the cache leave to write.
func (c *Cache) Attached(ctx context.Context) error {
	select {
	case <-c.opened:
		return c.tier.Await(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Receiving returns a function that receives one request in turns, which takes as long as
// receive does.
func Receiving(receive func(context.Context)) func(context.Context) {
	r := newReception()
	return func(ctx context.Context) {
		_ = (&takingTurns{ServerStream: receiver{ctx: ctx, receive: receive}, reception: r}).RecvMsg(nil) // its error is nil
	}
}

// receiver is a stream of one request.
type receiver struct {
	grpc.ServerStream
	ctx     context.Context
	receive func(context.Context)
}

func (r receiver) Context() context.Context { return r.ctx }

func (r receiver) RecvMsg(any) error {
	r.receive(r.ctx)
	return nil
}
