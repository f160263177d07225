package history

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/datadriven"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// errCommand is wrapped by errors about what a history says.
var errCommand = errors.New("history is not understood")

// Line executes a command as it stands in a history.
func (w *World) Line(line string) (string, error) {
	cmd, args, err := datadriven.ParseLine(line)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errCommand, err)
	}
	return w.Do(cmd, args, "")
}

// Do executes one command and everything that is due then. It returns what
// happened since the command before, and what the command prints. input are the
// lines below a command, of which only orders has any.
func (w *World) Do(cmd string, args []datadriven.CmdArg, input string) (string, error) {
	does, known := w.commands()[cmd]
	if !known {
		return "", fmt.Errorf("%w: unknown command %q", errCommand, cmd)
	}
	if w.agent.pool == nil && cmd != "mac" {
		return "", fmt.Errorf("%w: %s before mac memory=", errCommand, cmd)
	}
	out, err := does(&arguments{args: args, input: input})
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", errCommand, cmd, err)
	}
	w.settle()
	if out != "" {
		out += "\n"
	}
	return w.diary.take() + out, nil
}

func (w *World) commands() map[string]func(*arguments) (string, error) {
	return map[string]func(*arguments) (string, error){
		"mac": w.setMac, "probe": w.setProbe, "disk": w.setDisk, "starts": w.setStarts, "model": w.model,
		"order": w.order, "orders": w.orderAll, "withdraw": w.withdraw,
		"request": w.clients.request, "hold": w.clients.holdOnly, "use": w.clients.use, "release": w.clients.giveBack, "hang-up": w.clients.hang,
		"engine": w.engine, "journal": w.rewrite, "agent": w.setAgent, "wait": w.wait, "clock": w.clock, "sleep": w.sleep,
		"status": w.status, "finish": w.finish, "limits": w.limits, "metrics": w.judge.metrics,
	}
}

// arguments of a command, each read once; done refuses those that are left.
type arguments struct {
	args  []datadriven.CmdArg
	input string
	bad   []string
}

// word takes the first argument without a value.
func (a *arguments) word() string {
	for i, arg := range a.args {
		if len(arg.Vals) == 0 {
			a.args = append(a.args[:i:i], a.args[i+1:]...)
			return arg.Key
		}
	}
	a.bad = append(a.bad, "a name is missing")
	return ""
}

// find takes the argument of that name.
func (a *arguments) find(key string) (datadriven.CmdArg, bool) {
	for i, arg := range a.args {
		if arg.Key == key {
			a.args = append(a.args[:i:i], a.args[i+1:]...)
			return arg, true
		}
	}
	return datadriven.CmdArg{}, false
}

func (a *arguments) flag(key string) bool {
	_, ok := a.find(key)
	return ok
}

// text is the one value of an argument; ok is false where it is not there.
func (a *arguments) text(key string) (s string, ok bool) {
	arg, ok := a.find(key)
	if !ok {
		return "", false
	}
	if len(arg.Vals) != 1 {
		a.bad = append(a.bad, key+" wants one value")
		return "", false
	}
	return arg.Vals[0], true
}

func (a *arguments) list(key string) []string {
	arg, _ := a.find(key)
	return arg.Vals
}

func parsed[T any](a *arguments, key string, to *T, parse func(string) (T, error)) {
	s, ok := a.text(key)
	if !ok {
		return
	}
	v, err := parse(s)
	if err != nil {
		a.bad = append(a.bad, fmt.Sprintf("%s=%s: %v", key, s, err))
		return
	}
	*to = v
}

