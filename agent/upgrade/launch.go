package upgrade

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

// Environment variables by which the programs of one Mac pass their role. None of
// them reaches an engine.
const (
	roleVariable = "METALFLEET_AGENT_ROLE"
	// roleAgent: be the agent, regardless of the state.
	roleAgent = "agent"
	// roleLauncher: be the launcher of the trial that the state names.
	roleLauncher = "launcher"
	// pipesVariable: two pipes of a launcher were inherited.
	pipesVariable = "METALFLEET_AGENT_LAUNCHED"
	// proveVariable: this start is a trial.
	proveVariable = "METALFLEET_AGENT_TRIAL"
)

// maxStarts of a trial: a power failure may cut one short, but not for ever.
const maxStarts = 3

// trialTime is how long a new agent has to prove itself.
const trialTime = 60 * time.Second

// step is what a program does that was just started.
type step int

const (
	beAgent    step = iota // run here
	beLauncher             // run the trial as a child, and watch it
	become                 // exec the build that proved itself
)

// start decides what a program does first. The installed program, which launchd
// starts, executes a build that passed its trial, unless it was installed after
// that build: then it is newer than all builds in the state folder.
func start(s State, role, own string) step {
	switch {
	case role == roleLauncher && s.Trial != nil:
		return beLauncher
	case role != "" || s.Base != own:
		return beAgent
	case s.Trial != nil:
		return beLauncher
	case s.Current != nil:
		return become
	}
	return beAgent
}

// Program is the running one.
type Program struct {
	Log     logr.Logger
	Folder  Folder
	Version string
	// Path of its file, and Args without its name.
	Path string
	Args []string
	// Trial is how long a trial may take; 0 means trialTime.
	Trial time.Duration
}

// Ended is the exit code of a launcher whose agent has ended.
type Ended int

func (e Ended) Error() string { return fmt.Sprintf("the launched agent exited with code %d", int(e)) }

// Enter is the first call of an agent. It returns in the process that runs the
// agent; the result is nil if no launcher started it. In a launcher it returns
// the error Ended; if another program takes over this process, it does not
// return.
func (p Program) Enter() (*Launched, error) {
	role := os.Getenv(roleVariable)
	in, err := inherit()
	if err != nil {
		return nil, err
	}
	s, err := p.Folder.Load()
	if errors.Is(err, errLayout) {
		return nil, fmt.Errorf("%w; start the newer agent, or remove its folder upgrade", err)
	}
	if err != nil {
		p.Log.Error(err, "The state of upgrades was damaged and has been set aside; running the installed agent")
		return in, p.Folder.setAside()
	}
	if s.Base != "" && role == "" && s.Base != p.Version {
		p.Log.Info("The installed agent has changed; running it", "version", p.Version, "before", s.Base)
		return in, p.Folder.Update(func(s State) State { s.Base, s.Current, s.Trial = "", nil, nil; return s })
	}
	switch start(s, role, p.Version) {
	case beLauncher:
		exit, err := p.launch(s)
		if err != nil {
			return nil, err
		}
		return nil, Ended(exit)
	case become:
		if err = p.Folder.unchanged(*s.Current); err == nil {
			err = p.exec(p.Folder.agent(*s.Current), roleAgent)
		}
		// It is damaged or missing: the installed one is better than none.
		p.Log.Error(err, "Cannot start the upgraded agent; running the installed one", "version", s.Current.Version)
		return in, p.Folder.Update(func(s State) State { s.Current = nil; return s })
	}
	return in, nil
}

// exec replaces this process with another program, which keeps its id and
// children. It returns only on failure.
func (p Program) exec(path, role string) error {
	if err := syscall.Exec(path, append([]string{path}, p.Args...), environ(role)); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

// environ is our environment with one role, and without other variables of this
// start.
func environ(role string, more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == roleVariable || name == pipesVariable || name == proveVariable
	})
	if role != "" {
		env = append(env, roleVariable+"="+role)
	}
	return append(env, more...)
}

// back is the program to return to after a failed trial.
func (p Program) back(s State) string {
	if s.Current == nil {
		return s.BasePath
	}
	if err := p.Folder.unchanged(*s.Current); err != nil {
		p.Log.Error(err, "Not returning to the upgraded agent; running the installed one", "version", s.Current.Version)
		return s.BasePath
	}
	return p.Folder.agent(*s.Current)
}
