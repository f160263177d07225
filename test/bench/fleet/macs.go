package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	system "metalfleet.dev/metalfleet/test/fleet"
)

// macs are agents without engines.
type macs struct {
	fleet *system.Fleet
	dir   string
	ctx   context.Context // of everything that runs, until stop
	stop  func()
	work  sync.WaitGroup
	lost  atomic.Pointer[error] // of a part that ended by itself
}

func (m *macs) failure() error {
	if err := m.lost.Load(); err != nil {
		return *err
	}
	return nil
}

func newMacs(ctx context.Context, f *system.Fleet) *macs {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &macs{fleet: f, dir: filepath.Join(f.Dir(), "macs"), ctx: running}
	m.stop = func() {
		cancel()
		m.work.Wait()
	}
	return m
}

// atOnce is how many Macs are created at the same time.
const atOnce = 16

// startMacs creates MacNodes as an administrator would, gives each its token as
// joining does, and runs its agent. It returns when all are ready. The caller
// stops the Macs, also after an error.
func startMacs(ctx context.Context, f *system.Fleet, n int) (*macs, error) {
	m := newMacs(ctx, f)
	created, creating := errgroup.WithContext(ctx)
	created.SetLimit(atOnce)
	for i := range n {
		created.Go(func() error { return m.start(creating, fmt.Sprintf("mac-%04d", i), i) })
	}
	if err := created.Wait(); err != nil {
		return m, err
	}
	return m, m.awaitReady(ctx, n)
}

// awaitReady waits until n Macs are ready and have reported.
func (m *macs) awaitReady(ctx context.Context, n int) error {
	ctx, done := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer done()
	return system.Poll(ctx, time.Second, "every Mac is ready and has reported", func(ctx context.Context) error {
		var list v1alpha1.MacNodeList
		if err := m.fleet.Client.List(ctx, &list); err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if s := list.Items[i].Status; meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) && s.Address != nil {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d of %d are", ready, n)
		}
		return m.failure()
	})
}

// start creates one Mac and runs its agent.
func (m *macs) start(ctx context.Context, name string, i int) error {
	if err := m.fleet.Client.Create(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("MacNode %s: %w", name, err)
	}
	token, err := m.token(ctx, name)
	if err != nil {
		return err
	}
	admin := m.fleet.Env.Config()
	config := &rest.Config{Host: admin.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData},
		Dial: (&net.Dialer{Timeout: 10 * time.Second}).DialContext} // a connection of its own, as from another machine
	return m.run(config, name, i)
}

// run runs the agent of a Mac that has joined.
func (m *macs) run(config *rest.Config, name string, i int) error {
	state := filepath.Join(m.dir, name)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	links, err := agent.Connect(agent.Cluster{REST: config, Name: name, Namespace: system.Namespace, StateDir: state, BootID: agent.NewBootID(), Log: logr.Discard()})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	mac := newMac(i)
	for part, run := range map[string]func(context.Context) error{
		"orders": func(ctx context.Context) error {
			return links.Desired.Run(ctx, func(o journal.Desired) { links.Reports.Offer(mac.obey(o)) })
		},
		"reports": links.Reports.Run, "heartbeat": links.Heartbeat.Run, "tokens": links.Tokens.Run,
		"figures": func(ctx context.Context) error { return mac.wander(ctx, links.Reports.Offer) },
	} {
		m.work.Go(func() {
			if err := run(m.ctx); m.ctx.Err() == nil {
				err = errors.Join(fmt.Errorf("%s of %s ended by itself", part, name), err)
				m.lost.CompareAndSwap(nil, &err)
			}
		})
	}
	return nil
}

// token waits until the operator has created the Mac's account, and requests a
// token for it.
func (m *macs) token(ctx context.Context, mac string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	seconds := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system.Namespace, Name: v1alpha1.AgentObjectName(mac)}}
	err := system.Poll(ctx, 100*time.Millisecond, "the account of "+mac+" gives a token", func(ctx context.Context) error {
		return m.fleet.Client.SubResource("token").Create(ctx, account, request)
	})
	return request.Status.Token, err
}

// mac is what one Mac reports.
type mac struct {
	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	size   int64
	orders journal.Desired
	// foreign is the memory of other programs.
	foreign int64
	since   metav1.Time
}

const gib = int64(1) << 30