// number is an argument's, or instead where it is not there.
func (a *arguments) number(key string, instead int64) int64 {
	parsed(a, key, &instead, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
	return instead
}

func (a *arguments) bytes(key string, to *int64) { parsed(a, key, to, parseBytes) }

func (a *arguments) duration(key string, to *time.Duration) { parsed(a, key, to, time.ParseDuration) }

// milliseconds of a time.
func (a *arguments) milliseconds(key string, to *int64) {
	d := time.Duration(*to) * time.Millisecond
	a.duration(key, &d)
	*to = d.Milliseconds()
}

func (a *arguments) done() error {
	for _, arg := range a.args {
		a.bad = append(a.bad, "unknown argument "+arg.String())
	}
	if len(a.bad) > 0 {
		return errors.New(strings.Join(a.bad, "; "))
	}
	return nil
}

// parseBytes reads 36GiB, 0.5GiB, 512MiB or 0.
func parseBytes(s string) (int64, error) {
	unit := int64(1)
	for suffix, n := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, n
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 {
		return 0, fmt.Errorf("%q is no size such as 36GiB", s)
	}
	return int64(f * float64(unit)), nil
}

func (w *World) setMac(a *arguments) (string, error) {
	if a.flag("reboot") {
		return "", errors.Join(a.done(), w.reboot())
	}
	first := w.agent.pool == nil
	w.judge.muddle(slices.ContainsFunc(a.args, func(arg datadriven.CmdArg) bool {
		return slices.Contains([]string{"stranded", "wired", "unwired", "wired-known"}, arg.Key)
	}))
	ceiling := int64(-1)
	a.bytes("ceiling", &ceiling)
	if policy, ok := a.text("policy"); ok {
		w.desired.policy.Policy = v1alpha1.MemoryPolicy(policy)
	}
	w.mac.change(func(s *settings) {
		for key, to := range map[string]*int64{
			"memory": &s.total, "metal": &s.metal, "foreign": &s.foreign, "active": &s.active, "inactive": &s.inactive,
			"wired": &s.wired, "stranded": &s.stranded, "swap": &s.swap,
		} {
			a.bytes(key, to)
		}
		a.duration("returns", &s.returns)
		if p, ok := a.text("pressure"); ok {
			s.pressure = p
		}
		if t, ok := a.text("thermal"); ok {
			s.thermal = t
		}
		s.unwired = (s.unwired || a.flag("unwired")) && !a.flag("wired-known")
	})
	if err := a.done(); err != nil {
		sort.Strings(a.bad)
		return "", err
	}
	if ceiling >= 0 {
		w.desired.setCeiling(ceiling)
	}
	if first {
		return "", w.boot()
	}
	w.apply()
	return "", nil
}

// finish withdraws all orders and wants an empty Mac.
func (w *World) finish(a *arguments) (string, error) {
	return "", errors.Join(a.done(), w.Finish())
}

func (w *World) setProbe(a *arguments) (string, error) {
	var host, engines error
	what := a.word()
	w.judge.muddle(what == "fails")
	switch {
	case what == "works":
	case what == "fails" && a.flag("host"):
		host = errProbe
	case what == "fails" && a.flag("engines"):
		engines = errProbe
	case what == "fails":
		replica, ok := a.text("engine")
		if !ok {
			return "", errors.New("want works, fails host, fails engines or fails engine=NAME")
		}
		w.mac.failFor(replica)
		return "", a.done()
	default:
		return "", errors.New("want works or fails")
	}
	w.mac.fail(host, engines)
	return "", a.done()
}

func (w *World) setStarts(a *arguments) (string, error) {
	switch a.word() {
	case "fail":
		w.twin.RefuseStarts(errProbe)
	case "work":
		w.twin.RefuseStarts(nil)
	default:
		return "", errors.New("want fail or work")
	}
	return "", a.done()
}

func (w *World) engine(a *arguments) (string, error) {
	name := a.word()
	e := w.twin.Engine(name)
	extra, pooled, prefixes := int64(-1), int64(-1), int64(-1)
	a.bytes("extra", &extra)
	a.bytes("pooled", &pooled)
	a.bytes("prefixes", &prefixes)
	exit := a.number("exit", -1)
	signal := syscall.Signal(0)
	for key, s := range map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP, "continue": syscall.SIGCONT} {
		if a.flag(key) {
			signal = s
		}
	}
	if err := a.done(); err != nil {
		return "", err
	}
	if e == nil {
		return name + " has no process", nil
	}
	if extra >= 0 {
		e.SetExtra(extra)
	}
	if pooled >= 0 {
		e.SetPooled(pooled)
	}
	if prefixes >= 0 {
		e.SetCached(prefixes)
	}
	if exit >= 0 {
		e.Exit(int(exit))
	}
	if signal != 0 {
		return "", e.Signal(signal)
	}
	return "", nil
}

func (w *World) setAgent(a *arguments) (string, error) {
	what := a.word()
	if err := a.done(); err != nil {
		return "", err
	}
	if what != "stop" && what != "start" && what != "restart" {
		return "", errors.New("want stop, start or restart")
	}
	if what != "start" && w.agent.running() {
		w.leave()
	}
	if what == "stop" || w.agent.running() {
		return "", nil
	}
	return "", w.again()
}

// leave ends the agent; its engines live on.
func (w *World) leave() {
	w.clients.orphan()
	w.agent.halt()
	w.settle()
}

// again starts an agent, which reads the orders.
func (w *World) again() error {
	if err := w.boot(); err != nil {
		return err
	}
	w.apply()
	return nil
}

// reboot ends everything on the Mac and starts its agent again.
func (w *World) reboot() error {
	if w.agent.running() {
		w.leave()
	}
	w.twin.KillAll()
	w.settle()
	w.mac.reboot()
	return w.again()
}

func (w *World) wait(a *arguments) (string, error) {
	d, err := time.ParseDuration(a.word())
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	w.pass(d)
	return "", nil
}
