package fleet

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// Ports of operator and gateway on 127.0.0.1, chosen at the first start and
// kept over restarts.
type ports struct{ health, serve int }

// startOperatorFirst starts the operator with the rights that config/rbac
// gives its ServiceAccount, and waits until it is ready.
func (f *Fleet) startOperatorFirst(ctx context.Context) error {
	kubeconfig := filepath.Join(f.dir, "operator.kubeconfig")
	if err := f.kubeconfigOf(ctx, "metalfleet-operator", kubeconfig); err != nil {
		return err
	}
	port, err := testenv.FreePort()
	if err != nil {
		return err
	}
	f.operatorHealth = fmt.Sprintf("http://127.0.0.1:%d/readyz", port)
	demand, err := testenv.FreePort()
	if err != nil {
		return err
	}
	f.demand = fmt.Sprintf("127.0.0.1:%d", demand)
	f.operator = process.New("operator", f.bin("operator"), f.LogDir(),
		"--kubeconfig="+kubeconfig, "--namespace="+Namespace,
		fmt.Sprintf("--health-bind-address=127.0.0.1:%d", port), "--metrics-bind-address=0",
		"--demand-bind-address="+f.demand)
	return f.StartOperator(ctx)
}

// StartOperator starts it and waits until it is ready.
func (f *Fleet) StartOperator(ctx context.Context) error {
	if err := f.operator.Start(); err != nil {
		return err
	}
	return waitHTTP(ctx, f.operator, f.operatorHealth)
}

// StopOperator ends it as a rollout of its Deployment would.
func (f *Fleet) StopOperator(ctx context.Context) error { return f.operator.Stop(ctx) }

// OperatorPID is its process, or 0.
func (f *Fleet) OperatorPID() int { return f.operator.PID() }

// KillOperator ends it with SIGKILL.
func (f *Fleet) KillOperator() error { return f.operator.Kill() }

// startGatewayFirst starts the gateway with the rights that config/rbac gives
// its ServiceAccount.
func (f *Fleet) startGatewayFirst(ctx context.Context) error {
	if err := f.kubeconfigOf(ctx, "metalfleet-gateway", f.gatewayKubeconfig()); err != nil {
		return err
	}
	g, err := f.newGateway("gateway", f.options.GatewayPort)
	if err != nil {
		return err
	}
	f.URL, f.gatewayHealth, f.gateway = g.URL, g.health, g.program
	return f.StartGateway(ctx)
}

func (f *Fleet) gatewayKubeconfig() string { return filepath.Join(f.dir, "gateway.kubeconfig") }

// newGateway is one that does not run yet; port 0 takes a free one.
func (f *Fleet) newGateway(name string, port int) (*Gateway, error) {
	p := ports{serve: port}
	var err error
	if p.serve == 0 {
		if p.serve, err = testenv.FreePort(); err != nil {
			return nil, err
		}
	}
	if p.health, err = testenv.FreePort(); err != nil {
		return nil, err
	}
	g := &Gateway{URL: fmt.Sprintf("http://127.0.0.1:%d", p.serve), health: fmt.Sprintf("http://127.0.0.1:%d/readyz", p.health)}
	g.program = process.New(name, f.bin("gateway"), f.LogDir(), append([]string{
		"--kubeconfig=" + f.gatewayKubeconfig(), "--namespace=" + Namespace, "--api-keys-namespace=" + f.options.KeysNamespace,
		fmt.Sprintf("--listen=127.0.0.1:%d", p.serve), fmt.Sprintf("--health=127.0.0.1:%d", p.health),
		"--operator=" + f.demand, "--drain-timeout=3s"}, f.options.GatewayFlags[name]...)...)
	return g, nil
}

// Gateway is one of several that serve the same fleet.
type Gateway struct {
	// URL is the gateway's, without a path.
	URL string

	health  string
	program *process.Program
}

// FirstGateway is the one that every fleet has.
func (f *Fleet) FirstGateway() *Gateway {
	return &Gateway{URL: f.URL, health: f.gatewayHealth, program: f.gateway}
}

// AddGateway starts another gateway beside the first, with a log of that name.
func (f *Fleet) AddGateway(ctx context.Context, name string) (*Gateway, error) {
	g, err := f.newGateway(name, 0)
	if err != nil {
		return nil, err
	}
	f.more = append(f.more, g)
	return g, g.Start(ctx)
}

// Start starts it and waits until it is ready.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.program.Start(); err != nil {
		return err
	}
	return waitHTTP(ctx, g.program, g.health)
}

// Kill ends it with SIGKILL.
func (g *Gateway) Kill() error { return g.program.Kill() }

// Log is the file of what it says.
func (g *Gateway) Log() string { return g.program.Log }

// StartGateway starts it and waits until it is ready.
func (f *Fleet) StartGateway(ctx context.Context) error {
	if err := f.gateway.Start(); err != nil {
		return err
	}
	return waitHTTP(ctx, f.gateway, f.gatewayHealth)
}

// StopGateway ends it as a rollout of its Deployment would.
func (f *Fleet) StopGateway(ctx context.Context) error { return f.gateway.Stop(ctx) }

// KillGateway ends it with SIGKILL.
func (f *Fleet) KillGateway() error { return f.gateway.Kill() }

// agentFlags are what every agent is started with.
func (f *Fleet) agentFlags(a *agent, port int) []string {
	return append([]string{
		"--name=" + a.mac.Name,
		fmt.Sprintf("--mac=chip=%s,memory=%s", a.mac.Chip, a.mac.Memory),
		"--listen=" + net.JoinHostPort(cmp.Or(a.mac.Address, "127.0.0.1"), strconv.Itoa(port)),
		"--state=" + a.state,
		"--model-root=" + f.options.ModelRoot,
		"--engine=" + f.bin("engine"),
		"--grace=2s",
		"--disk-high-percent=0", // whatever else lies on this machine's disk
	}, a.mac.Flags...)
}
