package testenv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"

	"metalfleet.dev/metalfleet/test/process"
)

// keptControllers are those that tests and the quickstart see the work of:
// namespaces end, owned objects go with their owner, service accounts and
// their tokens exist, aggregated roles fill.
const keptControllers = "namespace-controller,garbage-collector-controller,serviceaccount-controller," +
	"serviceaccount-token-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller"

func (e *Env) etcdSocket() string { return "unix://" + filepath.Join(e.sockets, "etcd") }

// launch starts a program whose log has its name.
func (e *Env) launch(path string, args ...string) (*process.Program, error) {
	p := process.New(filepath.Base(path), path, e.LogDir, args...)
	p.Env = []string{"GOGC=400", "GOMEMLIMIT=900MiB"} // collecting garbage is a third of the work otherwise
	return p, p.Start()
}

// ready waits a bounded time until the answer is nil.
func ready(ctx context.Context, p *process.Program, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p.Ready(ctx, ask)
}

// startEtcd runs one member on a Unix socket: no port to collide on, and no
// open database for other users of the machine.
func (e *Env) startEtcd(ctx context.Context) error {
	peers := "unix://" + filepath.Join(e.sockets, "peer")
	p, err := e.launch(e.assets.etcd,
		"--data-dir="+filepath.Join(e.dir, "etcd"),
		"--listen-client-urls="+e.etcdSocket(), "--advertise-client-urls="+e.etcdSocket(),
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
		"--initial-cluster=default="+peers,
		// A throw-away database: speed before durability; one member need not wait for an election.
		"--unsafe-no-fsync", "--heartbeat-interval=20", "--election-timeout=200",
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.etcd = p
	e.mu.Unlock()
	return ready(ctx, p, func(ctx context.Context) error {
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
	flags := []string{
		"--etcd-servers=" + e.etcdSocket(),
		"--bind-address=" + e.address, "--advertise-address=" + e.address, fmt.Sprintf("--secure-port=%d", e.port),
		"--tls-cert-file=" + f("apiserver.crt"), "--tls-private-key-file=" + f("apiserver.key"),
		"--client-ca-file=" + f("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + f("sa.key"), "--service-account-signing-key-file=" + f("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC",
		"--endpoint-reconciler-type=none", // 127.0.0.1 may not be an endpoint
		"--enable-priority-and-fairness=false", "--profiling=false",
	}
	if e.scaling {
		flags = append(flags, "--requestheader-client-ca-file="+f("ca.crt"), "--requestheader-allowed-names=front-proxy",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+f("proxy.crt"), "--proxy-client-key-file="+f("proxy.key"))
	}
	return flags
}

func (e *Env) startControllers() error {
	kubeconfig := e.pki.File("controllers.kubeconfig")
	if err := e.pki.Kubeconfig(kubeconfig, e.URL, "controllers"); err != nil {
		return err
	}
	f := e.pki.File
	kept := keptControllers
	if e.scaling {
		kept += ",horizontal-pod-autoscaler-controller"
	}
	p, err := e.launch(e.assets.controllers,
		"--kubeconfig="+kubeconfig, "--controllers="+kept, "--horizontal-pod-autoscaler-sync-period=1s",
		"--horizontal-pod-autoscaler-downscale-stabilization=1s",
		"--leader-elect=false", "--secure-port=0", "--controller-start-interval=0s",
		"--service-account-private-key-file="+f("sa.key"), "--root-ca-file="+f("ca.crt"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.controllers = p
	return nil
}

// FreePort finds a free port of the loopback interface under those that the kernel
// gives to outgoing connections: no connection takes it before a program listens
// there, or while that is stopped for a test.
func FreePort() (int, error) {
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
