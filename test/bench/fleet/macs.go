package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// macs are agents without engines.
type macs struct {
	stop    func()
	reports atomic.Int64
	lost    atomic.Pointer[error] // a part that ended by itself
}

func (m *macs) failure() error {
	if err := m.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// atOnce is how many Macs are made at the same time.
const atOnce = 16

// startMacs makes MacNodes as an administrator would, gives each its token as
// joining does, and runs its agent; it returns when all were judged ready.
func startMacs(ctx context.Context, f *fleet.Fleet, n int) (*macs, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	m := &macs{stop: func() { cancel(); work.Wait() }}
	dir := filepath.Join(f.Dir(), "macs")
	made, making := errgroup.WithContext(ctx)
	made.SetLimit(atOnce)
	for i := range n {
		made.Go(func() error { return m.start(making, running, &work, f, dir, fmt.Sprintf("mac-%04d", i), i) })
	}
	if err := made.Wait(); err != nil {
		return m, err
	}
	fmt.Printf("   %d Macs run\n", n)
	ctx, done := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer done()
	return m, fleet.Poll(ctx, time.Second, "every Mac is ready and has said so", func(ctx context.Context) error {
		var list v1alpha1.MacNodeList
		if err := f.Client.List(ctx, &list); err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d of %d are", ready, n)
		}
		return m.failure()
	})
}

func isReady(mac *v1alpha1.MacNode) bool {
	for _, c := range mac.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return c.Status == metav1.ConditionTrue && mac.Status.Address != nil
		}
	}
	return false
}

// start makes one Mac and runs it.
func (m *macs) start(ctx, running context.Context, work *sync.WaitGroup, f *fleet.Fleet, dir, name string, i int) error {
	if err := f.Client.Create(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("MacNode %s: %w", name, err)
	}
	token, err := tokenOf(ctx, f, name)
	if err != nil {
		return err
	}
	admin := f.Env.Config()
	config := &rest.Config{Host: admin.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData},
		Dial: (&net.Dialer{Timeout: 10 * time.Second}).DialContext} // a connection of its own, as from another machine
	state := filepath.Join(dir, name)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	links, err := agent.Connect(agent.Cluster{REST: config, Name: name, Namespace: fleet.Namespace, StateDir: state, BootID: agent.NewBootID(), Log: logr.Discard(),
		Reported: func() { m.reports.Add(1) }})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	mac := newMac(i)
	for part, run := range map[string]func(context.Context) error{
		"orders": func(ctx context.Context) error {
			return links.Orders.Run(ctx, func(o journal.Orders) { links.Reports.Offer(mac.obey(o)) })
		},
		"reports": links.Reports.Run, "heartbeat": links.Heartbeat.Run, "tokens": links.Tokens.Run,
		"figures": func(ctx context.Context) error { return mac.wander(ctx, links.Reports.Offer) },
	} {
		work.Go(func() {
			if err := run(running); running.Err() == nil {
				err = errors.Join(fmt.Errorf("%s of %s ended by itself", part, name), err)
				m.lost.CompareAndSwap(nil, &err)
			}
		})
	}
	return nil
}

// tokenOf waits until the operator made the Mac's account, and takes a token.
func tokenOf(ctx context.Context, f *fleet.Fleet, mac string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	seconds := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, Name: v1alpha1.AgentObjectName(mac)}}
	err := fleet.Poll(ctx, 100*time.Millisecond, "the account of "+mac+" gives a token", func(ctx context.Context) error {
		return f.Client.SubResource("token").Create(ctx, account, request)
	})
	return request.Status.Token, err
}

// mac is what one Mac reports.
type mac struct {
	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	size   int64
	orders journal.Orders
	// foreign is what others hold there.
	foreign int64
	since   metav1.Time
}

const gib = int64(1) << 30

func newMac(i int) *mac {
	sizes := []int64{48, 96, 128, 192, 512}
	return &mac{rng: rand.New(rand.NewPCG(uint64(i), 9)), size: sizes[i%len(sizes)] * gib, foreign: 6 * gib, since: metav1.Now()}
}

// lookEvery is how often an idle Mac's figures are measured, and stirEvery how
// often, about, something else on it takes or gives back more than a little.
const (
	lookEvery = 5 * time.Second
	stirEvery = 3 * time.Minute
	stir      = 200 << 20
	noise     = 8 << 20
)

// wander reports figures as they move on a Mac that idles.
func (m *mac) wander(ctx context.Context, offer func(*v1alpha1.MacNodeStatus)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		m.mu.Lock()
		m.foreign += m.rng.Int64N(2*noise+1) - noise
		if m.rng.Float64() < lookEvery.Seconds()/stirEvery.Seconds() {
			m.foreign += stir * (1 - 2*m.rng.Int64N(2))
		}
		m.foreign = min(max(m.foreign, 4*gib), 8*gib)
		s := m.status()
		m.mu.Unlock()
		offer(s)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// obey takes orders and says that they are done.
func (m *mac) obey(o journal.Orders) *v1alpha1.MacNodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.orders = o
	return m.status()
}
