package stream_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/wire"
)

// patience is what a slow machine may need.
const patience = time.Minute

var origin = kv.Origin{Model: "sha256:ab", Numerics: "ref 1", Layout: "16 tokens"}

func key(n int32) kv.Key { return kv.Root(origin, kv.Salt{}).Next([]int32{n}) }

// end is the engine's end of a stream.
type end func(grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error

type service struct {
	wire.UnimplementedEngineServer
	end end
}

func (s service) Cache(out wire.Engine_CacheServer) error { return s.end(out) }

// dial starts an engine that is nothing but an end.
func dial(t *testing.T, e end) wire.EngineClient {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	wire.RegisterEngineServer(g, service{end: e})
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }() // it ends with Stop
	conn, err := wire.Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); g.Stop(); <-served })
	return wire.NewEngineClient(conn)
}

// lease is what a test's owner grants: as much as is wanted.
type lease struct {
	dir     string
	changed chan struct{}

	mu      sync.Mutex
	now     cold.Lease
	reports []cold.Report
	ended   int
}

// newLease makes the folders of an epoch.
func newLease(t *testing.T, dir, epoch string) *lease {
	t.Helper()
	for _, s := range cold.Shards() {
		if err := (disk.OS{}).MkdirAll(filepath.Join(cold.Folder(dir, cold.NamespaceOf(origin)), s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := (disk.OS{}).MkdirAll(cold.EpochFolder(dir, cold.NamespaceOf(origin), epoch)); err != nil {
		t.Fatal(err)
	}
	return &lease{dir: dir, changed: make(chan struct{}, 1), now: cold.Lease{Dir: dir, Epoch: epoch}}
}

func (l *lease) Current() cold.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *lease) Changed() <-chan struct{} { return l.changed }

func (l *lease) Report(r cold.Report) cold.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports = append(l.reports, r)
	l.now.GrantedBytes += r.WantedBytes
	return l.now
}

func (l *lease) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended++
}

func (l *lease) told() ([]cold.Report, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reports, l.ended
}

// follow is Follow in a goroutine.
func follow(t *testing.T, c wire.EngineClient, l *lease) (stop context.CancelFunc, ended chan error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ended = make(chan error, 1)
	go func() {
		ended <- stream.Follow(ctx, c, func(o kv.Origin) (stream.Lease, error) {
			if o != origin {
				t.Errorf("origin %+v", o)
			}
			return l, nil
		})
	}()
	return cancel, ended
}

func wait(t *testing.T, tier *cold.Tier) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := tier.Await(ctx); err != nil {
		t.Fatal(err)
	}
}

