package testenv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"
)

// keptControllers are those that tests and the quickstart see the work of:
// namespaces end, owned objects go with their owner, service accounts and
// their tokens exist, aggregated roles fill.
const keptControllers = "namespace-controller,garbage-collector-controller,serviceaccount-controller," +
	"serviceaccount-token-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller"

func (e *Env) etcdSocket() string { return "unix://" + filepath.Join(e.sockets, "etcd") }

// startEtcd runs one member on a Unix socket: no port to collide on, and no
// open database for other users of the machine.
func (e *Env) startEtcd(ctx context.Context) error {
	peers := "unix://" + filepath.Join(e.sockets, "peer")
	p, err := launch(e.assets.etcd, e.LogDir, []string{
		"--data-dir=" + filepath.Join(e.dir, "etcd"),
		"--listen-client-urls=" + e.etcdSocket(), "--advertise-client-urls=" + e.etcdSocket(),
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers,
		"--initial-cluster=default=" + peers,
		// A throw-away database: speed before durability, and one member need
		// not wait for an election.
		"--unsafe-no-fsync", "--heartbeat-interval=20", "--election-timeout=200",
		"--log-level=warn",
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.etcd = p
	e.mu.Unlock()
	return p.waitReady(ctx, func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", filepath.Join(e.sockets, "etcd"))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (e *Env) apiserverFlags() []string {
	f := e.pki.File
	return []string{
		"--etcd-servers=" + e.etcdSocket(),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", e.port),
		"--tls-cert-file=" + f("apiserver.crt"), "--tls-private-key-file=" + f("apiserver.key"),
		"--client-ca-file=" + f("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + f("sa.key"), "--service-account-signing-key-file=" + f("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC",
		"--endpoint-reconciler-type=none", // 127.0.0.1 may not be an endpoint
		"--enable-priority-and-fairness=false", "--profiling=false",
	}
}

func (e *Env) startControllers() error {
	kubeconfig := e.pki.File("controllers.kubeconfig")
	if err := e.pki.Kubeconfig(kubeconfig, e.URL, "controllers"); err != nil {
		return err
	}
	f := e.pki.File
	p, err := launch(e.assets.controllers, e.LogDir, []string{
		"--kubeconfig=" + kubeconfig, "--controllers=" + keptControllers,
		"--leader-elect=false", "--secure-port=0", "--controller-start-interval=0s",
		"--service-account-private-key-file=" + f("sa.key"), "--root-ca-file=" + f("ca.crt"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.controllers = p
	return nil
}

// freePort finds a port below those that the kernel gives to outgoing
// connections, so that nobody's connection takes it while the API server is
// stopped for a test.
func freePort() (int, error) {
	const first, count = 20000, 12000
	for range 100 {
		port := first + rand.IntN(count)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("probe port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between %d and %d", first, first+count)
}

// poll asks until the answer is nil, the process has ended or the time is up.
func (p *process) waitReady(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %w; its log ends:\n%s", p.name, p.err, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w); its log ends:\n%s", p.name, ctx.Err(), err, tail(p.log))
		case <-tick.C:
		}
	}
}

// tail is the end of a log file, for an error that has to say why.
func tail(path string) string {
	const most = 2000
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}
