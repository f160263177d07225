package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

// Layout of the state file. A program that meets a newer one refuses it.
const Layout = 1

// Build is an agent that an archive brought.
type Build struct {
	Version string `json:"version"`
	// SHA256 of the archive, which names its folder.
	SHA256 string `json:"sha256"`
	// Files are its programs and libraries as they were unpacked; none where an
	// older agent unpacked them.
	Files integrity.Files `json:"files,omitempty"`
}

// Trial is a build that has to prove itself.
type Trial struct {
	Build
	Attempt int64 `json:"attempt"`
	// From is the version that ran before.
	From string `json:"from"`
	// Starts so far; counted before each.
	Starts int `json:"starts"`
}

// State is what is remembered of upgrades, by whichever version runs.
type State struct {
	Layout int `json:"layout"`
	// Base is the version of the installed program, and BasePath where it lies.
	Base     string `json:"base"`
	BasePath string `json:"basePath"`
	// Current runs in place of the installed program; nil: that one runs itself.
	Current *Build `json:"current,omitempty"`
	// Trial in progress, if any.
	Trial *Trial `json:"trial,omitempty"`
	// Last upgrade, as it is reported.
	Last *v1alpha1.AgentUpgrade `json:"last,omitempty"`
}

// confirmed is the state after a trial that went well.
func (s State) confirmed(now time.Time) State {
	t := s.Trial
	s.Current, s.Trial = &t.Build, nil
	s.Last = t.report(v1alpha1.UpgradeSucceeded, "", now)
	return s
}

// rolledBack is the state after one that did not.
func (s State) rolledBack(why string, now time.Time) State {
	s.Last = s.Trial.report(v1alpha1.UpgradeRolledBack, why, now)
	s.Trial = nil
	return s
}

func (t *Trial) report(p v1alpha1.AgentUpgradePhase, message string, now time.Time) *v1alpha1.AgentUpgrade {
	return &v1alpha1.AgentUpgrade{From: t.From, To: t.Version, SHA256: t.SHA256, Attempt: t.Attempt, Phase: p,
		Message: excerpt.Message(message), Time: metav1.NewTime(now.Truncate(time.Second))}
}

// Folder is where upgrades are kept, in an agent's state folder.
type Folder struct{ dir string }

// In is the folder of an agent with that state folder.
func In(state string) Folder { return Folder{filepath.Join(state, "upgrade")} }

// versions holds one folder for each build.
func (f Folder) versions() string { return filepath.Join(f.dir, "versions") }

// of is the folder of a build.
func (f Folder) of(sha256 string) string {
	return filepath.Join(f.versions(), sha256[:min(16, len(sha256))])
}

// agent is the program of a build.
func (f Folder) agent(b Build) string { return filepath.Join(f.of(b.SHA256), "agent") }

// unchanged compares a build with what was unpacked.
func (f Folder) unchanged(b Build) error {
	if b.Files == nil {
		return nil
	}
	return b.Files.Check(f.of(b.SHA256))
}

// errLayout means that a newer program wrote the state.
var errLayout = errors.New("state of upgrades has a newer layout")

// Load reads the state; none is the zero state.
func (f Folder) Load() (State, error) {
	b, err := os.ReadFile(filepath.Join(f.dir, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return State{Layout: Layout}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("read state of upgrades: %w", err)
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("decode state of upgrades: %w", err)
	}
	if s.Layout > Layout {
		return State{}, fmt.Errorf("%w: %d, this program supports up to %d", errLayout, s.Layout, Layout)
	}
	return s, nil
}

// setAside renames a state that cannot be understood.
func (f Folder) setAside() error {
	path := filepath.Join(f.dir, "state.json")
	if err := os.Rename(path, path+".damaged"); err != nil {
		return fmt.Errorf("set damaged state of upgrades aside: %w", err)
	}
	return nil
}

// Update changes the state on disk, whole and synced. Agent and launcher both
// do, so it locks.
func (f Folder) Update(change func(State) State) error {
	if err := os.MkdirAll(f.versions(), 0o700); err != nil {
		return fmt.Errorf("create folder of upgrades: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(f.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock state of upgrades: %w", err)
	}
	defer lock.Close() // and unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock state of upgrades: %w", err)
	}
	s, err := f.Load()
	if err != nil {
		return err
	}
	s = change(s)
	s.Layout = Layout
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state of upgrades: %w", err)
	}
	if err := f.write(b); err != nil {
		return fmt.Errorf("write state of upgrades: %w", err)
	}
	return nil
}

func (f Folder) write(b []byte) error {
	path := filepath.Join(f.dir, "state.json")
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(f.dir)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
