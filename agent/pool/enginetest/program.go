package enginetest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
)

// variable in the environment makes a test program play the engine.
const variable = "METALFLEET_FAKE_ENGINE"

// Env is the environment in which the running test program plays the engine.
// The race detector would otherwise make it linger for a second at its exit.
func Env() []string { return append(os.Environ(), variable+"=1", "GORACE=atexit_sleep_ms=0") }

// Requested reports whether this process is to play the engine. TestMain asks.
func Requested() bool { return os.Getenv(variable) != "" }

// Main plays "engine serve --socket S --config F" and returns its exit code.
func Main(args []string) int {
	if err := serve(args); err != nil {
		fmt.Fprintln(os.Stderr, "fake engine:", err)
		return 1
	}
	return 0
}

// arguments are those of "engine serve".
func arguments(args []string) (socket, config string, err error) {
	if len(args) == 0 || args[0] != "serve" {
		return "", "", fmt.Errorf("arguments %q: want serve", args)
	}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.StringVar(&socket, "socket", "", "Unix socket")
	flags.StringVar(&config, "config", "", "configuration")
	flags.String("state", "", "the agent's folder")
	return socket, config, flags.Parse(args[1:])
}

// readConfig reads the configuration that an engine is started with.
func readConfig(path string) (wire.Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return wire.Config{}, err
	}
	defer f.Close()
	return wire.ReadConfig(f)
}

func serve(args []string) error {
	socket, path, err := arguments(args)
	if err != nil {
		return err
	}
	config, err := readConfig(path)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(config.ModelPath)
	if err != nil {
		return err
	}
	var script Script
	if err := json.Unmarshal(b, &script); err != nil {
		return err
	}
	e := newFake(config, script, program{})
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(wire.MaxMessageBytes))
	wire.RegisterEngineServer(s, e)
	go e.load()
	go func() {
		<-e.over
		s.GracefulStop()
	}()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		for range term {
			if !script.IgnoreTerm {
				os.Exit(143)
			}
		}
	}()
	return s.Serve(l)
}

// program is a world of its own: this process.
type program struct{}

func (program) pid() int { return os.Getpid() }

// gate: the kernel stops a process by itself.
func (program) gate(context.Context) bool { return true }

func (program) skew() time.Duration { return 0 }

func (program) exit(code int) { os.Exit(code) }

// hold touches memory that the kernel counts, until release.
func (program) hold(bytes int64) (release func()) {
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		os.Exit(9)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return func() { _ = unix.Munmap(b) }
}
