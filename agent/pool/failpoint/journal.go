package failpoint

import "metalfleet.dev/metalfleet/agent/journal"

// watchedJournal passes points before and after a change becomes durable.
type watchedJournal struct {
	Journal
	at func(point string)
}

// Update recognises the points from what the change does to the state.
func (w *watchedJournal) Update(change func(*journal.State)) error {
	return w.watch(w.Journal.Update, change)
}

// Release does the same.
func (w *watchedJournal) Release(change func(*journal.State)) error {
	return w.watch(w.Journal.Release, change)
}

func (w *watchedJournal) watch(write func(func(*journal.State)) error, change func(*journal.State)) error {
	var done []step
	err := write(func(s *journal.State) {
		before := summaryOf(s)
		change(s)
		done = stepsBetween(before, summaryOf(s))
		for _, d := range done {
			if d.before != "" {
				w.at(d.before)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, d := range done {
		w.at(d.after)
	}
	return nil
}

// step is one that a change makes durable, with the points around it.
type step struct{ before, after string }

// load is one engine of one replica and epoch.
type load struct {
	uid         string
	epoch, load int64
}

// summary is as much of a state as the points depend on.
type summary struct {
	engines  map[load]engine
	reclaim  string // the newest
	released int
}

type engine struct{ identified, stopped, measured bool }

func summaryOf(s *journal.State) summary {
	sum := summary{engines: map[load]engine{}}
	for _, e := range s.Engines {
		sum.engines[load{e.ReplicaUID, e.Epoch, e.Load}] = engine{
			identified: e.PID != 0, stopped: e.Stop != nil, measured: e.Stop != nil && e.Stop.Footprint != nil,
		}
	}
	if len(s.Reclaims) > 0 {
		sum.reclaim = s.Reclaims[0].ID
	}
	for _, r := range s.Replicas {
		if r.Released {
			sum.released++
		}
	}
	return sum
}

func stepsBetween(before, after summary) (steps []step) {
	for k, now := range after.engines {
		was, known := before.engines[k]
		if !known && !now.identified {
			steps = append(steps, step{LoadBegun, LoadRecorded})
		}
		if known && !was.identified && now.identified {
			steps = append(steps, step{LoadStarted, LoadIdentified})
		}
		if !was.stopped && now.stopped {
			steps = append(steps, step{UnloadBegun, UnloadRecorded})
		}
		if !was.measured && now.measured {
			steps = append(steps, step{UnloadDrained, UnloadMeasured})
		}
	}
	if after.reclaim != before.reclaim {
		steps = append(steps, step{ExitSettled, ExitRecorded})
	}
	if after.released > before.released {
		steps = append(steps, step{"", Released})
	}
	return steps
}
