package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"metalfleet.dev/metalfleet/agent/power"
)

// exitUpgrade is the exit code by which a launched agent asks for the trial that
// it has recorded.
const exitUpgrade = 75

// endLimit is how long a failed agent has to end by itself.
const endLimit = 5 * time.Second

// readyWord is what an agent on trial writes when it has passed.
var readyWord = []byte("ready")

// child is a launched agent.
type child struct {
	pid   int
	ended chan syscall.WaitStatus
	ready chan struct{}
	// life is held open as long as the launcher lives.
	life *os.File
}

// launch runs trials until one agent stays; then it waits for the end of that
// agent and ends as it did. A trial that fails is taken back, and this process
// becomes the agent from before.
func (p Program) launch(s State) (exit int, err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append(power.Signals(), syscall.SIGTERM, syscall.SIGINT)...)
	defer signal.Stop(signals)
	for {
		if s.Trial == nil {
			return 1, p.exec(p.back(s), roleAgent)
		}
		why := fmt.Sprintf("it was started %d times without passing its trial", s.Trial.Starts)
		if s.Trial.Starts < maxStarts {
			var ended syscall.WaitStatus
			var again bool
			if ended, why, again = p.try(s.Trial, signals); why == "" {
				if !again {
					return codeOf(ended), nil
				}
				if s, err = p.Folder.Load(); err != nil {
					return 1, err
				}
				continue
			}
		}
		return 1, p.rollBack(why)
	}
}

// try runs one trial and returns how the agent ended. An empty why means that it
// passed or was asked to end; again that it asked for another trial.
func (p Program) try(t *Trial, signals <-chan os.Signal) (ended syscall.WaitStatus, why string, again bool) {
	if err := p.Folder.Update(func(s State) State { s.Trial.Starts++; return s }); err != nil {
		return 0, err.Error(), false
	}
	p.Log.Info("Starting the new agent on trial", "version", t.Version, "from", t.From)
	if err := p.Folder.unchanged(t.Build); err != nil {
		return 0, "it cannot be started: " + err.Error(), false
	}
	c, err := p.startChild(t.Build)
	if err != nil {
		return 0, "it cannot be started: " + err.Error(), false
	}
	defer c.life.Close()
	limit := p.Trial
	if limit <= 0 {
		limit = trialTime
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	for proved := false; ; {
		select {
		case <-c.ready:
			proved, c.ready = true, nil
			late.Stop()
			p.Log.Info("The new agent passed its trial", "version", t.Version)
			if err := p.Folder.Update(func(s State) State { return s.confirmed(time.Now()) }); err != nil {
				p.Log.Error(err, "Failed to store the result; the next start tries the agent again")
			}
		case ended := <-c.ended:
			if proved {
				return ended, "", ended.Exited() && ended.ExitStatus() == exitUpgrade
			}
			return ended, "it exited with " + describe(ended) + " before it was ready; see its log", false
		case s := <-signals:
			switch announced := slices.Contains(power.Signals(), s); {
			case announced && !proved: // it takes no requests, and may not handle signals yet
			case announced:
				_ = syscall.Kill(c.pid, s.(syscall.Signal))
			case !proved:
				return c.end(), "", false
			default:
				_ = syscall.Kill(c.pid, syscall.SIGTERM) // it is our child and not waited for yet
			}
		case <-late.C:
			c.end()
			return 0, "it was not ready within " + duration.HumanDuration(limit) + ": the API server received no status and no heartbeat from it", false
		}
	}
}

// startChild starts a build as an agent on trial.
func (p Program) startChild(b Build) (*child, error) {
	readyOurs, readyTheirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	lifeTheirs, lifeOurs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pipe: %w", err), readyOurs.Close(), readyTheirs.Close())
	}
	defer readyTheirs.Close()
	defer lifeTheirs.Close()
	path := p.Folder.agent(b)
	proc, err := os.StartProcess(path, append([]string{path}, p.Args...), &os.ProcAttr{
		Env:   environ(roleAgent, pipesVariable+"=1", proveVariable+"=1"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, readyTheirs, lifeTheirs},
	})
	if err != nil {
		return nil, errors.Join(err, readyOurs.Close(), lifeOurs.Close())
	}
	c := &child{pid: proc.Pid, ended: make(chan syscall.WaitStatus, 1), ready: make(chan struct{}, 1), life: lifeOurs}
	_ = proc.Release() // reap waits for it
	go c.reap()
	go c.listen(readyOurs)
	return c, nil
}

// reap collects every child of this process, the engines that the agent before
// us started among them, until the launched agent ends.
func (c *child) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no child is left, which cannot happen before the agent was reaped
			c.ended <- ws
			return
		case pid == c.pid:
			c.ended <- ws
			return
		}
	}
}

// listen waits for the agent's word.
func (c *child) listen(from *os.File) {
	defer from.Close()
	word, _ := io.ReadAll(io.LimitReader(from, int64(len(readyWord))))
	if bytes.Equal(word, readyWord) {
		c.ready <- struct{}{}
	}
}

// end ends a failed agent and waits for that. Its engines live on.
func (c *child) end() syscall.WaitStatus {
	_ = syscall.Kill(c.pid, syscall.SIGTERM)
	timer := time.NewTimer(endLimit)
	defer timer.Stop()
	select {
	case ended := <-c.ended:
		return ended
	case <-timer.C:
	}
	_ = syscall.Kill(c.pid, syscall.SIGKILL)
	return <-c.ended
}

// rollBack notes why, and becomes the agent from before. It returns only if
// that failed.
func (p Program) rollBack(why string) error {
	p.Log.Info("Rolling back the new agent", "reason", why)
	err := p.Folder.Update(func(s State) State { return s.rolledBack(why, time.Now()) })
	if err != nil {
		p.Log.Error(err, "Failed to store the result")
	}
	s, loadErr := p.Folder.Load()
	if loadErr != nil {
		return errors.Join(err, loadErr)
	}
	return errors.Join(err, p.exec(p.back(s), roleAgent))
}

func describe(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + ws.Signal().String()
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}

// codeOf is the exit code by which a launcher reports how its agent ended.
func codeOf(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
