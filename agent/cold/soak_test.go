package cold_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/test/seed"
)

var (
	soakFor  = flag.Duration("soak", 2*time.Hour, "how much virtual time TestDayOfTrafficStaysWithinTheLimit runs")
	soakSeed = flag.Uint64("seed", 0, "seed of its random choices; 0 takes that of package test/seed")
)

// What a block of the soak is: 256 tokens with 64 bytes each.
const (
	soakTokens  = 256
	soakPayload = soakTokens * 64
	soakModels  = 3
	// soakOther bounds what is no block: marker and origins, and of each engine
	// one file that it is still writing though its epoch ended and it has no name
	// any more.
	soakOther = soakModels * (256 + soakPayload + blocks.HeaderBytes)
)

// Users return to chats, engines start and stop, the agent restarts, and the
// disk fills, slows down, fails and corrupts data. Usage stays within the limit
// and the declared backlog at every disk operation, each block reads back as
// written, and in the end every block is accounted for.
func TestDayOfTrafficStaysWithinTheLimit(t *testing.T) {
	from := *soakSeed
	if from == 0 {
		from = seed.Of(t)
	}
	t.Logf("%s of virtual time, seed %d", *soakFor, from)
	synctest.Test(t, func(t *testing.T) {
		s := &soak{t: t, r: rand.New(rand.NewPCG(from, 0)), f: faultfs.New(40 << 20)}
		s.open()
		s.f.Inject(s.fault)
		ctx, cancel := context.WithTimeout(t.Context(), *soakFor)
		defer cancel()
		var all sync.WaitGroup
		for n := range soakModels {
			s.start(n)
			for range 2 {
				all.Go(func() { s.use(ctx, n) })
			}
		}
		all.Go(func() { s.disturb(ctx) })
		all.Wait()
		s.finish()
	})
}

// soak is a Mac under traffic. The lock guards all below it; nothing that may
// wait is called with it.
type soak struct {
	t *testing.T
	f *faultfs.FS

	mu      sync.Mutex
	r       *rand.Rand
	w       *cold.Owner
	tick    context.CancelFunc
	running [soakModels]*soakEngine
	past    blocks.Counters
	// evicted by owners that are gone, and the most that lay above the limit.
	evicted, requests, backlog, killed int64
	flaky, over                        bool
}

type soakEngine struct {
	tier  *blocks.Tier
	lease *cold.Lease
	stop  context.CancelFunc
	ended chan struct{}
}

func (s *soak) number(below int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.IntN(below)
}

func (s *soak) owner() *cold.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w
}

// open starts an agent.
func (s *soak) open() {
	w, err := cold.Open(cold.Options{FS: s.f, Dir: dir, Budget: blocks.Budget{LimitBytes: 24 << 20, FloorBytes: 2 << 20}})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	s.w, s.tick = w, cancel
	s.mu.Unlock()
	go func() { _ = w.Run(ctx, func(folders []string) { s.t.Errorf("%v take too much", folders) }) }() // ends with its context
}

// start starts an engine of a model and the goroutine that carries its reports.
func (s *soak) start(n int) {
	l, err := s.owner().Lease(soakOrigin(n), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &soakEngine{tier: blocks.Open(blocks.Options{FS: s.f, Origin: soakOrigin(n), QueueBytes: 16 * soakPayload}), lease: l, stop: cancel, ended: make(chan struct{})}
	if err := e.tier.Attach(l.Current()); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(e.ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-e.tier.News():
			case <-l.Changed():
			}
			time.Sleep(2 * time.Millisecond) // the way between two processes
			now := l.Report(e.tier.Report())
			time.Sleep(2 * time.Millisecond)
			_ = e.tier.Attach(now) // an agent that is gone says nothing useful
		}
	}()
	s.mu.Lock()
	s.running[n] = e
	s.mu.Unlock()
}

// halt ends an engine, in order or killed.
func (s *soak) halt(n int) {
	s.mu.Lock()
	e := s.running[n]
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.number(2))*time.Minute)
	defer cancel()
	err := e.tier.Close(ctx)
	e.stop()
	<-e.ended
	e.lease.End()
	s.book(e.tier.Counters(), err)
}

// book adds up what an engine counted.
func (s *soak) book(c blocks.Counters, closed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = plus(s.past, c)
	if closed != nil {
		s.killed++
	}
}

func soakOrigin(n int) kv.Origin {
	return kv.Origin{Model: string(rune('a' + n)), Numerics: "ref 1", Layout: "256 tokens"}
}

// fault slows the disk down and lets it fail now and then; before anything is
// done it looks at what lies there.
func (s *soak) fault(op faultfs.Op) faultfs.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.w.Snapshot(); s.f.Used() > now.LimitBytes+now.BacklogBytes+soakOther {
		if !s.over {
			s.t.Errorf("%d bytes on the disk before a %s; %+v", s.f.Used(), op.Kind, *now)
		}
		s.over = true
	} else {
		s.backlog = max(s.backlog, now.BacklogBytes)
	}
	fault := faultfs.Fault{}
	if op.Kind == faultfs.Write || op.Kind == faultfs.Sync {
		fault.Delay = time.Duration(s.r.IntN(20)) * time.Millisecond
		if s.flaky {
			fault.Delay *= 20
		}
	}
	mine := op.Kind == faultfs.Write || op.Kind == faultfs.Sync || op.Kind == faultfs.Read || op.Kind == faultfs.Rename
	if s.flaky && mine && strings.Contains(op.Path, ".kv") && s.r.IntN(50) == 0 {
		fault.Err = syscall.EIO
	}
	return fault
}

