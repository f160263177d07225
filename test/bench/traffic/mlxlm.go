package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// MLXLM is mlx-lm's server in a process of its own.
type MLXLM struct {
	url   string
	model string
	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

const (
	peerReady = 5 * time.Minute
	peerLook  = 100 * time.Millisecond
)

// StartMLXLM starts the server of a Python that has mlx-lm, with a folder, and
// waits until it answers. streams is how many answers it decodes at once. Stop
// ends it.
func StartMLXLM(ctx context.Context, python, folder string, streams int) (*MLXLM, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("find a port: %w", err)
	}
	m := &MLXLM{url: "http://127.0.0.1:" + strconv.Itoa(port), model: folder, ended: make(chan error, 1)}
	if m.log, err = os.CreateTemp("", "mf-mlx-lm-*.log"); err != nil {
		return nil, fmt.Errorf("log of mlx-lm: %w", err)
	}
	m.cmd = exec.CommandContext(ctx, python, "-m", "mlx_lm", "server", "--model", folder, "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--decode-concurrency", strconv.Itoa(streams), "--log-level", "WARNING")
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.WaitDelay = m.log, m.log, time.Second
	m.cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE=1")
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start mlx-lm: %w", err), m.forget())
	}
	go func() { m.ended <- m.cmd.Wait() }() // until the process ends: Stop waits for that
	if err := m.await(ctx); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

// await waits until the server has answered once.
func (m *MLXLM) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, peerReady, fmt.Errorf("mlx-lm does not answer after %s", peerReady))
	defer cancel()
	look := time.NewTicker(peerLook)
	defer look.Stop()
	for {
		_, _, err := m.Ask(ctx, Request{Prompt: "hello", MaxTokens: 1}, func() {})
		if err == nil {
			return nil
		}
		select {
		case err := <-m.ended:
			m.ended <- err
			return fmt.Errorf("mlx-lm ended: %w\n%s", err, m.said())
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-look.C:
		}
	}
}

// piece is an event of the server's stream.
type piece struct {
	Choices []struct {
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Answer int `json:"completion_tokens"`
	} `json:"usage"`
}

// Ask runs one request.
func (m *MLXLM) Ask(ctx context.Context, r Request, each func()) (prompt, answer int, err error) {
	body, err := json.Marshal(map[string]any{
		"model": m.model, "prompt": r.Prompt, "max_tokens": r.MaxTokens, "temperature": 0, "stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, fmt.Errorf("ask mlx-lm: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return 0, 0, fmt.Errorf("ask mlx-lm: %s: %s", resp.Status, text)
	}
	return read(resp.Body, each)
}

// read reads a stream of server-sent events to its end.
func read(from io.Reader, each func()) (prompt, answer int, err error) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue // a comment, or the blank between two events
		}
		if data == "[DONE]" {
			return prompt, answer, nil
		}
		var p piece
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			return prompt, answer, fmt.Errorf("mlx-lm sent %q: %w", data, err)
		}
		if p.Usage != nil {
			prompt, answer = p.Usage.Prompt, p.Usage.Answer
		}
		if len(p.Choices) > 0 && p.Choices[0].Text != "" {
			each()
		}
	}
	if err := lines.Err(); err != nil {
		return prompt, answer, fmt.Errorf("ask mlx-lm: %w", err)
	}
	return prompt, answer, errors.New("mlx-lm's stream ended before its end was said")
}

// said is the end of the server's log.
func (m *MLXLM) said() []byte {
	const most = 1500
	b, _ := os.ReadFile(m.log.Name())
	return b[max(0, len(b)-most):]
}

// Stop ends the server.
func (m *MLXLM) Stop() error {
	_ = m.cmd.Process.Kill()
	<-m.ended // says that it was killed
	return m.forget()
}

func (m *MLXLM) forget() error { return errors.Join(m.log.Close(), os.Remove(m.log.Name())) }