func newMac(i int) *mac {
	sizes := []int64{48, 96, 128, 192, 512}
	return &mac{rng: rand.New(rand.NewPCG(uint64(i), 9)), size: sizes[i%len(sizes)] * gib, foreign: 6 * gib, since: metav1.Now()}
}

// An idle Mac measures its figures every lookEvery. About every stepEvery another
// program allocates or frees a larger amount.
const (
	lookEvery = 5 * time.Second
	stepEvery = 3 * time.Minute
	step      = 200 << 20
	noise     = 8 << 20
)

// wander reports figures as they change on an idle Mac.
func (m *mac) wander(ctx context.Context, offer func(*v1alpha1.MacNodeStatus)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		m.mu.Lock()
		m.foreign += m.rng.Int64N(2*noise+1) - noise
		if m.rng.Float64() < lookEvery.Seconds()/stepEvery.Seconds() {
			m.foreign += step * (1 - 2*m.rng.Int64N(2))
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

// obey accepts orders and reports that they are done.
func (m *mac) obey(o journal.Desired) *v1alpha1.MacNodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.orders = o
	return m.status()
}

// status is what the Mac reports now. The caller holds the lock.
func (m *mac) status() *v1alpha1.MacNodeStatus {
	s := &v1alpha1.MacNodeStatus{
		ObservedGeneration: m.orders.Generation, AgentVersion: "bench", BootID: "bench", Chip: "M2Ultra", Backend: "ref", Simulated: true,
		Address: &v1alpha1.MacAddress{Host: "127.0.0.1", Port: 7443},
		Memory: v1alpha1.MacMemory{TotalBytes: m.size, CeilingBytes: m.size * 3 / 4, CapacityBytes: m.size * 3 / 4, ForeignBytes: m.foreign, FreeBytes: m.size - m.foreign,
			PressureLevel: v1alpha1.PressureNormal},
		Disk:       v1alpha1.MacDisk{FreeBytes: 2048 * gib},
		Conditions: []metav1.Condition{register.Accepting(true, m.since.Time)},
	}
	for _, order := range m.orders.Inspections {
		record := recordOf(order.Source)
		s.Inspections = append(s.Inspections, v1alpha1.InspectionStatus{ID: order.ID, Source: order.Source, State: v1alpha1.InspectionResolved, Model: &record})
	}
	for i := range m.orders.Assignments {
		s.Assignments = append(s.Assignments, m.assignment(&m.orders.Assignments[i]))
		if a := &m.orders.Assignments[i]; a.Desired != v1alpha1.DesiredDrained {
			s.Memory.ReservedBytes += a.ReservedBytes
		}
	}
	return s
}

// assignment is done at once: nothing is downloaded, loaded or freed.
func (m *mac) assignment(order *v1alpha1.Assignment) v1alpha1.AssignmentStatus {
	out := v1alpha1.AssignmentStatus{ReplicaUID: order.ReplicaUID, Epoch: order.Epoch}
	yes := func(kind string) {
		out.Conditions = append(out.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Bench", LastTransitionTime: m.since})
	}
	yes(v1alpha1.ConditionDownloaded)
	if order.Desired == v1alpha1.DesiredDrained {
		out.Progress.Stage = v1alpha1.StageReleased
		yes(v1alpha1.ConditionReleased)
		return out
	}
	out.Progress.Stage = v1alpha1.StageServing
	out.Memory.ReservedBytes = order.ReservedBytes
	yes(v1alpha1.ConditionAdmitted)
	yes(v1alpha1.ConditionLoaded)
	yes(v1alpha1.ConditionServing)
	return out
}

// recordOf describes a model of 8 GB with the dimensions of a small Llama.
func recordOf(source string) model.Record {
	sum := sha256.Sum256([]byte(source))
	r := model.Record{
		Source: source, Commit: hex.EncodeToString(sum[:20]), Format: model.FormatGGUF,
		Files: []model.File{{Path: "model.gguf", Bytes: 8e9, SHA256: hex.EncodeToString(sum[:])}},
		Facts: model.Facts{
			Architecture: "llama", Quantization: "Q4_1", Layers: 30, GrowingLayers: 30, HiddenSize: 576, FeedForwardSize: 1536,
			QueryHeads: 9, KeyValueHeads: 3, HeadSize: 64, VocabularySize: 49152, ContextTokens: 8192,
			KeyValueElementBytes: 4, WeightBytes: 8e9,
		},
	}
	r.Digest = model.DigestOf(r.Files)
	return r
}
