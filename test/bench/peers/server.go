package peers

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
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/process"
)

// Server is mlx-lm's server in a process of its own.
type Server struct {
	url, model string
	program    *process.Program
	dir        string
}

const serverReady = 5 * time.Minute

// StartServer starts mlx-lm's server with a folder and waits until it answers.
// streams is how many answers it decodes at once. Stop ends it.
func StartServer(ctx context.Context, python, model string, streams int) (*Server, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mf-mlx-lm-")
	if err != nil {
		return nil, fmt.Errorf("log of mlx-lm: %w", err)
	}
	s := &Server{url: "http://" + address, model: model, dir: dir}
	s.program = process.New("mlx-lm", python, dir, "-m", "mlx_lm", "server", "--model", model, "--host", host, "--port", port,
		"--decode-concurrency", strconv.Itoa(streams), "--log-level", "WARNING")
	s.program.Env = []string{"HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE=1"}
	if err = s.program.Start(); err == nil {
		err = s.await(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, serverReady, fmt.Errorf("no answer after %s", serverReady))
	defer cancel()
	return s.program.Ready(ctx, func(ctx context.Context) error {
		_, _, err := s.Ask(ctx, traffic.Request{Prompt: "hello", MaxTokens: 1}, func() {})
		return err
	})
}

// FreeAddress returns an address on loopback that nothing listens on.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// Ask runs one request.
func (s *Server) Ask(ctx context.Context, r traffic.Request, each func()) (prompt, answer int, err error) {
	body, err := json.Marshal(map[string]any{
		"model": s.model, "prompt": r.Prompt, "max_tokens": r.MaxTokens, "temperature": 0, "stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", bytes.NewReader(body))
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

// chunk is an event of the server's stream.
type chunk struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Answer int `json:"completion_tokens"`
	} `json:"usage"`
}

// read reads server-sent events up to [DONE].
func read(from io.Reader, each func()) (prompt, answer int, err error) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue // a comment, or the blank line between events
		}
		if data == "[DONE]" {
			return prompt, answer, nil
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return prompt, answer, fmt.Errorf("mlx-lm sent %q: %w", data, err)
		}
		if c.Usage != nil {
			prompt, answer = c.Usage.Prompt, c.Usage.Answer
		}
		if len(c.Choices) > 0 && c.Choices[0].Text != "" {
			each()
		}
	}
	return prompt, answer, errors.Join(errors.New("mlx-lm's stream ended without [DONE]"), lines.Err())
}

// Stop kills the server and removes its log.
func (s *Server) Stop() error { return errors.Join(s.program.Kill(), os.RemoveAll(s.dir)) }
