package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/route"
)

var errDial = errors.New("connection refused")

// network has Macs that answer as their error says, by name.
type network struct {
	mu     sync.Mutex // guards all fields
	macs   []route.Mac
	errs   map[string]error
	probes map[string]int
}

// change changes what the network has.
func (n *network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *network) prober() *Prober {
	return &Prober{Macs: func() (macs []route.Mac) {
		n.change(func() { macs = n.macs })
		return macs
	}, NotReached: func(err error) bool { return errors.Is(err, errDial) },
		To: func(m route.Mac) http.RoundTripper {
			return transport(func(*http.Request) (*http.Response, error) {
				var err error
				n.change(func() {
					n.probes[m.Name]++
					err = n.errs[m.Name]
				})
				if err != nil {
					return nil, err
				}
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(""))}, nil
			})
		}}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func mac(name string) route.Mac {
	return route.Mac{Name: name, UID: "uid-" + name, Address: name + ":7443"}
}

// want checks a report.
func want(t *testing.T, p *Prober, reached, unreached string) {
	t.Helper()
	var r demand.Report
	p.Report(&r)
	slices.Sort(r.Reached)
	if got := strings.Join(r.Reached, " "); got != reached {
		t.Errorf("reached %q, want %q", got, reached)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(r.Unreached)), " "); got != unreached {
		t.Errorf("unreached %q, want %q", got, unreached)
	}
}

func TestAMacIsUnreachableAfterSeveralFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{macs: []route.Mac{mac("a"), mac("b")}, errs: map[string]error{"b": errDial}, probes: map[string]int{}}
		p := n.prober()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		time.Sleep(100 * time.Millisecond)
		want(t, p, "uid-a", "") // one failure proves nothing
		time.Sleep(2 * again)
		want(t, p, "uid-a", "")
		time.Sleep(lasting - 2*again)
		want(t, p, "uid-a", "uid-b")
		n.change(func() {
			if n.probes["a"] != 3 || n.probes["b"] != 3 {
				t.Errorf("probes %v: a Mac that was reached is probed every %s, another one every %s", n.probes, every, again)
			}
			n.errs["b"] = nil
		})
		time.Sleep(again)
		want(t, p, "uid-a uid-b", "")
		n.change(func() { n.errs["a"] = errDial })
		time.Sleep(every + lasting + again)
		want(t, p, "uid-b", "uid-a")
		n.change(func() { n.macs = n.macs[1:] })
		time.Sleep(tick)
		want(t, p, "uid-b", "")
	})
}

// A Mac that accepts connections and then is slow, or resets streams, is reachable.
func TestOnlyConnectionsCountAgainstAMac(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{macs: []route.Mac{mac("a")}, errs: map[string]error{"a": fmt.Errorf("stream reset")}, probes: map[string]int{}}
		p := n.prober()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		time.Sleep(time.Minute)
		want(t, p, "", "")
	})
}

// TestAttackAMacScansTheNetworkOfGateways: the times of a report and of the probes, each of which
// resolves a name, do not depend on why no connection to the Mac's agent could be opened.
func TestAttackAMacScansTheNetworkOfGateways(t *testing.T) {
	for kind, wait := range map[string]time.Duration{"refused": 0, "another server": 3 * time.Millisecond, "filtered": time.Second, "silent": 2 * time.Second, "slow and silent": patience - 20*time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			began, times := time.Now(), []time.Duration(nil)
			p := &Prober{Macs: func() []route.Mac { return []route.Mac{mac("a")} }, NotReached: func(err error) bool { return errors.Is(err, errDial) },
				To: func(route.Mac) http.RoundTripper {
					return transport(func(*http.Request) (*http.Response, error) {
						times = append(times, time.Since(began)) // one probe at a time
						time.Sleep(wait)
						return nil, errDial
					})
				}}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { p.Run(ctx) })
			var r demand.Report
			for ; len(r.Unreached) == 0; p.Report(&r) {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took != lasting {
				t.Errorf("%s: reported after %s, want %s for all", kind, took, lasting)
			}
			cancel()
			wg.Wait()
			if want := []time.Duration{0, again, 2 * again}; !slices.Equal(times, want) {
				t.Errorf("%s: probed after %v, want %v for all", kind, times, want)
			}
		})
	}
}

// unclosable is a response that cannot be closed.
type unclosable struct {
	io.Reader
	ended chan struct{}
}

func (u unclosable) Close() error { <-u.ended; return nil }

// TestAttackAMacThatNeverEndsItsProbe: others are probed meanwhile.
func TestAttackAMacThatNeverEndsItsProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{macs: []route.Mac{mac("a"), mac("b")}, errs: map[string]error{"b": errDial}, probes: map[string]int{}}
		p, ended := n.prober(), make(chan struct{})
		defer close(ended)
		others := p.To
		p.To = func(m route.Mac) http.RoundTripper {
			if m.Name != "a" {
				return others(m)
			}
			return transport(func(*http.Request) (*http.Response, error) {
				n.change(func() { n.probes["a"]++ })
				return &http.Response{StatusCode: http.StatusOK, Body: unclosable{strings.NewReader("x"), ended}}, nil
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		time.Sleep(lasting + tick/2)
		want(t, p, "", "uid-b")
		n.change(func() {
			if n.errs["b"] = nil; n.probes["a"] != 1 {
				t.Errorf("%d probes of one Mac at once", n.probes["a"])
			}
		})
		time.Sleep(again)
		want(t, p, "uid-b", "")
	})
}

// A new address is a new beginning, for both verdicts.
func TestANewAddressIsProbedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{macs: []route.Mac{mac("a")}, errs: map[string]error{"a": errDial}, probes: map[string]int{}}
		p := n.prober()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		time.Sleep(lasting)
		want(t, p, "", "uid-a")
		moved := mac("a")
		moved.Address = "elsewhere:7443"
		n.change(func() { n.macs, n.errs = []route.Mac{moved}, nil })
		time.Sleep(tick + time.Millisecond)
		want(t, p, "uid-a", "")
	})
}

func TestALongErrorIsShortened(t *testing.T) {
	if got := shorten("tls: for \x1b[2J\u202ex\x00\xff\u00a0y"); got != "tls: for ?[2J?x?? y" {
		t.Errorf("an error that quotes control characters is %q", got)
	}
	if got := shorten("a\nb " + strings.Repeat("é", 200)); len(got) > maxError+3 || !strings.HasPrefix(got, "a b é") || !strings.HasSuffix(got, "é...") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
