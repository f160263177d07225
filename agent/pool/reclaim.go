package pool

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// collect reclaims an engine after its observed exit: it checks the host, writes
// the reclaim to the journal once, and only then frees the entry.
func (lc *lifecycle) collect(e *entry, g *engine) {
	lc.awaitShutdown(g)
	now := time.Now()
	var how ending
	lc.read(func() {
		how = g.ending(now)
		if g.stop == nil { // unexpected: the host was not measured just before
			g.stop = &stopping{reason: how.reason, since: now, before: lc.mac.last(), alone: lc.alone(g)}
		}
		if g.stop.kill != nil {
			g.stop.kill() // nothing waits any more
		}
		e.state, g.state = Exited, Exited
		lc.gate.exited(unclean(how.exit))
	})
	lc.pollNow() // the memory is measured before anything else is started
	check := lc.gate.settle(g, how.freed)
	r := how.reclaim(g, check, now)
	g.files.remove()
	lc.boundLog(g)
	lc.recordReclaim(e, r, g.failureOf(r), now, func() {
		lc.owner.ended(e, r, g.failureOf(r), now)
		lc.owner.vacated(e, now) // only now may another be started
	}, func() {
		lc.Log.Info("Engine ended", "ModelReplica", r.Namespace+"/"+r.Name, "load", r.Load, "reason", r.Reason, "exit", r.Exit, "freedBytes", orUnknown(how.freed))
		lc.pollNow() // an unload always ends with a poll
	})
}

// recordReclaim writes a reclaim down, and the failure that it counts as, if it
// does. Once that is on disk it is counted, settle runs under the lock, and the
// reclaim is reported. If the pool ends before that, the next agent finds the
// process gone.
func (lc *lifecycle) recordReclaim(e *entry, r v1alpha1.Reclaim, why *journal.Refusal, now time.Time, settle, then func()) {
	freed, indeterminate := int64(0), int64(0)
	if r.FreedBytes != nil {
		freed = *r.FreedBytes
	}
	if r.HostCheck == v1alpha1.HostCheckIndeterminate {
		indeterminate = 1
	}
	unsettled := false
	lc.recorder.record(func(s *journal.State) {
		s.DropEngine(r.ReplicaUID, r.Epoch, r.Load)
		s.Reclaims = prepend(s.Reclaims, r)
		s.FreedBytesTotal += freed
		s.IndeterminateReclaims += indeterminate
		lc.read(func() {
			unsettled = lc.gate.unsettled() // what it left is found by the next poll
			s.Unsettled = unsettled
			e.persist(s)
			replica := s.Replica(r.ReplicaUID, r.Epoch)
			replica.Freed = addFreed(e.freed, r)
			if why != nil {
				f := e.failed(*why, now)
				replica.Crashes, replica.LastFailure, replica.Restarts = f.crashes, f.last, e.restarts+1
				if f.refused != nil {
					replica.Refused = f.refused
				}
			}
		})
	}, func() {
		lc.change(func() {
			e.freed = addFreed(e.freed, r)
			lc.reclaims = prepend(lc.reclaims, r)
			lc.freedTotal += freed
			lc.indeterminate += indeterminate
			lc.gate.noteUnsettled(unsettled)
			settle()
		})
		lc.Reclaimed(r)
		lc.replan()
		then()
	})
}

// awaitShutdown waits for the return of a Shutdown that is under way: the answer and
// the end of the process come together, and how it ended depends on both. The
// connection is closed, so it returns at once.
func (lc *lifecycle) awaitShutdown(g *engine) {
	var returned chan struct{}
	lc.read(func() {
		if g.stop != nil && g.stop.rung == rungShutdown {
			returned = g.stop.returned
		}
	})
	if returned == nil {
		return
	}
	select {
	case <-returned:
	case <-lc.life.Done():
	}
}

// unclean reports whether the host's memory must be checked before the next start.
func unclean(x v1alpha1.ExitKind) bool {
	return x == v1alpha1.ExitKilled || x == v1alpha1.ExitCrashed || x == v1alpha1.ExitUnknown
}

// ending is how an engine ended, as far as known.
type ending struct {
	reason v1alpha1.ReclaimReason
	exit   v1alpha1.ExitKind
	freed  *int64
	since  time.Time
}

