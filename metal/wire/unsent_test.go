//go:build !race

package wire

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// deaf is an engine that reads nothing after it opened all windows: nothing but the connection holds
// up what is sent to it.
func deaf(t *testing.T) (conn *grpc.ClientConn, dials *int) {
	t.Helper()
	dials = new(int)
	conn, err := NewArriving().connect(func(context.Context) (net.Conn, error) {
		*dials++
		c, engine := net.Pipe()
		go func() {
			f := http2.NewFramer(engine, engine)
			_, _ = io.ReadFull(engine, make([]byte, len(http2.ClientPreface)))
			_, _ = f.ReadFrame()
			_, _ = f.ReadFrame()
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
			_ = f.WriteWindowUpdate(0, 1<<31-1-65535)
		}()
		return c, nil
	}, briefBytes)
	if err != nil {
		t.Fatal(err)
	}
	return conn, dials
}

func ask(ctx context.Context, conn *grpc.ClientConn, bytes int, opts ...grpc.CallOption) error {
	s, err := NewEngineClient(conn).Generate(ctx, &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: strings.Repeat("x", bytes)}}, opts...)
	if err == nil {
		_, err = s.Recv()
	}
	return err
}

// TestAnEngineThatReadsNothingIsDialledAgain: gRPC would wait for it without end, and keep all that
// is sent to it meanwhile.
func TestAnEngineThatReadsNothingIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, dials := deaf(t)
		defer conn.Close()
		before, most := heapOf(), int64(0)
		for range 41 {
			ctx, cancel := context.WithTimeout(t.Context(), writeTimeout)
			if err := ask(ctx, conn, 8<<20); err == nil {
				t.Fatal("a deaf engine answered")
			}
			cancel()
			most = max(most, heapOf()-before)
		}
		if most > 64<<20 {
			t.Errorf("%d bytes of requests that have ended are in memory", most)
		}
		if *dials < 10 {
			t.Errorf("the engine was dialled %d times", *dials)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*writeTimeout)
		defer cancel()
		if err := ask(ctx, conn, 8<<20); status.Code(err) != codes.Unavailable {
			t.Errorf("a request that waits for longer: %v", err)
		}
	})
}

// TestUnsentRequestsAreRefused: a client may leave, and its message is still in memory.
func TestUnsentRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, _ := deaf(t)
		defer conn.Close()
		unsent := NewUnsent().ToOne()
		leave := func(tenant string, bytes int) error {
			option, sent, err := unsent.Count(tenant, &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: strings.Repeat("x", bytes)}})
			if err != nil {
				return err
			}
			defer sent()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_ = ask(ctx, conn, bytes, option)
			return nil
		}
		before := heapOf()
		for _, tenant := range []string{"a", "b"} {
			for n := 0; ; n++ {
				err := leave(tenant, 6<<20)
				if err == nil && n < 12 {
					continue
				}
				if r := RefusalOf(err); n == 0 || r.GetCode() != Code_CODE_QUEUE_FULL || r.GetRetryAfterMilliseconds() == 0 {
					t.Errorf("request %d of tenant %s: %v", n, tenant, err)
				}
				break
			}
		}
		few := heapOf() - before
		for range 100_000 {
			_ = leave("c", 10)
		}
		if all := heapOf() - before; all > maxUnsent {
			t.Errorf("unsent requests take %d bytes, the long ones %d of them", all, few)
		}
		time.Sleep(2 * writeTimeout)
		runtime.GC() // a closed connection leaves some of its messages to that
		for range 3 {
			synctest.Wait()
			runtime.GC()
		}
		if held := unsent.bytes.Held(); held != 0 {
			t.Errorf("%d bytes count after the connection has ended", held)
		}
	})
}

// silent is an engine that takes requests and answers at the end.
type silent struct {
	UnimplementedEngineServer
	taken chan int
	end   chan struct{}
}

func (e silent) Generate(r *GenerateRequest, _ grpc.ServerStreamingServer[GenerateEvent]) error {
	e.taken <- len(r.GetPrompt())
	<-e.end
	return nil
}

// TestMessagesThatWereSentDoNotCount, however long their calls last, and small ones, which gRPC may
// have to send again, until their calls end.
func TestMessagesThatWereSentDoNotCount(t *testing.T) {
	e := silent{taken: make(chan int), end: make(chan struct{})}
	conn, err := NewArriving().DialProcess(serve(t, os.Geteuid(), e), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	unsent := NewUnsent().ToOne()
	var calls sync.WaitGroup
	for _, bytes := range []int{1 << 20, 10} {
		option, sent, err := unsent.Count("a", &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: strings.Repeat("x", bytes)}})
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(func() {
			defer sent()
			if err := ask(t.Context(), conn, bytes, option); err != io.EOF {
				t.Errorf("a request of %d bytes: %v", bytes, err)
			}
		})
		if got := <-e.taken; got != bytes {
			t.Errorf("the engine received %d bytes of %d", got, bytes)
		}
	}
	count := func(most int64) {
		t.Helper()
		for range 1000 {
			if unsent.bytes.Held() <= most {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d bytes count", unsent.bytes.Held())
	}
	count(100 << 10)
	close(e.end)
	calls.Wait()
	count(0)
}

// TestRequestsThatNoEngineReceivesShareTheirMemory: engines that were taken over receive nothing, and
// a tenant has as many as its Mac has room for.
func TestRequestsThatNoEngineReceivesShareTheirMemory(t *testing.T) {
	all, long := NewUnsent(), &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: strings.Repeat("x", 16<<20)}}
	var ends []func()
	for range 16 {
		engine := all.ToOne()
		for range 4 {
			if _, end, err := engine.Count("a", long); err == nil {
				ends = append(ends, end)
			}
		}
	}
	if n := len(ends) * proto.Size(long); n > 128<<20 {
		t.Errorf("a tenant's requests take %d bytes", n)
	}
	if _, end, err := all.ToOne().Count("b", long); err != nil {
		t.Errorf("a request of another tenant: %v", err)
	} else {
		end()
	}
	for _, end := range ends {
		end()
	}
	if held := all.bytes.Held(); held != 0 {
		t.Errorf("%d bytes count after the end", held)
	}
}
