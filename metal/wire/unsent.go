package wire

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/share"
)

// writeTimeout is how long an engine may read nothing of what is sent to it. gRPC has one writer for
// all calls, and keeps what they send, also after their end, until it is written.
const writeTimeout = 15 * time.Second

// impatient is a connection that is closed if a write takes longer than writeTimeout: gRPC itself
// would go on reading it, and never dial again. It is closed as well if an answer takes many times its
// bytes, or if answers that have begun do not arrive.
type impatient struct {
	net.Conn
	*answers
	arriving *Arriving
}

func (c impatient) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	refused := c.receive(b[:n])
	if refused == nil && n > 0 {
		refused = c.arriving.update(c.Conn, c.answers)
	}
	if refused != nil {
		_ = c.Close()
		return 0, refused
	}
	return n, err
}

func (c impatient) Close() error {
	c.arriving.remove(c.Conn)
	return c.Conn.Close()
}

func (c impatient) Write(b []byte) (int, error) {
	c.send(b)
	_ = c.arriving.update(c.Conn, c.answers)             // calls may have ended
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // of a closed one, as Write says then
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

const (
	// besides is what gRPC keeps of a request in addition to its message.
	besides = 8 << 10
	// maxUnsent, to one engine, is for two of the longest messages: a tenant has one at least.
	// allUnsent is to all engines: one that receives nothing does not keep requests from the others.
	maxUnsent = 2 * (MaxMessageBytes + besides)
	allUnsent = 2 * maxUnsent
	// leastBuffer is more than the longest message that gRPC would not free.
	leastBuffer = 2 << 10
	// unsentRetry is when a request is worth another try.
	unsentRetry = time.Second
)

// Unsent are the messages to engines that gRPC has in memory: a client may leave, but its message
// is kept until the engine reads those that were sent before it. Tenants share the memory.
type Unsent struct{ bytes *share.Bytes }

// NewUnsent returns those of an agent that sent nothing yet.
func NewUnsent() *Unsent { return &Unsent{share.NewBytes(allUnsent)} }

// ToOne returns those of one engine to which nothing was sent yet. They count among u.
func (u *Unsent) ToOne() *Unsent { return &Unsent{share.NewBytes(maxUnsent).Within(u.bytes)} }

// Count counts the message of a tenant's call with that option, until gRPC frees it. It refuses a
// message that is too long, and one for which there is no memory. ended is called after the message
// was sent, or could not be.
func (u *Unsent) Count(tenant string, r proto.Message) (option grpc.CallOption, ended func(), err error) {
	n := int64(proto.Size(r))
	if n > MaxMessageBytes {
		return nil, nil, Refuse(&Refusal{Code: Code_CODE_INVALID, Message: fmt.Sprintf("the request takes %d bytes as a message to the engine, want at most %d; send shorter texts or fewer images", n, MaxMessageBytes)})
	}
	n += besides
	if !u.bytes.Take(tenant, n) {
		return nil, nil, Refuse(&Refusal{Code: Code_CODE_QUEUE_FULL, RetryAfterMilliseconds: unsentRetry.Milliseconds(),
			Message: fmt.Sprintf("engines have not received earlier requests, of which the agent keeps at most %d bytes; try again later", u.bytes.Limit(tenant))})
	}
	c := &counted{bounded: newBounded(), free: &freed{give: sync.OnceFunc(func() { u.bytes.Give(tenant, n) })}}
	return grpc.ForceCodecV2(c), func() {
		if !c.encoded {
			c.free.give()
		}
	}, nil
}

// counted is the codec of a call whose message counts until it is freed.
type counted struct {
	bounded
	free    *freed
	encoded bool
}

// Marshal implements encoding.CodecV2.
func (c *counted) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: it is no message", v)
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 0, max(proto.Size(m), leastBuffer)), m)
	if err != nil {
		return nil, err
	}
	// A connection that ends drops messages without freeing them.
	runtime.AddCleanup(c.free, func(give func()) { give() }, c.free.give)
	c.encoded = true
	return mem.BufferSlice{mem.NewBuffer(&b, c.free)}, nil
}

// freed is where gRPC returns a message.
type freed struct{ give func() }

// Get implements mem.BufferPool; nothing is taken from it.
func (*freed) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (f *freed) Put(*[]byte) { f.give() }