// ending derives it; the caller holds registry.mu and the process has ended.
func (g *engine) ending(now time.Time) ending {
	if asked := g.record.Stop; g.stop == nil && asked != nil { // by an earlier agent, which measured it
		return ending{reason: asked.Reason, exit: v1alpha1.ExitUnknown, since: asked.Since, freed: cmp.Or(asked.Footprint, g.held())}
	}
	if g.stop == nil {
		end := ending{reason: v1alpha1.ReclaimCrashed, exit: v1alpha1.ExitCrashed, since: now, freed: g.held()}
		if g.state != Ready {
			end.reason = v1alpha1.ReclaimLoadFailed
		}
		return end
	}
	end := ending{reason: g.stop.reason, since: g.stop.since, freed: cmp.Or(g.stop.footprint, g.held())}
	end.exit = exitKind(g.stop.rung, g.stop.answered, g.proc.Exit())
	return end
}

// exitKind is how an engine ended that was asked to end.
func exitKind(r rung, answered bool, e process.Exit) v1alpha1.ExitKind {
	switch {
	case r == rungKill:
		return v1alpha1.ExitKilled
	case r == rungTerm:
		return v1alpha1.ExitTerminated
	case r == rungDrain:
		return v1alpha1.ExitCrashed
	case e.Known && e.Code == 0:
		return v1alpha1.ExitClean
	case e.Known:
		return v1alpha1.ExitCrashed
	case answered: // the exit code of an adopted process is unknown; it confirmed Shutdown
		return v1alpha1.ExitClean
	}
	return v1alpha1.ExitUnknown
}

func (end ending) reclaim(g *engine, check v1alpha1.HostCheck, now time.Time) v1alpha1.Reclaim {
	return v1alpha1.Reclaim{
		ID:        fmt.Sprintf("%s/%d/%d", g.key.UID, g.key.Epoch, g.load),
		Namespace: g.record.Namespace, Name: g.record.Name, ReplicaUID: g.key.UID, Epoch: g.key.Epoch, Load: g.load,
		Reason: end.reason, Exit: end.exit, FreedBytes: end.freed, HostCheck: check,
		DurationMilliseconds: max(0, now.Sub(end.since).Milliseconds()), Time: metav1.NewMicroTime(now),
	}
}

// failureOf is what an end counts as that was the engine's fault; nil where it
// was not.
func (g *engine) failureOf(r v1alpha1.Reclaim) *journal.Refusal {
	why := journal.Refusal{}
	switch r.Reason {
	case v1alpha1.ReclaimCrashed:
		why = journal.Refusal{Reason: v1alpha1.ReasonEngineCrashed, Message: fmt.Sprintf("the engine exited unexpectedly (%s)", describeExit(g.proc.Exit()))}
	case v1alpha1.ReclaimLoadFailed:
		why = journal.Refusal{Reason: v1alpha1.ReasonLoadFailed, Message: fmt.Sprintf("the engine exited while loading (%s)", describeExit(g.proc.Exit()))}
	case v1alpha1.ReclaimOverLimit:
		return &journal.Refusal{Reason: string(r.Reason), Message: "the engine used more memory than its own limit allows"}
	default:
		return nil
	}
	if g.failure != nil {
		why = *g.failure
	}
	return &why
}

func describeExit(x process.Exit) string {
	switch {
	case !x.Known:
		return "exit status unknown: the engine was adopted"
	case x.Signal != 0:
		return "signal " + x.Signal.String()
	}
	return fmt.Sprintf("exit code %d", x.Code)
}

// orUnknown is a figure for a log line, which would show a pointer's address.
func orUnknown(n *int64) any {
	if n == nil {
		return "unknown"
	}
	return *n
}

// addFreed makes r the last reclaim of a replica.
func addFreed(f v1alpha1.Freed, r v1alpha1.Reclaim) v1alpha1.Freed {
	at := metav1.NewTime(r.Time.Time)
	next := v1alpha1.Freed{Bytes: r.FreedBytes, TotalBytes: f.TotalBytes, Reason: r.Reason, HostCheck: r.HostCheck, Time: &at}
	if r.FreedBytes != nil {
		next.TotalBytes += *r.FreedBytes
	}
	return next
}

// prepend puts the newest reclaim first and keeps the last ones.
func prepend(old []v1alpha1.Reclaim, r v1alpha1.Reclaim) []v1alpha1.Reclaim {
	next := append([]v1alpha1.Reclaim{r}, old...)
	return next[:min(len(next), journal.MaxReclaims)]
}
