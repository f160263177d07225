package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/agentupgrade/turn"
	"metalfleet.dev/metalfleet/test/fleet"
)

// test is a fleet of two Macs under streams.
type test struct {
	*fleet.Fleet
	releases *releases
	macs     []string
	attempt  int64
}

// bad is a build that does not work.
type bad struct{ version, mode, says string }

// deploy serves the model from both Macs.
func (t *test) deploy(ctx context.Context) error {
	fmt.Printf("   two replicas, %d streams\n", streams)
	md := fleet.Model{Name: model, File: "story.gguf", Tokens: modelContext, Sequences: streams, CacheTokens: modelContext * streams, DrainSeconds: 60}.Deployment()
	two := int32(2)
	md.Spec.Replicas = &two
	if err := t.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create the deployment: %w", err)
	}
	return t.await(ctx, "both replicas are ready", func(ctx context.Context) error {
		if err := t.Client.Get(ctx, client.ObjectKeyFromObject(md), md); err != nil {
			return err
		}
		if md.Status.ReadyReplicas != 2 {
			return fmt.Errorf("%d are", md.Status.ReadyReplicas)
		}
		return nil
	})
}

func (t *test) await(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 50*time.Millisecond, what, ask)
}

// wish is what an administrator writes with kubectl metalfleet upgrade-agents.
func (t *test) wish(ctx context.Context, version string) error {
	t.attempt++
	drain := int32(120)
	w := turn.Wish{Version: version, Source: t.releases.url(version), SHA256: t.releases.digests[version], Attempt: t.attempt, DrainSeconds: &drain}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, Name: turn.ConfigMapName}, Data: w.Data()}
	err := t.Client.Create(ctx, cm)
	if apierrors.IsAlreadyExists(err) {
		err = t.Client.Update(ctx, cm)
	}
	if err != nil {
		return fmt.Errorf("wish for %s: %w", version, err)
	}
	return nil
}

// good upgrades both Macs to a build that works.
func (t *test) good(ctx context.Context) error {
	engines, err := t.engines()
	if err != nil {
		return err
	}
	s := t.startStreams(ctx)
	watch := t.watchAway(ctx)
	began := time.Now()
	err = errors.Join(t.wish(ctx, goodVersion), t.await(ctx, "both Macs run "+goodVersion, func(ctx context.Context) error {
		for _, name := range t.macs {
			m, err := t.Mac(ctx, name)
			if err != nil {
				return err
			}
			if u := m.Status.AgentUpgrade; m.Status.AgentVersion != goodVersion || u == nil || u.Phase != v1alpha1.UpgradeSucceeded ||
				!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAccepting) ||
				!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAgentCurrent) {
				return fmt.Errorf("%s runs %s, upgrade %+v", name, m.Status.AgentVersion, u)
			}
		}
		return nil
	}))
	took := time.Since(began)
	verdict := errors.Join(err, s.end(), watch(), t.sameEngines(engines))
	fmt.Printf("   the good build on both Macs after %.0f s: %s\n", took.Seconds(), s.String())
	return verdict
}

// bad orders a build that does not work and wants it taken back.
func (t *test) bad(ctx context.Context, b bad) error {
	engines, err := t.engines()
	if err != nil {
		return err
	}
	s := t.startStreams(ctx)
	began := time.Now()
	first := t.macs[0]
	err = errors.Join(t.wish(ctx, b.version), t.await(ctx, first+" is back at "+goodVersion, func(ctx context.Context) error {
		m, err := t.Mac(ctx, first)
		if err != nil {
			return err
		}
		u, c := m.Status.AgentUpgrade, meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentCurrent)
		if u == nil || u.To != b.version || u.Phase != v1alpha1.UpgradeRolledBack || !strings.Contains(u.Message, b.says) || m.Status.AgentVersion != goodVersion ||
			!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAccepting) || c == nil || c.Reason != v1alpha1.ReasonAgentRolledBack {
			return fmt.Errorf("runs %s, upgrade %+v, condition %+v", m.Status.AgentVersion, u, c)
		}
		return nil
	}))
	took := time.Since(began)
	verdict := errors.Join(err, s.end(), t.sameEngines(engines), t.untouched(ctx, b))
	fmt.Printf("   %s (%s) rolled back on %s after %.0f s: %s\n", b.version, b.mode, first, took.Seconds(), s.String())
	return verdict
}

// untouched: the second Mac was not ordered what failed on the first, and the
// failure is an Event.
func (t *test) untouched(ctx context.Context, b bad) error {
	m, err := t.Mac(ctx, t.macs[1])
	if err != nil {
		return err
	}
	if a := m.Spec.Agent; a == nil || a.Version != goodVersion {
		return fmt.Errorf("%s was ordered %+v although %s failed before", m.Name, a, b.version)
	}
	return t.await(ctx, "an Event tells of it", func(ctx context.Context) error {
		var events corev1.EventList
		if err := t.Client.List(ctx, &events, client.InNamespace("default")); err != nil {
			return err
		}
		told := slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == v1alpha1.ReasonAgentRolledBack && e.InvolvedObject.Name == t.macs[0] && strings.Contains(e.Message, b.version)
		})
		if !told {
			return fmt.Errorf("none of %d Events does", len(events.Items))
		}
		return nil
	})
}

// engines are the processes of both Macs.
func (t *test) engines() (pids []int, err error) {
	for _, name := range t.macs {
		list, err := t.MacEngines(name)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			pids = append(pids, e.PID)
		}
	}
	if len(pids) != len(t.macs) {
		return nil, fmt.Errorf("%d engines on %d Macs", len(pids), len(t.macs))
	}
	return pids, nil
}

func (t *test) sameEngines(before []int) error {
	now, err := t.engines()
	if err == nil && !slices.Equal(before, now) {
		err = fmt.Errorf("engines are the processes %v, before they were %v", now, before)
	}
	return err
}

// watchAway looks until it is called, and says whether both Macs were ever
// away at once.
func (t *test) watchAway(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan error, 1)
	go func() {
		both := 0
		_ = fleet.Poll(ctx, 20*time.Millisecond, "both Macs are away", func(ctx context.Context) error {
			away := 0
			for _, name := range t.macs {
				if m, err := t.Mac(ctx, name); err == nil && meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting) {
					away++
				}
			}
			if away == len(t.macs) {
				both++
			}
			return errors.New("looking on")
		})
		if both > 0 {
			seen <- fmt.Errorf("both Macs were away at once, in %d looks", both)
			return
		}
		seen <- nil
	}()
	return func() error { cancel(); return <-seen }
}
