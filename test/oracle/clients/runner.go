package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/oracle/clients/table"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

// runner is a client's program: it takes a call a line, and says a reply a line.
type runner struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	gone context.CancelFunc
}

// commands are the runners' command lines, in the folder of what is installed.
func commands(installed, client string) []string {
	sdk := filepath.Join(installed, "sdk")
	switch client {
	case "openai-python":
		return []string{filepath.Join(installed, "python", "bin", "python"), filepath.Join(sdk, "openai_client.py")}
	case "anthropic-python":
		return []string{filepath.Join(installed, "python", "bin", "python"), filepath.Join(sdk, "anthropic_client.py")}
	case "openai-javascript":
		return []string{filepath.Join(sdk, "node"), filepath.Join(sdk, "openai_client.mjs")}
	case "anthropic-javascript":
		return []string{filepath.Join(sdk, "node"), filepath.Join(sdk, "anthropic_client.mjs")}
	case "openai-go":
		return []string{filepath.Join(installed, "openaigo")}
	}
	return nil
}

// clientPatience bounds what one client may take at one door.
const clientPatience = 5 * time.Minute

func startRunner(ctx context.Context, o options, c table.Client, d tinyfleet.Door) (*runner, error) {
	line := commands(o.installed, c.Name)
	if line == nil {
		return nil, fmt.Errorf("%s has no runner", c.Name)
	}
	if strings.ContainsRune(line[0], filepath.Separator) {
		if _, err := os.Stat(line[0]); err != nil {
			return nil, fmt.Errorf("%s is not installed: %w; make test-clients installs it", c.Name, err)
		}
	}
	ctx, gone := context.WithTimeoutCause(ctx, clientPatience, fmt.Errorf("%s took more than %s", c.Name, clientPatience))
	r := &runner{name: c.Name, cmd: exec.CommandContext(ctx, line[0], line[1:]...), gone: gone}
	base := d.URL
	if c.API == "openai" {
		base += "/v1"
	}
	r.cmd.Env = append(os.Environ(), "BASE_URL="+base)
	r.cmd.Stderr = os.Stderr
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 5 * time.Second
	in, err := r.cmd.StdinPipe()
	if err != nil {
		gone()
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		gone()
		return nil, err
	}
	r.in, r.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := r.cmd.Start(); err != nil {
		gone()
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r, nil
}

// ask has the client do one call.
func (r *runner) ask(call string, key, args, extra any) (any, error) {
	b, err := json.Marshal(map[string]any{"call": call, "key": key, "args": args, "extra": extra})
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", call, err)
	}
	if _, err := r.in.Write(append(b, '\n')); err != nil {
		return nil, fmt.Errorf("%s ended before %s: %w", r.name, call, err)
	}
	line, err := r.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%s ended during %s: %w", r.name, call, err)
	}
	var reply any
	if err := json.Unmarshal(line, &reply); err != nil {
		return nil, fmt.Errorf("%s answers %s with %q: %w", r.name, call, line, err)
	}
	return reply, nil
}

// end lets the program end by itself, and wants that it did so well.
func (r *runner) end() []error {
	defer r.gone()
	_ = r.in.Close()
	rest, err := io.ReadAll(r.out)
	if len(rest) > 0 {
		err = errors.Join(err, fmt.Errorf("it said more: %q", rest))
	}
	if err := errors.Join(err, r.cmd.Wait()); err != nil {
		return []error{fmt.Errorf("%s: %w", r.name, err)}
	}
	return nil
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
