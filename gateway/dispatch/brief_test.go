package dispatch

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

// load is requests of tenants to fiveMacs for three minutes.
type load struct {
	perSecond, tenants int
	// takes is how long a Mac answers a request of a tenant.
	takes func(mac, owner string) time.Duration
	// known: each tenant has a prompt prefix that replicas remember.
	known bool
	// brief is how many requests a second one more tenant sends, whose answers take no time, all
	// with one prefix.
	brief int
}

// answersOf returns how many requests of these tenants each Mac answered, and all did.
func answersOf(l load) (by map[string]int, all int) {
	model, d := fiveMacs()
	ctx, end := context.WithCancel(context.Background())
	var sending, answering sync.WaitGroup
	var mu sync.Mutex
	by = map[string]int{}
	ask := func(owner string, prefix pick.Prefix) {
		lease, err := d.Acquire(ctx, &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: owner, Prefix: prefix})
		if err != nil {
			return
		}
		select {
		case <-time.After(l.takes(lease.Mac, owner)):
		case <-ctx.Done():
			return
		}
		lease.Release()
		lease.Observe(OutcomeAnswered)
		mu.Lock()
		defer mu.Unlock()
		if owner != "brief" {
			by[lease.Mac]++
			all++
		}
	}
	send := func(perSecond int, one func(i int)) {
		sending.Go(func() {
			for i := range 180 * perSecond {
				answering.Go(func() { one(i) })
				time.Sleep(time.Second / time.Duration(perSecond))
			}
		})
	}
	send(l.perSecond, func(i int) {
		var prefix pick.Prefix
		if l.known {
			prefix = pick.Prefix{Shared: uint64(1000 + i%l.tenants), Own: uint64(900000 + i)}
		}
		ask(fmt.Sprint("t", i%l.tenants), prefix)
	})
	send(l.brief, func(int) { ask("brief", pick.Prefix{Shared: 7, Own: 8}) })
	sending.Wait()
	synctest.Wait()
	end()
	answering.Wait()
	return by, all
}

// TestAMacThatAnswersAtOnceAttractsFewMore: a Mac that answers nothing, at once, gets no more
// requests than one that is four times faster than others. Where these are full it gets the rest.
func TestAMacThatAnswersAtOnceAttractsFewMore(t *testing.T) {
	for _, c := range []struct {
		name               string
		perSecond, tenants int
		known              bool
		most               float64
	}{
		{name: "little load", perSecond: 1, tenants: 50, most: 0.5},
		{name: "half of the load", perSecond: 5, tenants: 50, most: 0.55},
		{name: "half of the load of one tenant", perSecond: 5, tenants: 1, most: 0.55},
		{name: "half of the load, known prefixes", perSecond: 5, tenants: 50, known: true, most: 0.55},
		{name: "more than all can do", perSecond: 20, tenants: 50, most: 0.75},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				by, all := answersOf(load{perSecond: c.perSecond, tenants: c.tenants, known: c.known, takes: func(mac, _ string) time.Duration {
					if mac == "mac-0" {
						return time.Millisecond
					}
					return 10 * time.Second
				}})
				if share := float64(by["mac-0"]) / float64(all); share > c.most {
					t.Errorf("one of five got %.0f%% of the requests: %v", 100*share, by)
				}
			})
		})
	}
}

// TestAFastMacAnswersMore: as many more as it is faster, up to four times.
func TestAFastMacAnswersMore(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		least float64
	}{{5 * time.Second, 1.8}, {2500 * time.Millisecond, 3.5}, {time.Second, 3.5}} {
		synctest.Test(t, func(t *testing.T) {
			by, _ := answersOf(load{perSecond: 4, tenants: 50, takes: func(mac, _ string) time.Duration {
				if mac == "mac-0" {
					return c.takes
				}
				return 10 * time.Second
			}})
			if more := float64(by["mac-0"]) / float64(by["mac-1"]); more < c.least {
				t.Errorf("a Mac that answers in %s gets %.1f times as many as one that takes 10 s: %v", c.takes, more, by)
			}
		})
	}
}

// TestBriefAnswersOfATenantTakeNoMacFromOthers: its requests, which all have one home, make that
// seem as fast as a Mac that answers nothing.
func TestBriefAnswersOfATenantTakeNoMacFromOthers(t *testing.T) {
	for _, known := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := load{perSecond: 5, tenants: 50, known: known, takes: func(_, owner string) time.Duration {
				if owner == "brief" {
					return 20 * time.Millisecond
				}
				return 10 * time.Second
			}}
			before, _ := answersOf(l)
			l.brief = 20
			by, _ := answersOf(l)
			for mac, n := range before {
				if by[mac] < n*8/10 {
					t.Errorf("%s answers %d requests of others, %d without that tenant", mac, by[mac], n)
				}
			}
		})
	}
}

// TestAConversationStaysWithAFastMac where all answers are short: these differ by the network.
func TestAConversationStaysWithAFastMac(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := fiveMacs()
		for n := range 40 {
			macs := map[string]bool{}
			for turn := range 4 {
				r := Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: "a", Prefix: pick.Prefix{Shared: uint64(n + 1), Own: uint64(1000*(n+1) + turn)}}
				lease, err := d.Acquire(t.Context(), &r)
				if err != nil {
					t.Fatal(err)
				}
				macs[lease.Mac] = true
				took := 100 * time.Millisecond
				if lease.Mac == "mac-0" {
					took = time.Millisecond
				}
				time.Sleep(took)
				lease.Release()
				lease.Observe(OutcomeAnswered)
			}
			if len(macs) > 1 {
				t.Errorf("conversation %d was answered by %v", n, macs)
			}
		}
	})
}
