// Package clients has the official clients of the OpenAI and Anthropic APIs, each
// at a pinned version, send every row of the conformance table to a gateway and
// directly to an agent of a real system with tiny models. Rows about API keys go to
// a gateway that requires them.
//
// Every client must play every row that is meant for it, at both doors, and values
// that the table marks as equal must be the same for all clients. A client that is
// not installed fails the test. Rows and their judgement belong to package table;
// what a client does is in its runner in sdk and openaigo.
//
// The test carries the build tag oracle (make test-clients). Start reading at play.
package clients

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/oracle/clients/table"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

// options are what the test's flags select.
type options struct {
	root, installed, only, client string
	verbose                       bool
}

func run(ctx context.Context, o options) error {
	rows, err := table.Rows()
	if err != nil {
		return err
	}
	return tinyfleet.With(ctx, o.root, filepath.Join(".run", "clients-failed"), func(ctx context.Context, w *tinyfleet.World) error {
		return playAll(ctx, o, rows, w)
	})
}

// playAll has each client play the table at each door.
func playAll(ctx context.Context, o options, rows []table.Row, w *tinyfleet.World) error {
	s := &stage{options: o, same: map[string]string{}}
	keyed, keys, err := w.Keyed(ctx)
	if err != nil {
		return err
	}
	names := w.Names()
	maps.Copy(names, keys)
	var errs []error
	for _, c := range table.Clients() {
		if o.client != "" && o.client != c.Name {
			continue
		}
		for _, d := range append(w.Doors(), keyed) {
			began := time.Now()
			played, failed := s.play(ctx, c, d, rows, names)
			fmt.Printf("   %-22s %-20s %3d rows, %d failed, %.1f s\n", c.Name, d.Name, played, len(failed), time.Since(began).Seconds())
			errs = append(errs, failed...)
			if o.only == "" {
				errs = append(errs, enough(rows, c, d, played))
			}
			if ctx.Err() != nil {
				return errors.Join(append(errs, context.Cause(ctx))...)
			}
		}
	}
	return errors.Join(errs...)
}

// enough fails where a client played fewer rows than the table has for it.
func enough(rows []table.Row, c table.Client, d tinyfleet.Door, played int) error {
	want := 0
	for _, r := range rows {
		if r.For(c) && r.Keys == d.Keys {
			want++
		}
	}
	if played != want || want == 0 {
		return fmt.Errorf("%s, %s: %d rows were played, the table has %d", c.Name, d.Name, played, want)
	}
	return nil
}

// stage is what rows are played on.
type stage struct {
	options
	// same has what the first client got of values that all must get.
	same map[string]string
}

// play has one client play its rows at one door. A row counts as played when its
// last step had a reply.
func (s *stage) play(ctx context.Context, c table.Client, d tinyfleet.Door, rows []table.Row, names map[string]any) (played int, failed []error) {
	r, err := startRunner(ctx, s.options, c, d)
	if err != nil {
		return 0, []error{err}
	}
	for _, row := range rows {
		if !row.For(c) || row.Keys != d.Keys || !strings.Contains(row.Name, s.only) {
			continue
		}
		over, err := s.row(r, c, row, names)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s, %s, row %q: %w", c.Name, d.Name, row.Name, err))
		}
		if !over {
			break // the runner is gone
		}
		played++
	}
	return played, append(failed, r.end()...)
}

// row plays one row; over is true if the runner responded.
func (s *stage) row(r *runner, c table.Client, row table.Row, names map[string]any) (over bool, err error) {
	kept := map[string]any{}
	for k, v := range names {
		kept[k] = v
	}
	for i, step := range row.Steps {
		args, err := table.Filled(map[string]any(step.Args), kept)
		if err != nil {
			return true, err
		}
		extra, err := table.Filled(map[string]any(step.Extra), kept)
		if err != nil {
			return true, err
		}
		key, err := table.Filled(step.Key, kept)
		if err != nil {
			return true, err
		}
		reply, err := r.ask(step.Call, key, args, extra)
		if err != nil {
			return false, err
		}
		if s.verbose {
			fmt.Printf("      %s %d %s: %s\n", row.Name, i, step.Call, show(reply))
		}
		if err := table.Judge(c.Wants(step.Want), reply, kept); err != nil {
			return true, fmt.Errorf("step %d, %s: %w", i, step.Call, err)
		}
		for name, path := range step.Keep {
			got := table.At(reply, path)
			if len(got) == 0 {
				return true, fmt.Errorf("step %d: nothing is at %s, to keep", i, path)
			}
			kept[name] = got[0]
		}
		if i == len(row.Steps)-1 {
			return true, s.alike(row, reply)
		}
	}
	return true, nil
}

// alike compares what all clients must get alike with what the first one got.
func (s *stage) alike(row table.Row, reply any) error {
	for _, path := range row.Same {
		got, key := show(table.At(reply, path)), row.Name+" "+path
		if first, ok := s.same[key]; ok && first != got {
			return fmt.Errorf("%s is %s, and was %s", path, got, first)
		}
		s.same[key] = got
	}
	return nil
}
