package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// result is what became of one request, as client.py says it.
type result struct {
	Event   string   `json:"event"`
	Macs    []string `json:"macs"`
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Stream  bool     `json:"stream"`
	Mac     string   `json:"mac"`
	Pieces  int      `json:"pieces"`
	Tokens  int      `json:"tokens"`
	Finish  string   `json:"finish"`
	Error   string   `json:"error"`
	Code    string   `json:"code"`
	Typed   bool     `json:"typed"`
	Message string   `json:"message"`
	Seconds float64  `json:"seconds"`
	Text    string   `json:"text"`
}

// pythonClient is client.py, running.
type pythonClient struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan result // closed at the end of its output
}

func startClient(ctx context.Context, key, python string, args ...string) (*pythonClient, error) {
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env = append(os.Environ(), "METALFLEET_API_KEY="+key)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	c := &pythonClient{cmd: cmd, stdin: stdin, lines: make(chan result, 64)}
	go c.read(stdout) // end waits for it
	return c, nil
}

func (c *pythonClient) read(from io.Reader) {
	defer close(c.lines)
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var r result
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			r = result{Event: "nonsense", Message: scanner.Text()}
		}
		c.lines <- r
	}
}

// next is the client's next line.
func (c *pythonClient) next(ctx context.Context) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the client said nothing for %s", patience))
	defer cancel()
	select {
	case r, ok := <-c.lines:
		if !ok {
			return result{}, errors.New("the client ended; what it printed stands above")
		}
		return r, nil
	case <-ctx.Done():
		return result{}, context.Cause(ctx)
	}
}

// waiting returns the Macs of the two streams once both speak and four more
// requests were sent.
func (c *pythonClient) waiting(ctx context.Context) ([]string, error) {
	r, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	if r.Event != "waiting" || len(r.Macs) != 2 {
		return nil, fmt.Errorf("the client said %+v; want two streams that speak", r)
	}
	return r.Macs, nil
}

// results tells the client to go on, and collects what became of its requests.
func (c *pythonClient) results(ctx context.Context) ([]result, error) {
	if _, err := io.WriteString(c.stdin, "killed\n"); err != nil {
		return nil, fmt.Errorf("tell the client: %w", err)
	}
	var out []result
	for len(out) < 10 {
		r, err := c.next(ctx)
		if err != nil {
			return nil, fmt.Errorf("after %d results: %w", len(out), err)
		}
		if r.Event != "result" {
			return nil, fmt.Errorf("the client said %+v; want a result", r)
		}
		out = append(out, r)
	}
	return out, nil
}

// end kills the client if it still runs, and waits for it.
func (c *pythonClient) end() {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Kill() // it said all it has to say, or never will
	for range c.lines {
	}
	_ = c.cmd.Wait()
}
