// Package lines drives a program that stays loaded and measures what each line
// of its standard input asks for: `engine bench --lines`, or a peer that speaks
// like it. Two of them can so be asked in turns, on a machine that is the same
// for both.
//
// It owns the process and the exchange: a line out, a line of JSON back. It
// refuses to go on with a program that went away, and says what that complained
// of.
//
// Start reading at Start.
package lines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// Program is one that runs.
type Program struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said bytes.Buffer
}

// Start starts a program. Stop ends it.
func Start(ctx context.Context, name string, args ...string) (*Program, error) {
	p := &Program{cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Stderr = &p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Ask writes a line and reads the answer.
func (p *Program) Ask(line string, into any) error {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return p.failed(err)
	}
	return p.Answer(into)
}

// Answer reads a line of JSON, which a program may also begin with.
func (p *Program) Answer(into any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return p.failed(fmt.Errorf("it said nothing more: %w", err))
	}
	if err := json.Unmarshal(line, into); err != nil {
		return p.failed(fmt.Errorf("it said %q: %w", line, err))
	}
	return nil
}

// failed ends the program, and adds what it complained of.
func (p *Program) failed(err error) error {
	return errors.Join(fmt.Errorf("ask %s: %w", p.cmd.Path, err), p.Stop())
}

// Stop ends the program by closing its input; stopping twice does nothing.
func (p *Program) Stop() error {
	if p.in == nil {
		return nil
	}
	_ = p.in.Close()
	p.in = nil
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", p.cmd.Path, err, p.said.Bytes())
	}
	return nil
}
