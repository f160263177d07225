package server

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	// waitingWindow is how many bytes of a message may arrive while another is received.
	waitingWindow = 256 << 10
	// connectionWindow is how many bytes may be under way to the process, of all messages. With
	// the 64 KiB of HTTP/2 a message of 15 MB goes back and forth 234 times, each time after what
	// else the processors do, while all others wait for their turn.
	connectionWindow = 4 << 20
	// longMessage is how many bytes make a message worth the memory of its frames.
	longMessage = 1 << 20
)

// reception lets one request with input be received at a time; tenants take turns. While it is
// received it is in memory twice, first in frames and in one piece, then in its fields instead of
// the frames: see codec. After that the engine counts it.
type reception struct{ turns *share.Turns }

func newReception() *reception { return &reception{turns: share.NewTurns(1)} }

// options are those of a server whose requests take turns. The window is constant: one
// that grows would let whole messages arrive before their turn.
func (r *reception) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}), grpc.InitialWindowSize(waitingWindow), grpc.InitialConnWindowSize(connectionWindow), grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		switch info.FullMethod {
		case wire.Engine_Generate_FullMethodName, wire.Engine_Embed_FullMethodName, wire.Engine_Rerank_FullMethodName:
			s = &takingTurns{ServerStream: s, reception: r}
		}
		return handle(srv, s)
	})}
}

// codec decodes messages as gRPC does, but lets go of the frames of a long one before it makes
// the fields, and leaves none of its memory in pools, which keep it for two collections.
type codec struct{ encoding.CodecV2 }

// Unmarshal takes the frames out of data: gRPC frees what is left in it.
func (c codec) Unmarshal(data mem.BufferSlice, m any) error {
	if data.Len() < longMessage {
		return c.CodecV2.Unmarshal(data, m)
	}
	whole := make(mem.SliceBuffer, 0, data.Len())
	for i, frame := range data {
		whole = append(whole, frame.ReadOnlyData()...)
		data[i] = mem.SliceBuffer(nil)
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, m)
}

// takingTurns is a stream whose request waits for its turn.
type takingTurns struct {
	grpc.ServerStream
	*reception
}

func (s *takingTurns) RecvMsg(m any) error {
	tenant := wire.TenantOf(s.Context())
	if err := s.turns.Take(s.Context(), tenant); err != nil {
		return err
	}
	defer s.turns.Give(tenant)
	return s.ServerStream.RecvMsg(m)
}

// register registers the service. gRPC receives the request of a call with one answer before
// any code of ours runs, so calls with input are registered as streams of one message, which
// are the same on the wire: gRPC asks the interceptor only for those that say ServerStreams.
func register(g *grpc.Server, srv wire.EngineServer) {
	d := wire.Engine_ServiceDesc
	d.Methods = slices.DeleteFunc(slices.Clone(d.Methods), func(m grpc.MethodDesc) bool { return m.MethodName == "Embed" || m.MethodName == "Rerank" })
	d.Streams = append(slices.Clone(d.Streams),
		grpc.StreamDesc{StreamName: "Embed", ServerStreams: true, Handler: once(wire.EngineServer.Embed)},
		grpc.StreamDesc{StreamName: "Rerank", ServerStreams: true, Handler: once(wire.EngineServer.Rerank)})
	g.RegisterService(&d, srv)
}

// once is the handler of a stream with one request and one answer.
func once[In, Out any](call func(wire.EngineServer, context.Context, *In) (*Out, error)) grpc.StreamHandler {
	return func(srv any, s grpc.ServerStream) error {
		in := new(In)
		if err := s.RecvMsg(in); err != nil {
			return err
		}
		out, err := call(srv.(wire.EngineServer), s.Context(), in)
		if err != nil {
			return err
		}
		return s.SendMsg(out)
	}
}