// An engine with a lease writes; the owner hears of each block, and of the last
// ones before the stream ends.
func TestLeasesAndReportsTravel(t *testing.T) {
	tier := cold.Open(cold.Options{FS: disk.OS{}, Origin: origin, QueueBytes: 1 << 20, PutWait: patience})
	over := make(chan struct{})
	c := dial(t, func(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error {
		return stream.Serve(s.Context(), s, tier, origin, over)
	})
	l := newLease(t, t.TempDir(), "e1")
	_, ended := follow(t, c, l)
	wait(t, tier)
	for n := range int32(20) {
		if got := tier.Put(key(n), make([]byte, 1000)); got != kv.Queued {
			t.Fatalf("block %d: %v", n, got)
		}
	}
	if err := tier.Read(t.Context(), key(3), make([]byte, 1000)); err != nil {
		t.Error(err)
	}
	if err := tier.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(over)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	reports, ends := l.told()
	files := map[kv.Key]int64{}
	for _, r := range reports {
		for _, f := range r.Persisted {
			files[f.Key] += f.Bytes
		}
		if r.SpentBytes > l.Current().GrantedBytes || r.Epoch != "e1" {
			t.Errorf("%+v", r)
		}
	}
	last := reports[len(reports)-1]
	if len(files) != 20 || files[key(7)] != 4096 || ends != 1 || last.Counters != tier.Counters() || last.Counters.Persisted != 20 || last.WantedBytes != 0 {
		t.Errorf("%d blocks, ended %d times, last %+v", len(files), ends, last)
	}
}

// A new stream continues; reads from disk work in between.
func TestEndedStreamDetaches(t *testing.T) {
	tier := cold.Open(cold.Options{FS: disk.OS{}, Origin: origin, QueueBytes: 1 << 20, PutWait: patience})
	defer tier.Close(context.Background())
	served := make(chan error, 1)
	c := dial(t, func(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error {
		served <- stream.Serve(s.Context(), s, tier, origin, nil)
		return nil
	})
	dir := t.TempDir()
	first := newLease(t, dir, "e1")
	stop, ended := follow(t, c, first)
	wait(t, tier)
	tier.Put(key(1), make([]byte, 1000))
	for tier.Counters().Persisted == 0 {
		<-time.After(time.Millisecond)
	}
	stop()
	if err := <-ended; status.Code(err) != codes.Canceled && !errors.Is(err, context.Canceled) {
		t.Errorf("Follow: %v", err)
	}
	<-served
	if _, ends := first.told(); ends != 1 {
		t.Errorf("the lease ended %d times", ends)
	}
	if got := tier.Put(key(2), make([]byte, 1000)); got != kv.Dropped {
		t.Errorf("without a stream: %v", got)
	}
	if err := tier.Read(t.Context(), key(1), make([]byte, 1000)); err != nil {
		t.Error(err)
	}
	follow(t, c, newLease(t, dir, "e2"))
	wait(t, tier)
	if got := tier.Put(key(3), make([]byte, 1000)); got != kv.Queued {
		t.Errorf("with another stream: %v", got)
	}
}

// TestALeaseThatIsNoneDetaches: an owner whose disk makes no epoch has nothing to
// grant for now.
func TestALeaseThatIsNoneDetaches(t *testing.T) {
	tier := cold.Open(cold.Options{FS: disk.OS{}, Origin: origin, QueueBytes: 1 << 20})
	defer tier.Close(context.Background())
	c := dial(t, func(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error {
		return stream.Serve(s.Context(), s, tier, origin, nil)
	})
	l := newLease(t, t.TempDir(), "e1")
	follow(t, c, l)
	wait(t, tier)
	l.mu.Lock()
	l.now.Epoch = ""
	l.mu.Unlock()
	l.changed <- struct{}{}
	for tier.Put(key(1), nil) != kv.Dropped || tier.Counters().Dropped[cold.AtDetached] == 0 {
		<-time.After(time.Millisecond)
	}
	next := newLease(t, l.dir, "e2") // the same stream continues
	l.mu.Lock()
	l.now = next.now
	l.mu.Unlock()
	l.changed <- struct{}{}
	wait(t, tier)
}

// talk is the engine's end of a stream in memory.
type talk struct {
	grpc.ServerStream
	ctx     context.Context
	leases  chan *wire.CacheLease
	reports chan *wire.CacheReport
}

func (s talk) Context() context.Context { return s.ctx }

func (s talk) Send(r *wire.CacheReport) error {
	s.reports <- r
	return nil
}

func (s talk) Recv() (*wire.CacheLease, error) {
	select {
	case l := <-s.leases:
		return l, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// Otherwise an engine would ask for the same space twice.
func TestOneReportIsOutstandingAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(1 << 20)
		n := cold.NamespaceOf(origin)
		for _, folder := range append(cold.Shards(), cold.Temporary+"/e1") {
			if err := f.MkdirAll(cold.Folder("/kv", n) + "/" + folder); err != nil {
				t.Fatal(err)
			}
		}
		tier := cold.Open(cold.Options{FS: f, Origin: origin, QueueBytes: 1 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		s := talk{ctx: ctx, leases: make(chan *wire.CacheLease), reports: make(chan *wire.CacheReport, 100)}
		ended := make(chan error, 1)
		go func() { ended <- stream.Serve(ctx, s, tier, origin, nil) }()
		lease := &wire.CacheLease{Directory: "/kv", Epoch: "e1", GrantedBytes: 1 << 20}
		<-s.reports // the origin
		s.leases <- lease
		synctest.Wait()
		for n := range int32(5) {
			tier.Put(key(n), make([]byte, 100))
			synctest.Wait()
		}
		if got := len(s.reports); got != 1 {
			t.Errorf("%d reports wait for an answer, want 1", got)
		}
		first := <-s.reports
		s.leases <- lease // no answer
		synctest.Wait()
		if got := len(s.reports); got != 0 || first.GetSequence() != 1 {
			t.Errorf("%d reports came after %d without an answer", got, first.GetSequence())
		}
		lease.Answers = 1
		s.leases <- lease
		if second := <-s.reports; second.GetSequence() != 2 || len(second.GetPersisted())+len(first.GetPersisted()) != 5 {
			t.Errorf("then came %v", second)
		}
		cancel()
		<-ended
		if err := tier.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowRefusesWhatAnEngineMayNotSay. Each lease ends.
func TestFollowRefusesWhatAnEngineMayNotSay(t *testing.T) {
	said := &wire.CacheOrigin{Model: origin.Model, Numerics: origin.Numerics, Layout: origin.Layout}
	for name, c := range map[string]struct {
		messages []*wire.CacheReport
		want     string
		ends     int
	}{
		"no origin":            {messages: []*wire.CacheReport{{}}, want: "incomplete block origin", ends: 0},
		"an origin with a gap": {messages: []*wire.CacheReport{{Origin: &wire.CacheOrigin{Model: "m", Layout: "l"}}}, want: "incomplete block origin", ends: 0},
		"a report out of turn": {messages: []*wire.CacheReport{{Origin: said}, {Sequence: 2}}, want: "report 2 after report 0", ends: 1},
		"a key that is none":   {messages: []*wire.CacheReport{{Origin: said}, {Sequence: 1, Touched: [][]byte{{1}}}}, want: "a key of 1 bytes", ends: 1},
		"a damaged key":        {messages: []*wire.CacheReport{{Origin: said}, {Sequence: 1, Damaged: [][]byte{{1, 2}}}}, want: "a key of 2 bytes", ends: 1},
		"a file without a key": {messages: []*wire.CacheReport{{Origin: said}, {Sequence: 1, Persisted: []*wire.CacheFile{{Bytes: 1}}}}, want: "a key of 0 bytes", ends: 1},
		"a long origin": {messages: []*wire.CacheReport{{Origin: &wire.CacheOrigin{Model: "m", Numerics: "n", Layout: strings.Repeat("l", 1<<20)}}},
			want: "a block origin of 1048578 bytes", ends: 0},
		"an end before an origin": {want: "EOF", ends: 0},
	} {
		t.Run(name, func(t *testing.T) {
			client := dial(t, func(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error {
				for _, m := range c.messages {
					if err := s.Send(m); err != nil {
						return err
					}
				}
				if len(c.messages) > 1 {
					<-s.Context().Done()
				}
				return nil
			})
			l := newLease(t, t.TempDir(), "e1")
			_, ended := follow(t, client, l)
			if err := <-ended; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, ends := l.told(); ends != c.ends {
				t.Errorf("the lease ended %d times, want %d", ends, c.ends)
			}
		})
	}
}

// broken is an owner's end of a stream that breaks at its first lease: as in
// gRPC, Send returns io.EOF, and Recv returns the reason after the messages
// that had arrived.
type broken struct {
	grpc.BidiStreamingClient[wire.CacheLease, wire.CacheReport]
	said chan *wire.CacheReport
	why  error
}

func (b broken) Send(*wire.CacheLease) error { return io.EOF }

func (b broken) Recv() (*wire.CacheReport, error) {
	if r, ok := <-b.said; ok {
		return r, nil
	}
	return nil, b.why
}

type breaking struct {
	wire.EngineClient
	stream broken
}

func (b breaking) Cache(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[wire.CacheLease, wire.CacheReport], error) {
	return b.stream, nil
}

// TestAStreamThatBreaksSaysWhy, not that it is at its end.
func TestAStreamThatBreaksSaysWhy(t *testing.T) {
	why := status.Error(codes.Unavailable, "the engine is gone")
	b := breaking{stream: broken{said: make(chan *wire.CacheReport, 2), why: why}}
	b.stream.said <- &wire.CacheReport{Origin: &wire.CacheOrigin{Model: origin.Model, Numerics: origin.Numerics, Layout: origin.Layout}}
	b.stream.said <- &wire.CacheReport{Sequence: 1}
	close(b.stream.said)
	l := newLease(t, t.TempDir(), "e1")
	_, ended := follow(t, b, l)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	if reports, ends := l.told(); ends != 1 || len(reports) != 0 {
		t.Errorf("the lease ended %d times, with %d reports", ends, len(reports))
	}
}

// TestAnOwnerThatHasNoLeaseSaysWhy to the engine.
func TestAnOwnerThatHasNoLeaseSaysWhy(t *testing.T) {
	c := dial(t, func(s grpc.BidiStreamingServer[wire.CacheLease, wire.CacheReport]) error {
		if err := s.Send(&wire.CacheReport{Origin: &wire.CacheOrigin{Model: "m", Numerics: "n", Layout: "l"}}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	})
	no := errors.New("the disk is gone")
	if err := stream.Follow(t.Context(), c, func(kv.Origin) (stream.Lease, error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
}

// TestNothingOfAReportIsLostOnItsWay: every field of a report, by reflection.
func TestNothingOfAReportIsLostOnItsWay(t *testing.T) {
	var counters cold.Counters
	number := int64(1)
	v := reflect.ValueOf(&counters).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Array {
			for j := range f.Len() {
				f.Index(j).SetInt(number)
				number++
			}
			continue
		}
		f.SetInt(number)
		number++
	}
	want := cold.Report{Epoch: "e", Persisted: []cold.File{{Key: key(1), Bytes: 2}}, SpentBytes: 3, Touched: []kv.Key{key(2)}, Damaged: []kv.Key{key(3)},
		WantedBytes: 4, LeastBytes: 5, Counters: counters}
	for i, r := 0, reflect.ValueOf(want); i < r.NumField(); i++ {
		if r.Field(i).IsZero() {
			t.Fatalf("this test leaves %s out", r.Type().Field(i).Name)
		}
	}
	got, err := stream.Through(want)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v:\n%+v, want\n%+v", err, got, want)
	}
}

// TestAttackAReportOfImpossibleFigures: sums of them would overflow.
func TestAttackAReportOfImpossibleFigures(t *testing.T) {
	for _, n := range []int64{math.MaxInt64, math.MinInt64} {
		r := cold.Report{Epoch: "e", Persisted: []cold.File{{Key: key(1), Bytes: n}}, SpentBytes: n, WantedBytes: n, LeastBytes: n,
			Counters: cold.Counters{Queued: n, Persisted: n, WrittenBytes: n, Read: n}}
		got, err := stream.Through(r)
		if err != nil {
			t.Fatal(err)
		}
		c := got.Counters
		for _, figure := range []int64{got.Persisted[0].Bytes, got.SpentBytes, got.WantedBytes, got.LeastBytes, c.Queued, c.Persisted, c.WrittenBytes, c.Read} {
			if figure < 0 || figure > math.MaxInt64/1000 {
				t.Errorf("%d was taken as %d", n, figure)
			}
		}
	}
}

// TestAReportOfManyKeysIsRefused: the agent would look at a file for each, and other engines wait.
func TestAReportOfManyKeysIsRefused(t *testing.T) {
	keys := func(n int) []kv.Key { return make([]kv.Key, n) }
	for name, tc := range map[string]struct {
		report  cold.Report
		last    bool
		refused bool
	}{
		"persisted":                    {report: cold.Report{Persisted: make([]cold.File, 1<<15)}, refused: true},
		"touched":                      {report: cold.Report{Touched: keys(1 << 15)}, refused: true},
		"damaged":                      {report: cold.Report{Damaged: keys(cold.MaxDamaged + 1)}, refused: true},
		"damaged when the engine ends": {report: cold.Report{Damaged: keys(cold.MaxDamaged + 1)}, last: true, refused: true},
		"damaged as many as may be":    {report: cold.Report{Damaged: keys(cold.MaxDamaged)}},
		"as many as usual":             {report: cold.Report{Persisted: make([]cold.File, 1000), Touched: keys(4096), Damaged: keys(1000)}},
	} {
		if _, err := stream.Sent(tc.report, tc.last); (err != nil) != tc.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
