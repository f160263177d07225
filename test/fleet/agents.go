package fleet

import (
	"cmp"
	"context"
	"fmt"

	"metalfleet.dev/metalfleet/test/process"
)

// Agent is the agent of one Mac. Every method fails for a Mac that never joined.
type Agent struct {
	fleet *Fleet
	name  string
}

// Agent is that of a Mac, by its name.
func (f *Fleet) Agent(mac string) Agent { return Agent{f, mac} }

// agent is one Mac's program and its folder, which outlives the program.
type agent struct {
	mac     Mac
	state   string
	logs    string // folder
	flags   []string
	program *process.Program
	undo    func() error // what Mac.Disk returned
}

// setProgram sets the build of the agent that is started next.
func (a *agent) setProgram(path string) {
	program, args := a.mac.command(path, a.flags...)
	a.program = process.New("agent-"+a.mac.Name, program, a.logs, args...)
	a.program.Env = a.mac.Env
}

func (f *Fleet) agent(name string) (*agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, ok := f.agents[name]
	if !ok {
		return nil, fmt.Errorf("no Mac %s in this fleet", name)
	}
	return a, nil
}

// SetProgram sets the build of the agent that the Mac starts next, and needs its
// agent not to run; empty is the one in bin.
func (g Agent) SetProgram(path string) error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	if pid := a.program.PID(); pid != 0 {
		return fmt.Errorf("Mac %s: its agent runs as pid %d", g.name, pid)
	}
	a.setProgram(cmp.Or(path, g.fleet.bin("agent")))
	return nil
}

// SetEnv sets the variables of the agent, as "NAME=VALUE", from its next start on.
func (g Agent) SetEnv(env ...string) error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	a.program.SetEnv(env...)
	return nil
}

// Start starts the agent of a Mac that joined before.
func (g Agent) Start() error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	return a.program.Start()
}

// Stop ends the agent with SIGTERM; its engines live on.
func (g Agent) Stop(ctx context.Context) error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	return a.program.Stop(ctx)
}

// Kill ends the agent with SIGKILL; its engines live on.
func (g Agent) Kill() error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	return a.program.Kill()
}

// PID is the process of the agent, or 0.
func (g Agent) PID() (int, error) {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return 0, err
	}
	return a.program.PID(), nil
}

// Engines are the living engines of the Mac.
func (g Agent) Engines() ([]Engine, error) {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return nil, err
	}
	return Engines(a.state)
}

// Sweep ends the engines of a Mac whose agent does not run.
func (g Agent) Sweep(hurry context.Context) error {
	a, err := g.fleet.agent(g.name)
	if err != nil {
		return err
	}
	if pid := a.program.PID(); pid != 0 {
		return fmt.Errorf("Mac %s: its agent runs as pid %d and would start engines again", g.name, pid)
	}
	return Sweep(hurry, a.state)
}
