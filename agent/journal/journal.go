// Package journal is the agent's state that survives a restart: the last known
// orders, the engines that run, what is remembered of each replica, and what
// was freed.
//
// It owns one file, written whole, synced and renamed at every change, so that
// a crash leaves the old state or the new one and never half of either. It
// refuses a file it does not understand (of a newer version, or damaged): that
// one is set aside under another name and the fact is reported, because an
// agent that forgot is still better than one that does not start. A second file is
// a reserve of disk space: a change that gives something back is written even if
// the disk is full. It decides nothing.
//
// Start reading at State, then Journal.Update and Journal.Release.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Version of the file's layout. A reader understands this one and older ones.
const Version = 1

// MaxReclaims is how many reclaims are remembered.
const MaxReclaims = 16

const fileName = "journal.json"

// State is everything that is remembered.
type State struct {
	// Version of the layout.
	Version int `json:"version"`
	// Desired state as last read; nil before the first.
	Desired *Desired `json:"orders,omitempty"`
	// Engines that were started and not yet seen to end.
	Engines []Engine `json:"engines,omitempty"`
	// Replicas that orders name or named.
	Replicas []Replica `json:"replicas,omitempty"`
	// Reclaims, newest first, at most MaxReclaims.
	Reclaims []v1alpha1.Reclaim `json:"reclaims,omitempty"`
	// FreedBytesTotal over all reclaims since the journal began.
	FreedBytesTotal int64 `json:"freedBytesTotal,omitempty"`
	// IndeterminateReclaims counts those whose effect on the host could not be attributed.
	IndeterminateReclaims int64 `json:"indeterminateReclaims,omitempty"`
	// CacheCleared is the last order to clear caches that was carried out.
	CacheCleared *v1alpha1.CacheCleared `json:"cacheCleared,omitempty"`
	// Unsettled: an engine ended uncleanly, and the host's memory was not found
	// in order twice since.
	Unsettled bool `json:"unsettled,omitempty"`
	// Wired is what was found of wired memory since the machine started; nil:
	// nothing yet.
	Wired *Wired `json:"wired,omitempty"`
}

// Wired is the evidence about wired memory that no process owns, in bytes; see
// memory.Evidence.
type Wired struct {
	// Boot of the machine that the figures are of.
	Boot      string `json:"boot"`
	Baseline  int64  `json:"baseline"`
	Left      int64  `json:"left,omitempty"`
	Elsewhere int64  `json:"elsewhere,omitempty"`
	Stranded  bool   `json:"stranded,omitempty"`
}

// Desired is the desired state of this Mac, as read from its MacNode and
// MacAssignment and checked.
type Desired struct {
	// UID of the MacNode that was read; another one knows nothing of this Mac.
	UID string `json:"uid,omitempty"`
	// Generation of the MacNode.
	Generation int64 `json:"generation"`
	// Memory policy of the administrator.
	Memory v1alpha1.MacMemoryPolicy `json:"memory"`
	// Assignments that passed their checks.
	Assignments []v1alpha1.Assignment `json:"assignments,omitempty"`
	// PinnedWeights are digests of models whose files stay on the disk.
	PinnedWeights []string `json:"pinnedWeights,omitempty"`
	// Settings that passed their checks, and what is to be said of the others.
	Settings        v1alpha1.AgentSettings `json:"settings"`
	SettingsRefused string                 `json:"settingsRefused,omitempty"`
	// Class of the Mac, with those of its settings that passed the checks; nil: none.
	Class *v1alpha1.AssignedClass `json:"class,omitempty"`
	// ClearCache is the last order to clear caches; nil: there is none.
	ClearCache *v1alpha1.CacheClear `json:"clearCache,omitempty"`
	// Inspections that passed their checks.
	Inspections []v1alpha1.Inspection `json:"inspections,omitempty"`
	// Agent that this Mac is to run; nil: the one that runs. It is followed only
	// as long as it is fresh, so no journal keeps it.
	Agent *v1alpha1.AgentOrder `json:"-"`
	// Invalid orders are neither followed nor taken as withdrawn.
	Invalid []InvalidAssignment `json:"invalid,omitempty"`
}

// InvalidAssignment is an assignment that cannot be followed.
type InvalidAssignment struct {
	ReplicaUID string `json:"replicaUID"`
	Epoch      int64  `json:"epoch"`
	Message    string `json:"message"`
}

// Engine is a process that was started for a replica. It is written before the
// process starts, with PID 0, so that no crash can lose a process.
type Engine struct {
	ReplicaUID string `json:"replicaUID"`
	Epoch      int64  `json:"epoch"`
	// Load counts the engines started for this epoch, from 1.
	Load int64 `json:"load"`
	// Namespace and Name of the replica, for its reclaim.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// PID and StartTime together name the process; see agent/pool/process.
	PID       int    `json:"pid,omitempty"`
	StartTime string `json:"startTime,omitempty"`
	// Config it was started with; Config.Hash is what it says in Hello.
	Config wire.Config `json:"config"`
	// Socket it listens on.
	Socket string `json:"socket"`
	// Reserved bytes in the ledger.
	Reserved int64 `json:"reserved"`
	// DrainSeconds that its requests may go on after an order to drain.
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// LastUse is the end of its last request, some seconds early; nil: not known.
	LastUse *time.Time `json:"lastUse,omitempty"`
	// Stop is set once the engine was asked to end.
	Stop *Stop `json:"stop,omitempty"`
}

