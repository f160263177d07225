package dispatch

import (
	"cmp"
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

// load is requests of tenants to fiveMacs.
type load struct {
	perSecond, tenants int
	// seconds that it lasts; 0 means three minutes.
	seconds int
	// takes is how long a Mac answers a request of a tenant.
	takes func(mac, owner string) time.Duration
	// known: each tenant has a prompt prefix that replicas remember.
	known bool
	// sequences of each request; 0 means one.
	sequences int
	// ends is how a Mac ends its n-th request, of a tenant; nil means that it answers.
	ends func(mac, owner string, n int) Outcome
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
		lease, err := d.Acquire(ctx, &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: owner, Prefix: prefix, Sequences: l.sequences})
		if err != nil {
			return
		}
		select {
		case <-time.After(l.takes(lease.Mac, owner)):
		case <-ctx.Done():
			return
		}
		lease.Release()
		mu.Lock()
		defer mu.Unlock()
		how := OutcomeAnswered
		if l.ends != nil {
			how = l.ends(lease.Mac, owner, by[lease.Mac])
		}
		lease.Observe(how)
		if owner != "brief" {
			by[lease.Mac]++
			all++
		}
	}
	send := func(perSecond int, one func(i int)) {
		sending.Go(func() {
			for i := range cmp.Or(l.seconds, 180) * perSecond {
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
// requests than one that is four times faster than others, however it ends them. Where these are full it
// gets the rest.
func TestAMacThatAnswersAtOnceAttractsFewMore(t *testing.T) {
	for how, ends := range map[string]func(n int) Outcome{
		"answered":                  func(int) Outcome { return OutcomeAnswered },
		"in a way that says little": func(int) Outcome { return OutcomeUnknown },
		"some failed":               func(n int) Outcome { return []Outcome{OutcomeFailed, OutcomeAnswered, OutcomeAnswered}[n%3] },
	} {
		for _, c := range []struct {
			name               string
			perSecond, tenants int
			known              bool
			seconds, sequences int
			usual              time.Duration
			most               float64
		}{
			{name: "little load", perSecond: 1, tenants: 50, usual: 10 * time.Second, most: 0.5},
			{name: "half of the load", perSecond: 5, tenants: 50, usual: 10 * time.Second, most: 0.55},
			{name: "half of the load of one tenant", perSecond: 5, tenants: 1, usual: 10 * time.Second, most: 0.55},
			{name: "half of the load, known prefixes", perSecond: 5, tenants: 50, known: true, usual: 10 * time.Second, most: 0.55},
			{name: "more than all can do", perSecond: 20, tenants: 50, usual: 10 * time.Second, most: 0.75},
			{name: "long answers", perSecond: 1, tenants: 50, seconds: 900, usual: time.Minute, most: 0.55},
			{name: "eight choices each", perSecond: 3, tenants: 50, sequences: 8, usual: 3 * time.Second, most: 0.55},
			{name: "short answers", perSecond: 40, tenants: 50, usual: 900 * time.Millisecond, most: 0.55},
			{name: "short answers, known prefixes", perSecond: 40, tenants: 50, known: true, usual: 900 * time.Millisecond, most: 0.55},
			{name: "the shortest answers", perSecond: 400, tenants: 50, seconds: 20, usual: 50 * time.Millisecond, most: 0.55},
		} {
			t.Run(how+"/"+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					takes := func(mac, _ string) time.Duration {
						if mac == "mac-0" {
							return time.Millisecond
						}
						return c.usual
					}
					by, all := answersOf(load{perSecond: c.perSecond, tenants: c.tenants, seconds: c.seconds, sequences: c.sequences, known: c.known, takes: takes, ends: func(mac, _ string, n int) Outcome {
						if mac == "mac-0" {
							return ends(n)
						}
						return OutcomeAnswered
					}})
					if share := float64(by["mac-0"]) / float64(all); share > c.most {
						t.Errorf("one of five got %.0f%% of the requests: %v", 100*share, by)
					}
				})
			})
		}
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
// seem as fast as a Mac that answers nothing. It may ask for short answers, or leave early.
func TestBriefAnswersOfATenantTakeNoMacFromOthers(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, how := range []Outcome{OutcomeAnswered, OutcomeUnknown} {
			synctest.Test(t, func(t *testing.T) {
				l := load{perSecond: 5, tenants: 50, known: known, takes: func(_, owner string) time.Duration {
					if owner == "brief" {
						return 20 * time.Millisecond
					}
					return 10 * time.Second
				}, ends: func(_, owner string, _ int) Outcome {
					if owner == "brief" {
						return how
					}
					return OutcomeAnswered
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
}

// TestAConversationStaysWithAFastMac where all answers are short: these differ by the network.
func TestAConversationStaysWithAFastMac(t *testing.T) {
	conversationsStay(t, func(mac string) (time.Duration, Outcome) {
		if mac == "mac-0" {
			return time.Millisecond, OutcomeAnswered
		}
		return 100 * time.Millisecond, OutcomeAnswered
	})
}

// TestAConversationStaysIfItsClientLeavesEarly: it stops each second answer.
func TestAConversationStaysIfItsClientLeavesEarly(t *testing.T) {
	turn := 0
	conversationsStay(t, func(string) (time.Duration, Outcome) {
		if turn++; turn%2 == 0 {
			return 100 * time.Millisecond, OutcomeUnknown
		}
		return 10 * time.Second, OutcomeAnswered
	})
}

// conversationsStay has conversations of four requests, which each end as a Mac ends one.
func conversationsStay(t *testing.T, one func(mac string) (time.Duration, Outcome)) {
	t.Helper()
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
				took, how := one(lease.Mac)
				time.Sleep(took)
				lease.Release()
				lease.Observe(how)
			}
			if len(macs) > 1 {
				t.Errorf("conversation %d was answered by %v", n, macs)
			}
		}
	})
}
