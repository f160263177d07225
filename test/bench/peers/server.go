package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/test/bench/traffic"
	"metalfleet.dev/metalfleet/test/process"
)

// Server is mlx-lm's server in a process of its own.
type Server struct {
	traffic.HTTP
	program *process.Program
	dir     string
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
	s := &Server{HTTP: traffic.HTTP{Client: http.DefaultClient, URL: "http://" + address, Model: model}, dir: dir}
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
		_, err := s.Ask(ctx, traffic.Request{Prompt: "hello", MaxTokens: 1}, func() {})
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

// Stop kills the server and removes its log.
func (s *Server) Stop() error { return errors.Join(s.program.Kill(), os.RemoveAll(s.dir)) }
