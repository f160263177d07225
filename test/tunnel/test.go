package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/netns"
)

// story is one run.
type story struct {
	*fleet.Fleet
	*office
	second *fleet.Gateway
	began  time.Time
	asked  atomic.Int64
}

func test(ctx context.Context, f *fleet.Fleet, o *office) error {
	s := &story{Fleet: f, office: o, began: time.Now()}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"a second gateway and a model on both Macs", s.deploy},
		{"nobody reaches the Macs, and both answer through both gateways", s.answers},
		{"another Mac's certificate opens no tunnel in a Mac's name", s.forged},
		{"a stream that is left ends, and the tunnel serves on", s.left},
		{"one Mac's link dies under load and comes back", s.linkDies},
		{"the office's link dies; a request waits until it is back", s.officeDies},
		{"a gateway is killed and found again", s.gatewayDies},
		{"an agent is stopped under load, and starts again", s.agentStops},
	} {
		fmt.Printf("   %5.1f s  %s\n", time.Since(s.began).Seconds(), step.name)
		if err := errors.Join(step.do(ctx), f.Failed()); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	fmt.Printf("test-tunnel: no request failed that could be answered, in %.0f s\n", time.Since(s.began).Seconds())
	return nil
}

func (s *story) deploy(ctx context.Context) (err error) {
	if s.second, err = s.AddGateway(ctx, second); err != nil {
		return err
	}
	md := fleet.Model{Name: model, File: "slow.gguf", Tokens: 4096, Sequences: 4, CacheTokens: 4 * 4096, DrainSeconds: 60}.Deployment()
	md.Spec.Replicas = ptr.To[int32](2)
	if err := s.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create the deployment: %w", err)
	}
	for _, m := range s.macs {
		err := s.WaitMac(ctx, m.name, m.name+" serves and says that it opens tunnels", patience, func(node *v1alpha1.MacNode) error {
			a := node.Status.Address
			if a == nil || a.Reach != v1alpha1.ReachTunnel {
				return fmt.Errorf("address %+v", a)
			}
			if len(node.Status.Assignments) != 1 || node.Status.Assignments[0].PID == 0 {
				return errors.New("no engine runs there")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// text is another one each time: what begins alike goes to one Mac.
func (s *story) text() string {
	return fmt.Sprintf("%d was the number of this question. Why?", s.asked.Add(1))
}

// ask sends one request that is answered whole.
func (s *story) ask(ctx context.Context, url string) (mac string, err error) {
	a, err := fleet.Ask(ctx, url, fleet.Question{Model: model, Text: s.text(), MaxTokens: 4, Patience: patience})
	return a.Mac, err
}

// until asks until a Mac answers through a gateway.
func (s *story) until(ctx context.Context, url string, macs ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	for _, want := range macs {
		err := fleet.Poll(ctx, 50*time.Millisecond, fmt.Sprintf("%s answers through %s", want, url), func(ctx context.Context) error {
			mac, err := s.ask(ctx, url)
			if err == nil && mac != want {
				err = fmt.Errorf("%s answered", mac)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *story) answers(ctx context.Context) error {
	for _, m := range s.macs {
		node, err := s.Mac(ctx, m.name)
		if err != nil {
			return err
		}
		if err := shut(ctx, node.Status.Address.Host, strconv.Itoa(int(node.Status.Address.Port))); err != nil {
			return err
		}
	}
	for _, url := range []string{s.URL, s.second.URL} {
		if err := s.until(ctx, url, "studio", "mini"); err != nil {
			return err
		}
		a, err := fleet.Ask(ctx, url, fleet.Question{Model: model, Text: s.text(), MaxTokens: 64, Stream: true})
		if err != nil || a.Finish == "" {
			return fmt.Errorf("a stream through %s ended with %q: %w", url, a.Finish, err)
		}
	}
	n, err := s.GatewayMetric(ctx, "metalfleet_gateway_tunnels")
	if err == nil && n != 2 {
		err = fmt.Errorf("the gateway counts %v tunnels, want 2", n)
	}
	return err
}

// forged opens a tunnel with the certificate of one Mac in the name of another,
// from where the first one is, and serves on it what a gateway must not hear.
func (s *story) forged(ctx context.Context) error {
	id, err := identity.Open(filepath.Join(s.Dir(), "mini"), "mini", logr.Discard())
	if err != nil {
		return err
	}
	config := id.ServerTLS()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", netns.Address+":"+tunnelPorts["gateway"])
	if err != nil {
		return fmt.Errorf("dial the gateway: %w", err)
	}
	defer c.Close() //nolint:errcheck // closed by the gateway
	if err := agentapi.SayTunnel(c, "studio"); err != nil {
		return err
	}
	if _, err := agentapi.HearGateway(c); err != nil {
		return err
	}
	asked := make(chan struct{}, 1)
	ended := make(chan struct{})
	server := &http.Server{TLSConfig: config, ReadHeaderTimeout: patience, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(ended)
			}
		}}
	defer server.Close() //nolint:errcheck // it served one connection
	go func() { _ = server.ServeTLS(&single{conn: c, done: ended}, "", "") }()
	select {
	case <-ended:
	case <-asked:
		return errors.New("the gateway sent a request to it")
	case <-time.After(patience):
		return errors.New("the gateway keeps it")
	}
	return s.until(ctx, s.URL, "studio") // whose own tunnel is as it was
}

// single is a listener of one connection.
type single struct {
	conn net.Conn
	done <-chan struct{}
	once sync.Once
}

func (s *single) Accept() (c net.Conn, err error) {
	s.once.Do(func() { c = s.conn })
	if c != nil {
		return c, nil
	}
	<-s.done
	return nil, net.ErrClosed
}
func (s *single) Close() error   { return nil }
func (s *single) Addr() net.Addr { return s.conn.LocalAddr() }

// left begins streams and goes away; then everything is free again.
func (s *story) left(ctx context.Context) error {
	for range 4 {
		leaving, leave := context.WithCancel(ctx)
		_, err := fleet.Ask(leaving, s.URL, fleet.Question{Model: model, Text: s.text(), MaxTokens: 3000, Stream: true, OnText: func(string) { leave() }})
		leave()
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a stream that was left ended with %w", err)
		}
	}
	if err := s.WaitGatewayInFlight(ctx, 0); err != nil {
		return err
	}
	for _, m := range s.macs { // the agents heard of it
		err := s.WaitMac(ctx, m.name, "nothing runs on "+m.name, patience, func(node *v1alpha1.MacNode) error { return s.CheckLedger(ctx, m.name) })
		if err != nil {
			return err
		}
	}
	return s.until(ctx, s.URL, "studio", "mini")
}

// load asks without a pause through both gateways until stopped, and returns what
// failed.
func (s *story) load(ctx context.Context) (stop func() error) {
	loading, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var errs []error
	n := 0
	var wg sync.WaitGroup
	for i := range 6 {
		url := []string{s.URL, s.second.URL}[i%2]
		wg.Go(func() {
			for loading.Err() == nil {
				_, err := s.ask(ctx, url) // what was begun is ended
				mu.Lock()
				if n++; err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	return func() error {
		cancel()
		wg.Wait()
		fmt.Printf("            %d requests, %d failed\n", n, len(errs))
		return errors.Join(errs...)
	}
}

// linkDies: a dead link takes its Mac out of the picks, and no request with it.
func (s *story) linkDies(ctx context.Context) error {
	stop := s.load(ctx)
	err := func() error {
		if err := s.cut(ctx, "studio"); err != nil {
			return err
		}
		dead := time.Now()
		if err := s.tunnels(ctx, 1); err != nil {
			return err
		}
		fmt.Printf("            out of the picks after %.2f s\n", time.Since(dead).Seconds())
		for range 8 {
			if mac, err := s.ask(ctx, s.URL); err != nil || mac != "mini" {
				return fmt.Errorf("%s answered (%w) while its link is dead", mac, err)
			}
		}
		if err := s.mend(ctx, "studio"); err != nil {
			return err
		}
		mended := time.Now()
		if err := errors.Join(s.until(ctx, s.URL, "studio"), s.until(ctx, s.second.URL, "studio")); err != nil {
			return err
		}
		fmt.Printf("            back in both gateways after %.1f s\n", time.Since(mended).Seconds())
		return nil
	}()
	return errors.Join(err, stop())
}

// tunnels waits until the first gateway has as many.
func (s *story) tunnels(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 20*time.Millisecond, fmt.Sprintf("the gateway has %d tunnels", want), func(ctx context.Context) error {
		n, err := s.GatewayMetric(ctx, "metalfleet_gateway_tunnels")
		if err == nil && int(n) != want {
			err = fmt.Errorf("it has %v", n)
		}
		return err
	})
}

// officeDies: with no Mac left a request waits; it is answered when one is back.
func (s *story) officeDies(ctx context.Context) error {
	if err := errors.Join(s.cut(ctx, router), s.tunnels(ctx, 0)); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.ask(ctx, s.URL)
		answered <- err
	}()
	if err := s.waits(ctx); err != nil {
		return err
	}
	if err := s.mend(ctx, router); err != nil {
		return err
	}
	if err := <-answered; err != nil {
		return err
	}
	return errors.Join(s.tunnels(ctx, 2), s.until(ctx, s.second.URL, "studio", "mini"))
}

// waits waits until a request does.
func (s *story) waits(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 20*time.Millisecond, "a request waits", func(ctx context.Context) error {
		n, err := s.GatewayMetric(ctx, "vllm:num_requests_waiting")
		if err == nil && n != 1 {
			err = fmt.Errorf("%v wait", n)
		}
		return err
	})
}

func (s *story) gatewayDies(ctx context.Context) error {
	if err := s.second.Kill(); err != nil {
		return err
	}
	if err := s.second.Start(ctx); err != nil {
		return err
	}
	return s.until(ctx, s.second.URL, "studio", "mini")
}

// agentStops: its drain costs no request, and its tunnels come back with it.
func (s *story) agentStops(ctx context.Context) error {
	stop := s.load(ctx)
	err := errors.Join(s.StopAgent(ctx, "studio"), s.tunnels(ctx, 1), s.StartAgent("studio"))
	if err == nil {
		err = errors.Join(s.until(ctx, s.URL, "studio"), s.until(ctx, s.second.URL, "studio"))
	}
	return errors.Join(err, stop())
}
