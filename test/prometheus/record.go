package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
	"golang.org/x/sync/errgroup"
)

const (
	job = "story" // of targets that name no job

	// answerWithin bounds the wait for every target's first answer, and for one
	// more scrape at the end.
	answerWithin = 30 * time.Second
	look         = 20 * time.Millisecond // between two looks at the targets
)

// note is something that happened while it recorded.
type note struct {
	text string
	at   time.Time
}

// recording is what was scraped between two times.
type recording struct {
	db       *tsdb.DB
	from, to time.Time
	interval time.Duration
	notes    []note
	targets  int
}

func (r *recording) close() error { return r.db.Close() }

// readTargets reads groups of targets. None at all is refused.
func readTargets(path string) ([]*targetgroup.Group, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("targets: %w", err)
	}
	var groups []*targetgroup.Group
	if err := json.Unmarshal(b, &groups); err != nil {
		return nil, fmt.Errorf("targets of %s: %w", path, err)
	}
	n := 0
	for i, g := range groups {
		g.Source = fmt.Sprint(i)
		n += len(g.Targets)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s names no target", path)
	}
	return groups, nil
}

// recorder is what a recording needs.
type recorder struct {
	targets  []*targetgroup.Group
	dir      string
	interval time.Duration
	notes    io.Reader
	said     io.Writer
}

// record scrapes from the first answers to the end of the notes.
func record(ctx context.Context, o recorder) (*recording, error) {
	db, err := tsdb.Open(o.dir, promslog.NewNopLogger(), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return nil, fmt.Errorf("storage in %s: %w", o.dir, err)
	}
	r := &recording{db: db, interval: o.interval}
	if err := r.record(ctx, o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return r, nil
}

func (r *recording) record(ctx context.Context, o recorder) error {
	manager, err := r.manager(o.interval)
	if err != nil {
		return err
	}
	given := make(chan map[string][]*targetgroup.Group, 1)
	given <- map[string][]*targetgroup.Group{job: o.targets}
	for _, g := range o.targets {
		r.targets += len(g.Targets)
	}
	var scrapes errgroup.Group
	scrapes.Go(func() error { return manager.Run(given) })
	err = r.follow(ctx, manager, o)
	manager.Stop()
	return errors.Join(err, scrapes.Wait())
}

func (r *recording) manager(interval time.Duration) (*scrape.Manager, error) {
	m, err := scrape.NewManager(&scrape.Options{DiscoveryReloadInterval: model.Duration(look)}, nil, nil, nil, r.db, client.NewRegistry())
	if err != nil {
		return nil, fmt.Errorf("scrapes: %w", err)
	}
	every := model.Duration(interval)
	c, err := config.Load(fmt.Sprintf("global: {scrape_interval: %s, scrape_timeout: %s}\nscrape_configs: [{job_name: %s}]\n", every, every, job), promslog.NewNopLogger())
	if err != nil {
		return nil, fmt.Errorf("scrapes every %s: %w", interval, err)
	}
	if err := m.ApplyConfig(c); err != nil {
		return nil, fmt.Errorf("scrapes every %s: %w", interval, err)
	}
	return m, nil
}

// follow waits for every target's first answer, takes notes to their end, and
// then waits for two more scrapes: what happened last is counted by somebody who
// has to hear of it first, and a rate wants a step behind its last sample.
func (r *recording) follow(ctx context.Context, m *scrape.Manager, o recorder) error {
	if err := r.await(ctx, m, func(t *scrape.Target) bool { return t.Health() == scrape.HealthGood }); err != nil {
		return fmt.Errorf("a target does not answer: %w", err)
	}
	r.from = time.Now()
	if _, err := fmt.Fprintln(o.said, "recording"); err != nil {
		return err
	}
	lines, ended := make(chan string), make(chan error, 1)
	go func() { // it ends with its reader, which is the program's standard input
		s := bufio.NewScanner(o.notes)
		for s.Scan() {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
			}
		}
		ended <- s.Err()
	}()
	for {
		select {
		case text := <-lines:
			r.notes = append(r.notes, note{text, time.Now()})
		case err := <-ended:
			last := time.Now().Add(o.interval)
			err = errors.Join(err, r.await(ctx, m, func(t *scrape.Target) bool { return t.LastScrape().After(last) }))
			r.to = time.Now().Add(o.interval)
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// await waits until it is so of every target.
func (r *recording) await(ctx context.Context, m *scrape.Manager, so func(*scrape.Target) bool) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		n, waiting := 0, []string{}
		for _, of := range m.TargetsActive() {
			for _, t := range of {
				n++
				if !so(t) {
					waiting = append(waiting, fmt.Sprintf("%s (%v)", t.URL(), t.LastError()))
				}
			}
		}
		if n == r.targets && len(waiting) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			sort.Strings(waiting)
			return fmt.Errorf("%d of %d targets are known; still waiting for %q: %w", n, r.targets, waiting, context.Cause(ctx))
		}
	}
}