// Stop says why and when an engine was asked to end, and what it held then.
type Stop struct {
	Reason v1alpha1.ReclaimReason `json:"reason"`
	Since  time.Time              `json:"since"`
	// Footprint just before; nil while requests still finish.
	Footprint *int64 `json:"footprint,omitempty"`
}

// Replica is what is remembered of one replica and epoch.
type Replica struct {
	ReplicaUID string `json:"replicaUID"`
	Epoch      int64  `json:"epoch"`
	// Loads counts the engines started so far.
	Loads int64 `json:"loads,omitempty"`
	// Crashes are the times of the latest failed loads and crashes.
	Crashes []time.Time `json:"crashes,omitempty"`
	// Restarts counts all crashes and failed loads.
	Restarts int32 `json:"restarts,omitempty"`
	// LastFailure is what the last of them was for.
	LastFailure *v1alpha1.EngineFailure `json:"lastFailure,omitempty"`
	// Refused is why it was not admitted, or failed for good; final for that replica.
	Refused *Refusal `json:"refused,omitempty"`
	// Freed so far.
	Freed v1alpha1.Freed `json:"freed"`
	// Released is true once it was drained and everything was given back.
	Released bool `json:"released,omitempty"`
}

// Refusal is a final answer to an order.
type Refusal struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// maxReason bounds a reason, as the API does.
const maxReason = 64

// Bounded returns r with texts that are short enough to be kept. An engine, a model's
// file or a source may have made them.
func (r Refusal) Bounded() Refusal {
	return Refusal{Reason: excerpt.Of(r.Reason, maxReason), Message: excerpt.Message(r.Message)}
}

// Journal holds the state in memory and on disk.
type Journal struct {
	path     string
	setAside string

	mu    sync.Mutex // guards state and the file
	state State
}

// errVersion means that a newer program wrote the journal.
var errVersion = errors.New("journal has a newer version")

// Open reads the journal in dir, or begins one. A file that cannot be
// understood is renamed; SetAside then names it.
func Open(dir string, now time.Time) (*Journal, error) {
	j := &Journal{path: filepath.Join(dir, fileName), state: State{Version: Version}}
	removeUnfinished(j.path)
	b, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	state, err := decode(b)
	if err != nil {
		j.setAside = fmt.Sprintf("%s.damaged-%d", j.path, now.Unix())
		if err := os.Rename(j.path, j.setAside); err != nil {
			return nil, fmt.Errorf("set damaged journal aside: %w", err)
		}
		return j, nil
	}
	j.state = state
	return j, nil
}

func decode(b []byte) (State, error) {
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("decode journal: %w", err)
	}
	if s.Version > Version {
		return State{}, fmt.Errorf("%w: %d, this program supports up to %d", errVersion, s.Version, Version)
	}
	for i := range s.Replicas {
		s.Replicas[i].bound()
	}
	if s.Version < 1 || s.FreedBytesTotal < 0 || s.IndeterminateReclaims < 0 {
		return State{}, fmt.Errorf("decode journal: version %d, %d bytes freed", s.Version, s.FreedBytesTotal)
	}
	return s, nil
}

// SetAside is the name that a file which could not be understood has now, or "".
func (j *Journal) SetAside() string { return j.setAside }

// Snapshot is a deep copy of the state.
func (j *Journal) Snapshot() State { return clone(j.View()) }

// View is the state itself, which a change replaces as a whole. Callers may not change what it
// points to. A copy of the assignments that a Mac may have takes tens of milliseconds.
func (j *Journal) View() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state
}

// Update changes the state and returns once it is on disk. When it cannot be
// written, the state stays what it was. It waits for the disk, so nothing that
// serves requests calls it.
func (j *Journal) Update(change func(*State)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.update(change, func(b []byte) error {
		err := replaceFile(j.path, b)
		if err == nil {
			keepReserve(j.reserve(), len(b))
		}
		return err
	})
}

// Follow puts a desired state into force and returns once it is on disk. When it cannot
// be written it is in force all the same, and the next Update that succeeds stores it.
func (j *Journal) Follow(d Desired) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.update(func(s *State) { s.Desired = &d }, j.release)
	if err != nil {
		j.state.Desired = &d
	}
	return err
}

// update changes the state if write stores it; the caller holds mu.
func (j *Journal) update(change func(*State), write func([]byte) error) error {
	next := clone(j.state)
	change(&next)
	if len(next.Reclaims) > MaxReclaims {
		next.Reclaims = next.Reclaims[:MaxReclaims]
	}
	b, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode journal: %w", err)
	}
	if err := write(b); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.state = next
	return nil
}

// clone copies by way of the encoding that is stored anyway, so that a copy
// can hold nothing that a restart would lose.
func clone(s State) State {
	b, err := json.Marshal(s)
	if err != nil {
		panic("journal: state holds only plain data: " + err.Error())
	}
	var c State
	if err := json.Unmarshal(b, &c); err != nil {
		panic("journal: own encoding is readable: " + err.Error())
	}
	return c
}

// unfinished is the pattern of the temporary files of replaceFile.
func unfinished(path string) string { return "." + filepath.Base(path) + ".*" }

// removeUnfinished removes what agents left that were killed while they wrote.
func removeUnfinished(path string) {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), unfinished(path)))
	if err != nil {
		return // the folder's name is a pattern of its own
	}
	for _, name := range left {
		_ = os.Remove(name) // it takes space, and the next start tries again
	}
}

// replaceFile writes a temporary file, syncs it, renames it over path and
// syncs the folder.
func replaceFile(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, unfinished(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
