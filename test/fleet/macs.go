package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// tokenSeconds is the lifetime of the credentials of a fleet's programs: longer
// than a quickstart runs.
const tokenSeconds = 7 * 24 * 3600

// LabelRoom is the label of a Mac by which Model.Mac selects it: its name, unless
// a test changes it.
const LabelRoom = "test/room"

// Mac is a declared Mac.
type Mac struct {
	Name string
	// Chip and Memory as `agent --mac chip=M2Ultra,memory=192Gi` takes them.
	Chip, Memory string
	// Flags are further flags of the agent.
	Flags []string
	// Env has further variables of the agent, as "NAME=VALUE".
	Env []string
	// Address that its agent listens on; empty: 127.0.0.1.
	Address string
	// Inside, if set, wraps a command line so that it runs on the Mac's machine.
	Inside func(program string, args ...string) (string, []string)
	// Disk, if set, prepares the state folder before the Mac joins, and returns what
	// undoes that after the agent has ended.
	Disk func(state string) (undo func() error, err error)
}

// command is a command line on the Mac's machine.
func (m Mac) command(program string, args ...string) (string, []string) {
	if m.Inside == nil {
		return program, args
	}
	return m.Inside(program, args...)
}

// Add adds a Mac to a running fleet and waits until it is ready.
func (f *Fleet) Add(ctx context.Context, m Mac) error {
	if err := f.add(ctx, m); err != nil {
		return err
	}
	return f.WaitMacReady(ctx, m.Name)
}

// add makes the MacNode, as an administrator may, has the Mac join and starts its
// agent.
func (f *Fleet) add(ctx context.Context, m Mac) error {
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{LabelRoom: m.Name}}}
	if err := f.Client.Create(ctx, node); err != nil {
		return fmt.Errorf("MacNode %s: %w", m.Name, err)
	}
	return f.Join(ctx, m)
}

// Join has a Mac join with a token of its own and starts its agent. One that
// joined before, and whose agent was stopped, joins again over its state folder.
func (f *Fleet) Join(ctx context.Context, m Mac) error {
	a := &agent{mac: m, state: filepath.Join(f.dir, m.Name), logs: f.LogDir()}
	if err := os.MkdirAll(a.state, 0o700); err != nil {
		return fmt.Errorf("state of Mac %s: %w", m.Name, err)
	}
	if old, err := f.agent(m.Name); err == nil {
		a.undo = old.undo
	} else if m.Disk != nil {
		if a.undo, err = m.Disk(a.state); err != nil {
			return fmt.Errorf("disk of Mac %s: %w", m.Name, err)
		}
	}
	f.mu.Lock()
	f.agents[m.Name] = a // from here on Stop removes it
	if !slices.Contains(f.order, m.Name) {
		f.order = append(f.order, m.Name)
	}
	f.mu.Unlock()
	if err := f.joinToken(ctx, a); err != nil {
		return fmt.Errorf("Mac %s: %w", m.Name, err)
	}
	port, err := testenv.FreePort()
	if err != nil {
		return err
	}
	a.flags = f.agentFlags(a, port)
	a.setProgram(f.bin("agent"))
	return a.program.Start()
}

// agentFlags are those of every agent, and the Mac's own.
func (f *Fleet) agentFlags(a *agent, port int) []string {
	return append([]string{
		"--name=" + a.mac.Name,
		fmt.Sprintf("--mac=chip=%s,memory=%s", a.mac.Chip, a.mac.Memory),
		"--listen=" + net.JoinHostPort(cmp.Or(a.mac.Address, "127.0.0.1"), strconv.Itoa(port)),
		"--state=" + a.state,
		"--model-root=" + f.options.ModelRoot,
		"--engine=" + f.bin("engine"),
		"--grace=2s",
		"--disk-high-percent=0", // the disk is this machine's
	}, a.mac.Flags...)
}

// joinToken makes a token, as an administrator, and has the Mac join with it.
func (f *Fleet) joinToken(ctx context.Context, a *agent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	server, ca, err := jointoken.Endpoint(f.Env.Config())
	if err != nil {
		return err
	}
	token, _, err := jointoken.Mint(ctx, f.Client, jointoken.Options{Mac: a.mac.Name, Namespace: Namespace, Server: server, CA: ca})
	if err := errors.Join(err, f.Operator.Failed()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, f.bin("agent"), "join", "--token-file=-", "--state="+a.state)
	cmd.Stdin = strings.NewReader(token)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("agent join: %w: %s", err, out)
	}
	return nil
}

// WaitMacReady waits until the operator has heard from the Mac's agent.
func (f *Fleet) WaitMacReady(ctx context.Context, name string) error {
	a, err := f.agent(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	var died error
	err = Poll(ctx, 20*time.Millisecond, "Mac "+name+" is ready", func(ctx context.Context) error {
		if died = a.program.Failed(); died != nil {
			return nil
		}
		node := &v1alpha1.MacNode{}
		if err := f.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionReady) || node.Status.Address == nil {
			return fmt.Errorf("conditions %v", node.Status.Conditions)
		}
		return nil
	})
	if died != nil {
		return died
	}
	if err != nil {
		return fmt.Errorf("%w; %s ends:\n%s", err, a.program.Log, process.Tail(a.program.Log))
	}
	return nil
}
