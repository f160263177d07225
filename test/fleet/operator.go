package fleet

import (
	"context"
	"fmt"
	"path/filepath"

	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/testenv"
)

// Operator is the fleet's operator.
type Operator struct {
	// Metrics is the URL of its metrics.
	Metrics string

	program *process.Program
	health  string // URL
	demand  string // where it takes the gateways' reports
}

// startOperator starts it with the rights that config/rbac gives its
// ServiceAccount, and waits until it is ready.
func (f *Fleet) startOperator(ctx context.Context) error {
	kubeconfig := filepath.Join(f.dir, "operator.kubeconfig")
	if err := f.kubeconfigOf(ctx, "metalfleet-operator", kubeconfig, f.Operator.Failed); err != nil {
		return err
	}
	var at [3]string // health, demand, metrics
	for i := range at {
		port, err := testenv.FreePort()
		if err != nil {
			return err
		}
		at[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	f.Operator.health, f.Operator.demand, f.Operator.Metrics = "http://"+at[0]+"/readyz", at[1], "http://"+at[2]+"/metrics"
	f.Operator.program = process.New("operator", f.bin("operator"), f.LogDir(), "--kubeconfig="+kubeconfig, "--namespace="+Namespace,
		"--health-bind-address="+at[0], "--demand-bind-address="+at[1], "--metrics-bind-address="+at[2])
	return f.Operator.Start(ctx)
}

// Start starts it and waits until it is ready.
func (o *Operator) Start(ctx context.Context) error {
	if err := o.program.Start(); err != nil {
		return err
	}
	return waitHTTP(ctx, o.program, o.health)
}

// Stop ends it with SIGTERM, as the kubelet would.
func (o *Operator) Stop(ctx context.Context) error { return o.program.Stop(ctx) }

// PID is its process, or 0.
func (o *Operator) PID() int { return o.program.PID() }

// Kill ends it with SIGKILL.
func (o *Operator) Kill() error { return o.program.Kill() }

// Failed is an error if it has ended.
func (o *Operator) Failed() error { return o.program.Failed() }