// use is a user: a chat is read as far as it is cached, and the rest is saved.
func (s *soak) use(ctx context.Context, n int) {
	for ctx.Err() == nil {
		s.mu.Lock()
		chat, length := int(s.r.ExpFloat64()*12), 1+s.r.IntN(16)
		think := time.Duration(s.r.ExpFloat64() * float64(20*time.Second))
		tier := s.running[n].tier
		s.requests++
		s.mu.Unlock()
		k := kv.Root(soakOrigin(n), kv.Salt{})
		missed := false
		for i := range length {
			k = k.Next([]int32{int32(chat), int32(i)})
			want := soakBytes(k)
			if !missed {
				dst := make([]byte, soakPayload)
				err := tier.Read(ctx, k, dst)
				if err == nil && !bytes.Equal(dst, want) {
					s.t.Errorf("wrong bytes of block %d of chat %d", i, chat)
				}
				missed = err != nil
			}
			if missed {
				tier.Put(k, want)
			}
		}
		time.Sleep(think)
	}
}

// soakBytes are the bytes under a key, different for each.
func soakBytes(k kv.Key) []byte {
	b := bytes.Repeat(k[:], soakPayload/len(k))
	binary.LittleEndian.PutUint64(b[soakPayload-8:], binary.LittleEndian.Uint64(k[:])+1)
	return b
}

// disturb does something every few minutes.
func (s *soak) disturb(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(s.number(600)) * time.Second)
		switch s.number(7) {
		case 0: // an engine is loaded again
			n := s.number(soakModels)
			s.halt(n)
			s.start(n)
		case 1: // the agent restarts, engines live on
			s.restart()
		case 2, 3:
			s.f.Occupy(int64(s.number(38 << 20)))
		case 4:
			s.mu.Lock()
			s.flaky = !s.flaky
			s.mu.Unlock()
		case 5:
			if files := s.f.Files(dir); len(files) > 0 {
				if at := files[s.number(len(files))]; path.Base(at) != blocks.OriginFile && s.f.Length(at) > 0 {
					_ = s.f.Rot(at, 8*int64(s.number(int(s.f.Length(at))))) // it may have gone since
				}
			}
		default:
			if _, err := s.owner().Clear(blocks.NamespaceOf(soakOrigin(s.number(soakModels)))); err != nil && !errors.Is(err, syscall.EIO) {
				s.t.Error(err)
			}
		}
	}
}

// restart lets the agent's process end: engines lose their stream, and find a
// new agent's.
func (s *soak) restart() {
	s.mu.Lock()
	running := s.running
	s.tick()
	s.evicted += s.w.Snapshot().Evictions
	s.mu.Unlock()
	for _, e := range running {
		e.stop()
		<-e.ended
		e.tier.Detach()
	}
	s.open()
	for n, e := range running {
		s.start(n)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := e.tier.Close(ctx)
		cancel()
		s.book(e.tier.Counters(), err)
	}
}

// plus adds what the soak looks at.
func plus(a, b blocks.Counters) blocks.Counters {
	for i, n := range b.Dropped {
		a.Dropped[i] += n
	}
	a.Accepted, a.Queued, a.Persisted, a.Failed = a.Accepted+b.Accepted, a.Queued+b.Queued, a.Persisted+b.Persisted, a.Failed+b.Failed
	a.PersistedBytes, a.PayloadBytes, a.WrittenBytes = a.PersistedBytes+b.PersistedBytes, a.PayloadBytes+b.PayloadBytes, a.WrittenBytes+b.WrittenBytes
	a.Read, a.Missed, a.Damaged, a.FullDisk = a.Read+b.Read, a.Missed+b.Missed, a.Damaged+b.Damaged, a.FullDisk+b.FullDisk
	return a
}

// finish ends everything, and prints what came of it.
func (s *soak) finish() {
	s.f.Inject(nil)
	for n := range soakModels {
		s.halt(n)
	}
	for range 200 {
		s.w.Tick()
	}
	now := s.w.Snapshot()
	s.tick()
	m := &mac{t: s.t, f: s.f, w: s.w}
	m.check()
	c := s.past
	if taken := m.taken(); now.UsedBytes != taken || now.GrantedBytes != 0 || now.BacklogBytes != 0 {
		s.t.Errorf("%d bytes on the disk at the end; %+v", taken, *now)
	}
	if !c.Balanced() || c.Queued > s.killed { // one was being written by each engine that was killed
		s.t.Errorf("does not add up: %+v", c)
	}
	if c.Persisted == 0 || c.Read == 0 || s.evicted+now.Evictions == 0 {
		s.t.Errorf("nothing happened: %+v", c)
	}
	s.t.Logf("%d requests; %d blocks read, %d missed, %d damaged; accepted %d = persisted %d + dropped %d %v + failed %d (full disk %d) + queued %d when killed",
		s.requests, c.Read, c.Missed, c.Damaged, c.Accepted, c.Persisted, c.DroppedTotal(), c.Dropped, c.Failed, c.FullDisk, c.Queued)
	s.t.Logf("evicted %d; largest backlog %d bytes; write amplification %.4f (bytes written / payload bytes persisted)",
		s.evicted+now.Evictions, s.backlog, float64(c.WrittenBytes)/float64(max(1, c.PayloadBytes)))
	s.t.Logf("at the end %d blocks; %.2f bytes of disk per cached token, of which %d payload",
		now.Files, float64(now.UsedBytes)/float64(max(1, now.Files*soakTokens)), soakPayload/soakTokens)
}
