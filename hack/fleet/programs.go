package fleet

import (
	"context"
	"fmt"
	"path/filepath"

	"metalfleet.dev/metalfleet/hack/process"
	"metalfleet.dev/metalfleet/hack/testenv"
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
	f.operator = process.New("operator", f.bin("operator"), f.LogDir(),
		"--kubeconfig="+kubeconfig, "--namespace="+Namespace,
		fmt.Sprintf("--health-bind-address=127.0.0.1:%d", port), "--metrics-bind-address=0")
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

// KillOperator ends it with SIGKILL.
func (f *Fleet) KillOperator() error { return f.operator.Kill() }

// startGatewayFirst starts the gateway with the rights that config/rbac gives
// its ServiceAccount.
func (f *Fleet) startGatewayFirst(ctx context.Context) error {
	kubeconfig := filepath.Join(f.dir, "gateway.kubeconfig")
	if err := f.kubeconfigOf(ctx, "metalfleet-gateway", kubeconfig); err != nil {
		return err
	}
	p := ports{serve: f.options.GatewayPort}
	var err error
	if p.serve == 0 {
		if p.serve, err = testenv.FreePort(); err != nil {
			return err
		}
	}
	if p.health, err = testenv.FreePort(); err != nil {
		return err
	}
	f.URL = fmt.Sprintf("http://127.0.0.1:%d", p.serve)
	f.gatewayHealth = fmt.Sprintf("http://127.0.0.1:%d/readyz", p.health)
	f.gateway = process.New("gateway", f.bin("gateway"), f.LogDir(),
		"--kubeconfig="+kubeconfig, "--namespace="+Namespace, "--api-keys-namespace="+f.options.KeysNamespace,
		fmt.Sprintf("--listen=127.0.0.1:%d", p.serve), fmt.Sprintf("--health=127.0.0.1:%d", p.health),
		"--drain-timeout=3s")
	return f.StartGateway(ctx)
}

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
		fmt.Sprintf("--listen=127.0.0.1:%d", port),
		"--state=" + a.state,
		"--model-root=" + f.options.ModelRoot,
		"--engine=" + f.bin("engine"),
		"--grace=2s",
		"--disk-high-percent=0", // whatever else lies on this machine's disk
	}, a.mac.Flags...)
}
