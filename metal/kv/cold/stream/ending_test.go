//go:build !race

package stream_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAnEngineThatEndsReportsAllDamagedBlocksInParts: a back end that failed damaged more blocks than a
// report may have, and no later engine may read them.
func TestAnEngineThatEndsReportsAllDamagedBlocksInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = cold.MaxDamaged + 100
		f := faultfs.New(1 << 40)
		for _, folder := range append(cold.Shards(), cold.Temporary+"/e1") {
			if err := f.MkdirAll(cold.Folder("/kv", cold.NamespaceOf(origin)) + "/" + folder); err != nil {
				t.Fatal(err)
			}
		}
		tier := cold.Open(cold.Options{FS: f, Origin: origin, QueueBytes: 1 << 40})
		s := talk{ctx: t.Context(), leases: make(chan *wire.CacheLease), reports: make(chan *wire.CacheReport)}
		over, ended := make(chan struct{}), make(chan error, 1)
		lease := &wire.CacheLease{Directory: "/kv", Epoch: "e1", GrantedBytes: 1 << 40}
		if err := tier.Attach(cold.Lease{Dir: lease.GetDirectory(), Epoch: lease.GetEpoch(), GrantedBytes: lease.GetGrantedBytes()}); err != nil {
			t.Fatal(err)
		}
		for n := range int32(many) {
			tier.Put(key(n), nil)
		}
		synctest.Wait()
		tier.Report()
		tier.Distrust()
		if err := tier.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(over)
		go func() { ended <- stream.Serve(t.Context(), s, tier, origin, over) }()
		<-s.reports // the origin
		damaged := map[kv.Key]bool{}
		for last := false; !last; {
			r := <-s.reports
			got, err := stream.Taken(r)
			if err != nil || proto.Size(r) > stream.MaxReport {
				t.Fatalf("the agent refuses a report of %d bytes: %v", proto.Size(r), err)
			}
			for _, k := range got.Damaged {
				damaged[k] = true
			}
			if last = r.GetLast(); !last {
				lease.Answers = r.GetSequence()
				s.leases <- lease
			}
		}
		if len(damaged) != many {
			t.Errorf("%d of %d damaged blocks are reported", len(damaged), many)
		}
	})
}

// TestTheLongestReportIsTaken: one of an honest engine with as many keys as it may have.
func TestTheLongestReportIsTaken(t *testing.T) {
	r := cold.Report{Persisted: make([]cold.File, stream.MaxKeys), Damaged: make([]kv.Key, cold.MaxDamaged)}
	for i := range r.Persisted {
		r.Persisted[i].Bytes = 1 << 49
	}
	if n := proto.Size(stream.Message(r)); n > stream.MaxReport {
		t.Errorf("a report has %d bytes, and the agent takes %d", n, stream.MaxReport)
	}
	c := dial(t, func(s wire.Engine_CacheServer) error { return s.Send(stream.Message(r)) })
	s, err := c.Cache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Recv(); err != nil || len(got.GetDamaged()) != cold.MaxDamaged {
		t.Errorf("%d damaged blocks arrive: %v", len(got.GetDamaged()), err)
	}
}
