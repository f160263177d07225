package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// Gateway is one of those that serve the fleet.
type Gateway struct {
	// Name is that of its log.
	Name string
	// URL is the gateway's, without a path.
	URL string

	health  string // URL without a path
	metrics string
	program *process.Program
}

func (f *Fleet) gatewayKubeconfig() string { return filepath.Join(f.dir, "gateway.kubeconfig") }

// FirstGateway is the one that every fleet has.
func (f *Fleet) FirstGateway() *Gateway {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gateways[0]
}

// AddGateway starts another gateway, with a log of that name.
func (f *Fleet) AddGateway(ctx context.Context, name string) (*Gateway, error) {
	return f.addGateway(ctx, name, 0)
}

// addGateway starts a gateway with the rights that config/rbac gives its
// ServiceAccount; port 0 takes a free one.
func (f *Fleet) addGateway(ctx context.Context, name string, port int) (*Gateway, error) {
	var free [3]int
	for i := range free {
		var err error
		if free[i], err = testenv.FreePort(); err != nil {
			return nil, err
		}
	}
	health, metrics := free[0], free[1]
	if port == 0 {
		port = free[2]
	}
	g := &Gateway{Name: name, URL: fmt.Sprintf("http://127.0.0.1:%d", port), health: fmt.Sprintf("http://127.0.0.1:%d", health), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics)}
	g.program = process.New(name, f.bin("gateway"), f.LogDir(), append([]string{
		"--kubeconfig=" + f.gatewayKubeconfig(), "--namespace=" + Namespace, "--api-keys-namespace=" + f.options.KeysNamespace,
		fmt.Sprintf("--listen=127.0.0.1:%d", port), fmt.Sprintf("--health=127.0.0.1:%d", health),
		fmt.Sprintf("--metrics=127.0.0.1:%d", metrics),
		"--operator=" + f.Operator.demand, "--drain-timeout=3s"}, f.options.GatewayFlags[name]...)...)
	f.mu.Lock()
	f.gateways = append(f.gateways, g)
	f.mu.Unlock()
	return g, g.Start(ctx)
}

// Start starts it and waits until it is ready.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.program.Start(); err != nil {
		return err
	}
	return waitHTTP(ctx, g.program, g.health+"/readyz")
}

// Kill ends it with SIGKILL.
func (g *Gateway) Kill() error { return g.program.Kill() }

// Log is what it has logged.
func (g *Gateway) Log() (string, error) {
	b, err := os.ReadFile(g.program.Log)
	return string(b), err
}
