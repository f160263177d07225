package server

import (
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
)

// waitingWindow is how many bytes of a message may arrive while another is received.
const waitingWindow = 256 << 10

// reception lets one request to generate be received at a time. While it is received it is
// in memory about three times, in frames, in one piece and in its fields: 57 MB for the
// largest image (footprint, receivedImages).
type reception struct{ turn chan struct{} }

func newReception() *reception { return &reception{turn: make(chan struct{}, 1)} }

// options are those of a server whose requests take turns. The window is constant: one
// that grows would let whole messages arrive before their turn.
func (r *reception) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.InitialWindowSize(waitingWindow), grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if info.FullMethod != wire.Engine_Generate_FullMethodName {
			return handle(srv, s)
		}
		return handle(srv, &takingTurns{ServerStream: s, reception: r})
	})}
}

// takingTurns is a stream whose request waits for its turn.
type takingTurns struct {
	grpc.ServerStream
	*reception
}

func (s *takingTurns) RecvMsg(m any) error {
	ctx := s.Context()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	return s.ServerStream.RecvMsg(m)
}
