package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const name = "chat"

// story is one run.
type story struct {
	*fleet.Fleet
	began time.Time
}

// test is the whole story.
func test(ctx context.Context, f *fleet.Fleet) error {
	s := &story{Fleet: f, began: time.Now()}
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.timeline(watching) })
	defer wg.Wait()
	defer stop()
	if err := s.deploy(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{s.serves, s.toZero, s.fromZero, s.upAndDown, s.toZero, s.told} {
		if err := errors.Join(step(ctx), f.Failed()); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) say(format string, args ...any) {
	fmt.Printf("   %5.1f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) deploy(ctx context.Context) error {
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.ModelDeploymentSpec{
			Model:   v1alpha1.ModelSource{Source: "file://slow.gguf"},
			Context: v1alpha1.ContextSpec{Tokens: contextTokens, Sequences: 2},
			Rollout: v1alpha1.RolloutSpec{DrainSeconds: ptr.To[int32](120)},
			Autoscaling: &v1alpha1.AutoscalingSpec{MinReplicas: ptr.To[int32](0), MaxReplicas: 3, TargetInFlight: 2,
				ScaleDownDelaySeconds: ptr.To[int32](10), IdleSeconds: ptr.To[int32](10)},
		},
	}
	if err := s.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create the deployment: %w", err)
	}
	return nil
}

func (s *story) get(ctx context.Context) (*v1alpha1.ModelDeployment, error) {
	md := &v1alpha1.ModelDeployment{}
	return md, s.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, md)
}

// until waits for a state of the deployment.
func (s *story) until(ctx context.Context, what string, complaint func(*v1alpha1.ModelDeployment) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 50*time.Millisecond, what, func(ctx context.Context) error {
		md, err := s.get(ctx)
		if err != nil {
			return err
		}
		return complaint(md)
	})
}

// ready waits until as many replicas serve.
func (s *story) ready(ctx context.Context, n int32) error {
	return s.until(ctx, fmt.Sprintf("%d replicas are ready", n), func(md *v1alpha1.ModelDeployment) error {
		if a := md.Status.Autoscaling; a == nil || a.DesiredReplicas != n || md.Status.ReadyReplicas != n || md.Status.Replicas != n {
			return fmt.Errorf("%d of %d ready; %+v", md.Status.ReadyReplicas, md.Status.Replicas, a)
		}
		return nil
	})
}

// serves: the first replica comes without a request.
func (s *story) serves(ctx context.Context) error { return s.ready(ctx, 1) }

func (s *story) toZero(ctx context.Context) error { return s.ready(ctx, 0) }

// fromZero sends one request that finds no replica: it waits, is told for how
// long, and is answered.
func (s *story) fromZero(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"model": name, "max_tokens": 8, "messages": []map[string]string{{"role": "user", "content": "Hello"}}})
	if err != nil {
		return fmt.Errorf("question: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("question: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("the first request: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the first request found nothing and is answered %s %s (%w)", resp.Status, text, err)
	}
	eta := resp.Header.Get(agentapi.HeaderQueueETA)
	if n, err := strconv.Atoi(eta); err != nil || n < 1 {
		return fmt.Errorf("who waits for the first replica is told %q as ETA", eta)
	}
	s.say("from zero: answered after %.1f s, and told about %s s", time.Since(began).Seconds(), eta)
	return nil
}

// load is streams that run until they are told to stop.
type load struct {
	s      *story
	wg     sync.WaitGroup
	stop   chan struct{}
	whole  atomic.Int64
	mu     sync.Mutex // guards errs
	broken []error
}

func (s *story) start(ctx context.Context, streams int) *load {
	l := &load{s: s, stop: make(chan struct{})}
	for range streams {
		l.wg.Go(func() { l.run(ctx) })
	}
	s.say("%d streams at a time", streams)
	return l
}

// run asks for one long stream after the other; each has to be whole.
func (l *load) run(ctx context.Context) {
	for {
		select {
		case <-l.stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		asking, cancel := context.WithTimeout(ctx, patience)
		a, err := fleet.Ask(asking, l.s.URL, fleet.Question{Model: name, Text: "Tell me all of it", Stream: true, MaxTokens: longAnswer})
		cancel()
		if err == nil && (a.Finish != "length" || a.Usage.CompletionTokens != longAnswer) {
			err = fmt.Errorf("a stream of %d tokens ended with %q, want %d", a.Usage.CompletionTokens, a.Finish, longAnswer)
		}
		if err != nil {
			l.mu.Lock()
			l.broken = append(l.broken, err)
			l.mu.Unlock()
			return
		}
		l.whole.Add(1)
	}
}

// end lets the streams that run end, and wants every one whole.
func (l *load) end() error {
	close(l.stop)
	l.wg.Wait()
	l.s.say("%d streams were whole", l.whole.Load())
	if l.whole.Load() == 0 {
		l.broken = append(l.broken, errors.New("no stream ran"))
	}
	return errors.Join(l.broken...)
}

// upAndDown: six streams need three replicas, one needs one; between the two the
// operator is killed.
func (s *story) upAndDown(ctx context.Context) error {
	six := s.start(ctx, 6)
	up := s.ready(ctx, 3)
	if err := errors.Join(up, six.end()); err != nil {
		return err
	}
	one := s.start(ctx, 1)
	killed := s.KillOperator()
	s.say("the operator is killed")
	again := s.StartOperator(ctx)
	down := s.ready(ctx, 1)
	return errors.Join(killed, again, down, one.end())
}

// told wants an Event for each direction and reason.
func (s *story) told(ctx context.Context) error {
	var list corev1.EventList
	if err := s.Client.List(ctx, &list, client.InNamespace("default")); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	reasons := map[string]bool{"(Idle)": false, "(FromZero)": false, "(Demand)": false, "(LowDemand)": false}
	for _, e := range list.Items {
		for r := range reasons {
			if e.Reason == "Scaled" && e.InvolvedObject.Name == name && bytes.Contains([]byte(e.Message), []byte(r)) {
				reasons[r] = true
			}
		}
	}
	for r, seen := range reasons {
		if !seen {
			return fmt.Errorf("no Event Scaled says %s", r)
		}
	}
	return nil
}

// timeline prints each change of the number.
func (s *story) timeline(ctx context.Context) {
	last := ""
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if md, err := s.get(ctx); err == nil && md.Status.Autoscaling != nil {
			a := md.Status.Autoscaling
			if now := fmt.Sprintf("%d wanted, %d ready", a.DesiredReplicas, md.Status.ReadyReplicas); now != last {
				s.say("%s  (%s %s)", now, a.Reason, a.Message)
				last = now
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
