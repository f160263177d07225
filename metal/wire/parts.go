package wire

import (
	"errors"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is bounded here
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A part of a message is another message, or an element of a list. An empty one has 2 bytes in a
// message and many times as many in memory: an engine that was taken over would fill the agent's
// memory with messages that are short enough.
const (
	// messageBytes is what an empty message takes, and elementBytes another empty element.
	messageBytes, elementBytes = 96, 24
	// maxParts bounds what the parts of a message take if they are empty. The most have reports about
	// the disk cache: 16,384 for new blocks, and 65,536 for those that must be removed.
	maxParts = 4 << 20
	// maxEventParts is the same of an event of an answer, of which each request has one: the most
	// have log-probabilities, some hundred.
	maxEventParts = 1 << 20
)

var errParts = errors.New("the message has too many parts")

// bounded is a codec that refuses messages of too many parts before it decodes them.
type bounded struct{ encoding.CodecV2 }

func newBounded() bounded { return bounded{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c bounded) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	most := maxParts
	if _, event := v.(*GenerateEvent); event {
		most = maxEventParts
	}
	if !ok || data.Len() <= 2*most/messageBytes { // no more parts than that, of two bytes each
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	if partsLeft(whole.ReadOnlyData(), m.ProtoReflect().Descriptor(), most) < 0 {
		return errParts
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// partsLeft subtracts from left what the parts of a message take, and stops where that is negative,
// or where the message is malformed.
func partsLeft(b []byte, of protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return left
		}
		value := b[:n]
		b = b[n:]
		field := of.Fields().ByNumber(number)
		if kind != protowire.BytesType || field == nil {
			continue // a number, or a field that is kept as it is
		}
		switch inner, _ := protowire.ConsumeBytes(value); {
		case field.Message() != nil:
			left = partsLeft(inner, field.Message(), left-messageBytes)
		case field.IsList():
			left -= elementBytes
		}
	}
	return left
}
